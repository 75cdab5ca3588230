"""Policies with the weights of RLlib's own act as those that were recorded there."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, THREE, small_policy

from tfpolicy.config import PolicyConfig
from tfpolicy.export.inference import SERVING, build_inference
from tfpolicy.export.rllib import import_rllib
from tfpolicy.graph.network import build_network
from tfpolicy.models import Model, ModelOutput
from tfpolicy.preprocessing import flatten_observation

S = gym.spaces
DATA = Path(__file__).parents[1] / "data/rllib"
RAYS = ("ray-1.6.0", "ray-2.9.3")
NETS = ("fc_discrete", "scoped", "conv42", "lstm")
SOURCES = {
    "pkl": lambda net: next(net.rglob("policy_state.pkl")),
    "folder": lambda net: next(net.rglob("policy_state.pkl")).parent,
    "npz": lambda net: net / "weights.npz",
    "h5": lambda net: net / "base_model.h5",
}


@pytest.fixture(scope="module", params=NETS)
def policy(request):
    """A policy as the guide says it has to be for weights of that net."""
    meta = json.loads((DATA / RAYS[0] / request.param / "meta.json").read_text())
    with np.load(DATA / RAYS[0] / request.param / "io.npz") as io:
        obs, num_actions = io["obs"], io["action_dist_inputs"].shape[1]
    is_image = obs.dtype == np.uint8
    space = S.Box(0, 255, obs.shape[1:], np.uint8) if is_image else OBS
    model = {**meta["model"], "vf_share_layers": request.param == "lstm"}
    with small_policy(obs_space=space, action_space=S.Discrete(num_actions), model=model) as built:
        built.net = request.param
        built.start = built.get_weights()
        yield built


@pytest.fixture(autouse=True)
def _as_it_was(request):
    yield
    if "policy" in request.fixturenames:
        policy = request.getfixturevalue("policy")
        policy.set_weights(policy.start)


def assert_acts_as_recorded(policy, net):
    with np.load(net / "io.npz") as io:
        recorded = dict(io)
    states = [recorded[name] for name in ("state_in_0", "state_in_1") if name in recorded]
    actions, states_out, extras = policy.compute_actions(
        recorded["obs"], states or None, explore=False
    )
    np.testing.assert_array_equal(actions, recorded["actions"])
    found = {**extras, **{f"state_out_{index}": s for index, s in enumerate(states_out)}}
    for name in ("action_dist_inputs", "vf_preds", *(n for n in recorded if "state_out" in n)):
        # Outputs of the convolutions reach 200, and those that the two versions of Ray recorded,
        # of the same weights, differ by 9e-5.
        scale = max(1.0, np.abs(recorded[name]).max())
        np.testing.assert_allclose(found[name], recorded[name], rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("ray", RAYS)
def test_every_net_acts_as_recorded_whatever_its_weights_come_from(policy, ray, source):
    net = DATA / ray / policy.net
    if policy.net == "lstm" and source == "h5":
        pytest.skip("RLlib's Keras network is only the part below the LSTM: see the next test.")
    report = policy.import_rllib_weights(SOURCES[source](net))
    assert report.complete and set(report.loaded) == set(policy.start)
    assert_acts_as_recorded(policy, net)


@pytest.mark.parametrize("ray", RAYS)
def test_a_keras_network_below_an_lstm_lacks_the_lstm(policy, ray):
    if policy.net != "lstm":
        pytest.skip("The other nets are whole.")
    path = DATA / ray / "lstm/base_model.h5"
    with pytest.raises(ValueError, match=r"7 missing: lstm/lstm_cell/kernel.*`base_model` is"):
        policy.import_rllib_weights(path)
    np.testing.assert_equal(policy.get_weights(), policy.start)
    report = policy.import_rllib_weights(path, strict=False)
    assert report.loaded == {f"fc_1/{name}": f"fc_1/{name}:0" for name in ("kernel", "bias")}
    assert len(report.missing) == 7 and not report.complete
    changed = [n for n, w in policy.get_weights().items() if (w != policy.start[n]).any()]
    assert sorted(changed) == sorted(report.loaded)


def test_the_report_says_what_went_where_and_what_was_changed(policy):
    report = policy.import_rllib_weights(DATA / "ray-2.9.3" / policy.net / "weights.npz")
    if policy.net == "scoped":
        assert report.loaded["fc_1/kernel"] == "default_policy/fc_1/kernel"
        assert report.notes == () and report.left_out == ()
    if policy.net == "conv42":
        (note,) = report.notes
        assert note.startswith("conv1/kernel, conv_value_1/kernel: multiplied by 255")
        assert note in str(report)
    if policy.net == "lstm":
        assert len(report.left_out) == 4 and "fc_value_1/kernel" in report.left_out
        assert "nothing reads these below an LSTM" in str(report)


def test_weights_of_another_net_are_refused_and_change_nothing(policy):  # b7, j14
    other = {"fc_discrete": "scoped", "scoped": "fc_discrete"}.get(policy.net, "fc_discrete")
    with pytest.raises(ValueError, match="The weights do not fit"):
        policy.import_rllib_weights(DATA / "ray-2.9.3" / other / "weights.npz")
    np.testing.assert_equal(policy.get_weights(), policy.start)


# Below are networks of which there is no recording; numbers are worked out by hand or by NumPy.


def network_shapes(obs_space, action_space, config):
    with tf.Graph().as_default() as graph:
        build_network(obs_space, action_space, config, seed=0)
        variables = graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        return {variable.name[:-2]: tuple(variable.shape) for variable in variables}


def imported(weights, obs_space=OBS, action_space=THREE, strict=True, **model):
    config = PolicyConfig.from_dict({"model": model})
    shapes = network_shapes(obs_space, action_space, config)
    found, report = import_rllib(weights, obs_space, action_space, config, shapes, strict=strict)
    return found, report, config


def drawn(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def fully_connected(num_inputs, hidden, num_outputs, *, shared=False, scope=""):
    layers = {"fc_1": (num_inputs, hidden), "fc_out": (hidden, num_outputs)}
    if not shared:
        layers["fc_value_1"] = (num_inputs, hidden)
    layers["value_out"] = (hidden, 1)
    shapes = {}
    for layer, shape in layers.items():
        shapes[f"{scope}{layer}/kernel"], shapes[f"{scope}{layer}/bias"] = shape, shape[1:]
    return drawn(shapes)


@pytest.mark.parametrize("scope", ["", "default_policy/", "default_policy_wk1/", "var_scope_3/"])
def test_scopes_of_policies_and_workers_do_not_count(scope):  # b3
    weights = fully_connected(4, 5, 3, scope=scope)
    found, report, _ = imported(weights, fcnet_hiddens=[5])
    for name, value in found.items():
        np.testing.assert_array_equal(value, weights[scope + name])
        assert report.loaded[name] == scope + name


def test_bytes_among_other_observations_are_scaled_one_by_one():
    space = S.Dict(
        a=S.Box(0, 255, (2,), np.uint8), b=S.Box(0, 255, (2,), np.float32), c=S.Discrete(2)
    )
    weights = fully_connected(6, 5, 3)
    found, report, config = imported(weights, space, fcnet_hiddens=[5])
    ratios = found["fc_value_1/kernel"] / weights["fc_value_1/kernel"]
    np.testing.assert_allclose(ratios, np.outer([255, 255, 1, 1, 1, 1], np.ones(5)), rtol=1e-6)
    np.testing.assert_array_equal(found["fc_1/bias"], weights["fc_1/bias"])
    assert "fc_1/kernel, fc_value_1/kernel: multiplied by 255" in report.notes[0]
    # RLlib feeds 200, 10, 3.5, 7 and the one-hot choice.
    observed = np.array([[200, 10, 3.5, 7, 0, 1]], np.float32)
    hidden = np.tanh(observed @ weights["fc_1/kernel"] + weights["fc_1/bias"])
    expected = hidden @ weights["fc_out/kernel"] + weights["fc_out/bias"]
    with build_inference(space, THREE, config, found) as graph:
        outputs = graph.function(SERVING)(
            np.array([[200, 10]], np.uint8), np.array([[3.5, 7]], np.float32), np.array([1])
        )
    np.testing.assert_allclose(outputs["action_dist_inputs"], expected, rtol=1e-5, atol=1e-5)


def test_without_hidden_layers_the_heads_or_the_cell_read_the_bytes():
    space = S.Box(0, 255, (4,), np.uint8)
    weights = drawn({"fc_out/kernel": (4, 3), "fc_out/bias": (3,)})
    weights |= drawn({"value_out/kernel": (4, 1), "value_out/bias": (1,)})
    found, _, _ = imported(weights, space, fcnet_hiddens=[])
    for name in ("fc_out/kernel", "value_out/kernel"):
        np.testing.assert_allclose(found[name], 255 * weights[name], rtol=1e-6)
    weights = lstm(num_inputs=4 + 3 + 1)
    found, _, _ = imported(
        weights,
        space,
        fcnet_hiddens=[],
        lstm_use_prev_action=True,
        lstm_use_prev_reward=True,
        **LSTM,
    )
    ratios = found["lstm/lstm_cell/kernel"] / weights["lstm/lstm_cell/kernel"]
    np.testing.assert_allclose(ratios[:, 0], [255] * 4 + [1] * 4, rtol=1e-6)


def test_images_of_floats_are_not_scaled():
    space = S.Box(0, 255, (42, 42, 3), np.float32)
    path = DATA / "ray-2.9.3/conv42"
    filters = json.loads((path / "meta.json").read_text())["model"]["conv_filters"]
    found, report, _ = imported(path / "weights.npz", space, S.Discrete(4), conv_filters=filters)
    with np.load(path / "weights.npz") as recorded:
        np.testing.assert_array_equal(found["conv1/kernel"], recorded["conv1|kernel"])
    assert report.notes == ()


def test_the_value_head_on_shared_convolutions_is_reshaped():
    space = S.Box(0.0, 1.0, (4, 4, 1), np.float32)
    shapes = {
        "conv1/kernel": (4, 4, 1, 5), "conv1/bias": (5,),
        "conv_out/kernel": (1, 1, 5, 3), "conv_out/bias": (3,),
        "value_out/kernel": (5, 1), "value_out/bias": (1,),
    }  # fmt: skip
    weights = drawn(shapes)
    found, report, config = imported(weights, space, conv_filters=[[5, 4, 1]], vf_share_layers=True)
    assert found["value_out/kernel"].shape == (1, 1, 5, 1)
    assert report.notes[0].startswith("value_out/kernel: fully connected there")
    image = np.random.default_rng(1).uniform(0, 1, (2, 4, 4, 1)).astype(np.float32)
    kernel = weights["conv1/kernel"].reshape(16, 5)
    features = np.maximum(image.reshape(2, 16) @ kernel + weights["conv1/bias"], 0)
    values = features @ weights["value_out/kernel"] + weights["value_out/bias"]
    with build_inference(space, THREE, config, found) as graph:
        outputs = graph.function(SERVING)(image)
    np.testing.assert_allclose(outputs["vf_preds"], values[:, 0], atol=1e-5)


LSTM = {"use_lstm": True, "lstm_cell_size": 2, "vf_share_layers": True}


def lstm(num_inputs, cell="lstm/lstm_cell"):
    return drawn(
        {
            f"{cell}/kernel": (num_inputs, 8),
            f"{cell}/recurrent_kernel": (2, 8),
            f"{cell}/bias": (8,),
            "logits/kernel": (2, 3),
            "logits/bias": (3,),
            "values/kernel": (2, 1),
            "values/bias": (1,),
        }
    )


def test_the_cell_of_older_tensorflow_has_no_name_of_its_own():
    weights = {**fully_connected(4, 5, 3), **lstm(5, "default_policy/lstm")}
    del weights["fc_out/kernel"], weights["fc_out/bias"]
    found, report, _ = imported(weights, fcnet_hiddens=[5], **LSTM)
    assert report.loaded["lstm/lstm_cell/bias"] == "default_policy/lstm/bias"
    np.testing.assert_array_equal(
        found["lstm/lstm_cell/kernel"], weights["default_policy/lstm/kernel"]
    )


def test_free_log_std_is_a_weight_like_others():
    box = S.Box(-1.0, 1.0, (2,), np.float32)
    weights = {**fully_connected(4, 5, 2), "log_std": np.array([-0.5, 0.25], np.float32)}
    found, _, _ = imported(weights, action_space=box, fcnet_hiddens=[5], free_log_std=True)
    np.testing.assert_array_equal(found["log_std"], weights["log_std"])
    # A variable outside of all layers is in no file of Keras.
    del weights["log_std"]
    with pytest.raises(ValueError, match="1 missing: log_std"):
        imported(weights, action_space=box, fcnet_hiddens=[5], free_log_std=True)


def test_an_action_mask_is_no_input_of_the_network():
    space = S.Dict(action_mask=S.MultiBinary(3), observations=S.Box(0, 255, (4,), np.uint8))
    weights = fully_connected(4, 5, 3, scope="internal_model/")
    found, _, _ = imported(weights, space, fcnet_hiddens=[5])
    np.testing.assert_allclose(
        found["fc_1/kernel"], 255 * weights["internal_model/fc_1/kernel"], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("weights", "model", "hint"),
    [
        (fully_connected(4, 5, 3), {"vf_share_layers": True}, "Set `vf_share_layers` .*to False"),
        (fully_connected(4, 5, 3, shared=True), {}, "Set `vf_share_layers` of the model to True"),
        ({**fully_connected(4, 5, 3), **lstm(5)}, {}, "LSTM: set `use_lstm` and `vf_share_layers`"),
        (fully_connected(4, 5, 3), LSTM, "RLlib's `base_model` is the network below"),
    ],
)
def test_the_setting_that_would_fit_is_named(weights, model, hint):
    with pytest.raises(ValueError, match=hint):
        imported(weights, fcnet_hiddens=[5], **model)


def test_moments_of_an_observation_filter_are_given_beside_the_weights():
    weights = fully_connected(4, 5, 3)
    config = PolicyConfig.from_dict(
        {"model": {"fcnet_hiddens": [5]}, "observation_filter": "MeanStdFilter"}
    )
    shapes = network_shapes(OBS, THREE, config)
    with pytest.raises(ValueError, match="3 missing: observation_filter/count.* moments .*elsewhe"):
        import_rllib(weights, OBS, THREE, config, shapes)
    moments = {
        "observation_filter/count": np.int64(9),
        "observation_filter/obs/mean": np.arange(4.0),
        "observation_filter/obs/variance": np.arange(4.0) + 1,
    }
    found, report = import_rllib({**weights, **moments}, OBS, THREE, config, shapes)
    assert report.complete and found["observation_filter/count"] == 9
    np.testing.assert_array_equal(found["observation_filter/obs/mean"], np.arange(4.0))


IMAGES = S.Dict(image=S.Box(0, 255, (42, 42, 3), np.uint8), rest=S.Box(-1.0, 1.0, (2,)))


@pytest.mark.parametrize(
    ("space", "model", "message"),
    [
        (OBS, {"use_attention": True, "attention_dim": 4}, "this policy has use_attention"),
        (OBS, {"use_gru": True}, "this policy has use_gru"),
        (IMAGES, {}, "several parts, images among them"),
        (OBS, {"use_lstm": True}, "one LSTM for the policy and its values: set `vf_share_layers`"),
    ],
)
def test_networks_that_are_others_in_rllib_are_refused(space, model, message):
    with pytest.raises(ValueError, match=message):
        imported(fully_connected(4, 256, 3), space, strict=False, **model)


def test_weights_without_a_known_name_are_never_matched_by_their_order():  # j14
    weights = fully_connected(4, 5, 3)
    order = ["fc_1", "fc_out", "fc_value_1", "value_out"]
    foreign = {f"x{order.index(n.split('/')[0])}/{n.split('/')[1]}": v for n, v in weights.items()}
    for strict in (True, False):
        with pytest.raises(ValueError, match="No name of this policy's 8 weights|0 weights match"):
            imported(foreign, fcnet_hiddens=[5], strict=strict)


def test_observations_that_rllib_changes_by_itself_are_warned_of():
    space = S.Box(0, 255, (128,), np.uint8)
    with pytest.warns(UserWarning, match="vectors of length 128.*_disable_preprocessor_api"):
        imported(fully_connected(128, 5, 3), space, fcnet_hiddens=[5])


class Ported(Model):
    """A model whose layers are called as they were in RLlib."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        get = tf.compat.v1.get_variable
        self.kernel = get("my_out/kernel", [4, self.num_outputs])
        self.values = get("my_values/kernel", [4, 1])

    def __call__(self, columns):
        features = flatten_observation(self.observation_space, columns["obs"])
        return ModelOutput(features @ self.kernel, (features @ self.values)[:, 0])


def test_a_custom_model_gets_its_weights_by_their_names():
    weights = drawn(
        {"default_policy/my_values/kernel": (4, 1), "default_policy/my_out/kernel": (4, 3)}
    )
    found, _, _ = imported(weights, custom_model=Ported)
    np.testing.assert_array_equal(found["my_out/kernel"], weights["default_policy/my_out/kernel"])
