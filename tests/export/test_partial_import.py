"""Files that hold other weights than a policy has: what fits is loaded on request, and reported."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from small_policies import OBS, small_policy

from tfpolicy.export.h5 import read_h5, write_h5
from tfpolicy.models import Model, ModelOutput
from tfpolicy.preprocessing import flatten_observation

LIBRARIES = pytest.mark.parametrize("library", [tf_keras, keras], ids=["tf_keras", "keras3"])
FORMS = pytest.mark.parametrize("form", ["model.h5", "numbered.weights.h5"])
POLICY = ["fc_1/bias", "fc_1/kernel", "fc_out/bias", "fc_out/kernel"]
VALUE = ["fc_value_1/bias", "fc_value_1/kernel", "value_out/bias", "value_out/kernel"]


class ActorCritic(Model):
    """Two Keras networks, whose layers have the same names within theirs."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.actor = self._network("actor", self.num_outputs)
        self.critic = self._network("critic", 1)

    def _network(self, name, width):
        with tf.name_scope(f"{name}/"):
            dense = tf_keras.layers.Dense
            network = tf_keras.Sequential([dense(5, "tanh", name="hidden"), dense(width)], name)
            network.build((None, 4))
        return network

    def __call__(self, columns):
        features = flatten_observation(self.observation_space, columns["obs"])
        return ModelOutput(self.actor(features), tf.squeeze(self.critic(features), axis=1))


class KerasActorCritic(tf_keras.Model):
    """The same as a Keras class."""

    def __init__(self, observation_space, action_space, num_outputs):
        super().__init__()
        self.actor = tf_keras.layers.Dense(num_outputs, name="actor")
        self.critic = tf_keras.layers.Dense(1, name="critic")

    def call(self, columns):
        obs = columns["obs"]
        return ModelOutput(self.actor(obs), tf.squeeze(self.critic(obs), axis=1))


@pytest.fixture(scope="module")
def policy():
    with small_policy() as built:
        built.start = built.get_weights()
        yield built


@pytest.fixture(autouse=True)
def _as_it_was(policy):
    yield
    policy.set_weights(policy.start)


def sequential(weights, start=1):
    """Weights of the same shapes, every number of which differs."""
    made = {}
    for name, value in weights.items():
        made[name] = (np.arange(start, start + value.size) / 100).reshape(value.shape).astype("f")
        start += value.size
    return made


def written(path, weights):
    """A file that holds the weights under their names."""
    layers = {}
    for name, value in weights.items():
        layers.setdefault(name.rpartition("/")[0], []).append((name, value))
    write_h5(path, list(layers.items()))
    return path


def changed(policy, before):
    after = policy.get_weights()
    return sorted(name for name in before if not np.array_equal(after[name], before[name]))


def observations():
    return np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)


def write_critic(library, widths, path):
    """A critic of Keras, in a file; returns the values of the observations.

    They are computed at once: tf_keras does not call a model any more once another one was built
    in a graph.
    """
    layers = [library.layers.Input((4,))]
    for index, width in enumerate(widths):
        layers.append(library.layers.Dense(width, "tanh" if index < len(widths) - 1 else None))
    network = library.Sequential(layers)
    network.set_weights(list(sequential(dict(enumerate(network.get_weights()))).values()))
    values = np.asarray(network(observations()))[:, 0]
    (network.save if path.name == "model.h5" else network.save_weights)(path)
    return values


def test_a_whole_file_is_reported_whole(policy, tmp_path):
    weights = sequential(policy.start)
    report = policy.import_model_from_h5(written(tmp_path / "w.h5", weights))
    assert report.complete and report.by == "name"
    assert report.loaded == {name: f"{name}:0" for name in weights}
    assert not (report.missing or report.unexpected or report.mis_shaped or report.left_out)
    assert "8 weights loaded by name:" in str(report)
    assert "  fc_1/kernel <- fc_1/kernel:0" in str(report)


def test_what_fits_is_loaded_and_the_rest_is_reported(policy, tmp_path):  # b7, g22
    weights = sequential(policy.start)
    weights["fc_out/kernel"], weights["fc_out/bias"] = np.ones((8, 5)), np.ones(5)
    weights["fc_2/kernel"] = np.ones((8, 8))
    del weights["value_out/kernel"], weights["value_out/bias"]
    path = written(tmp_path / "w.h5", weights)
    with pytest.raises(ValueError, match="2 missing: .*2 mis-shaped"):
        policy.import_model_from_h5(path)
    assert changed(policy, policy.start) == []
    report = policy.import_model_from_h5(path, strict=False)
    assert not report.complete
    assert (
        sorted(report.loaded) == changed(policy, policy.start) == sorted([*POLICY[:2], *VALUE[:2]])
    )
    assert sorted(report.missing) == VALUE[2:]
    assert report.unexpected == ("fc_2/kernel:0",)
    assert len(report.mis_shaped) == 2 and "expected (8, 3), got (8, 5)" in report.mis_shaped[0]
    for line in ("4 weights loaded", "2 missing: ", "2 mis-shaped: ", "1 unexpected: fc_2"):
        assert line in str(report)


@pytest.mark.parametrize("strict", [True, False])
def test_a_list_of_layers_limits_what_is_loaded(policy, tmp_path, strict):
    weights = sequential(policy.start)
    weights["fc_out/kernel"] = np.ones((8, 5))
    weights["other/kernel"] = np.ones(3)
    path = written(tmp_path / "w.h5", weights)
    report = policy.import_model_from_h5(path, strict, layers=["fc_1", "value_out"])
    assert report.complete
    assert sorted(report.loaded) == changed(policy, policy.start) == [*POLICY[:2], *VALUE[2:]]
    assert sorted(report.left_out) == [
        *("fc_out/bias:0", "fc_out/kernel:0"),
        *("fc_value_1/bias:0", "fc_value_1/kernel:0"),
        "other/kernel:0",
    ]
    assert "5 left out: " in str(report)


@pytest.mark.parametrize(
    "limit", [{"layers": ["fc_1", "fc_out"]}, {"network": "policy"}], ids=["layers", "network"]
)
def test_what_is_asked_for_must_be_there_unless_strict_is_off(policy, tmp_path, limit):  # b9
    weights = sequential(policy.start)
    weights["fc_out/kernel"] = np.ones((8, 5))
    del weights["fc_out/bias"]
    path = written(tmp_path / "w.h5", weights)
    with pytest.raises(
        ValueError, match=r"model's 4: .*missing: fc_out/bias; 1 mis-shaped: `fc_out"
    ):
        policy.import_model_from_h5(path, **limit)
    assert changed(policy, policy.start) == []
    report = policy.import_model_from_h5(path, strict=False, **limit)
    assert changed(policy, policy.start) == POLICY[:2]
    assert report.missing == ("fc_out/bias",) and len(report.mis_shaped) == 1


@pytest.mark.parametrize("limit", [{}, {"layers": ["fc_1"]}, {"network": "value"}])
def test_a_file_of_which_nothing_fits_is_refused_in_any_case(policy, tmp_path, limit):  # b7, g25
    weights = {name: np.ones(99) for name in policy.start}
    path = written(tmp_path / "w.h5", weights)
    for strict in (True, False):
        with pytest.raises(ValueError, match="0 weights match"):
            policy.import_model_from_h5(path, strict, **limit)
    assert changed(policy, policy.start) == []


@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        ({"layers": ["fc_7"]}, KeyError, "no layer 'fc_7'; there are: fc_1, fc_value_1, fc_out"),
        ({"network": "critic"}, KeyError, "no network 'critic'; there are: policy, value"),
        ({"network": "value", "layers": ["fc_1"]}, KeyError, "there are: fc_value_1, value_out"),
        ({"layers": []}, ValueError, "`layers` must be a list of names"),
        ({"layers": "fc_1"}, ValueError, "`layers` must be a list of names"),
    ],
)
def test_unknown_layers_and_networks_are_named(policy, tmp_path, limit, error, message):
    path = written(tmp_path / "w.h5", sequential(policy.start))
    with pytest.raises(error, match=message):
        policy.import_model_from_h5(path, **limit)
    assert changed(policy, policy.start) == []


@pytest.mark.parametrize(("network", "names"), [("policy", POLICY), ("value", VALUE)])
def test_one_network_is_taken_from_a_file_of_the_whole_policy(policy, tmp_path, network, names):
    weights = sequential(policy.start)
    policy.import_model_from_h5(written(tmp_path / "w.h5", weights), network=network)
    assert changed(policy, policy.start) == names
    for name in names:
        np.testing.assert_array_equal(policy.get_weights()[name], weights[name])


@LIBRARIES
@FORMS
def test_a_critic_trained_elsewhere_becomes_the_value_network(policy, tmp_path, library, form):
    values = write_critic(library, [8, 1], tmp_path / form)
    report = policy.import_model_from_h5(tmp_path / form, network="value")
    assert report.by == "order" and changed(policy, policy.start) == VALUE
    _, _, extras = policy.compute_actions(observations(), explore=False)
    np.testing.assert_allclose(extras["vf_preds"], values, atol=1e-6)


def test_layers_of_the_policy_are_copied_into_its_value_network(policy, tmp_path):
    weights = sequential({name: policy.start[name] for name in POLICY[1::-1]})
    path = written(tmp_path / "w.h5", weights)
    report = policy.import_model_from_h5(path, network="value", layers=["fc_value_1"])
    assert report.loaded["fc_value_1/kernel"] == "fc_1/kernel:0" and report.by == "order"
    found = policy.get_weights()
    np.testing.assert_array_equal(found["fc_value_1/kernel"], weights["fc_1/kernel"])
    np.testing.assert_array_equal(found["fc_1/kernel"], policy.start["fc_1/kernel"])


def test_layers_of_a_file_with_other_names_are_chosen_by_their_place(policy, tmp_path):
    weights = sequential(policy.start)
    order = ["fc_1", "fc_value_1", "fc_out", "value_out"]
    foreign = {
        f"dense_{order.index(layer)}/{name}": weights[f"{layer}/{name}"]
        for layer in order
        for name in ("kernel", "bias")
    }
    path = written(tmp_path / "w.h5", foreign)
    report = policy.import_model_from_h5(path, layers=["fc_out"])
    assert report.loaded == {f"fc_out/{w}": f"dense_2/{w}:0" for w in ("kernel", "bias")}
    assert changed(policy, policy.start) == POLICY[2:]


@pytest.mark.parametrize(
    ("model", "in_both"),
    [
        ({"fcnet_hiddens": [4], "vf_share_layers": True}, ["fc_1"]),
        ({"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 3}, []),
        (
            {"fcnet_hiddens": [4], "use_gru": True, "lstm_cell_size": 3, "vf_share_layers": True},
            ["fc_1", "gru"],
        ),
    ],
)
def test_shared_layers_belong_to_both_networks(model, in_both, tmp_path):
    with small_policy(model=model) as policy:
        start = policy.get_weights()
        path = written(tmp_path / "w.h5", sequential(start))
        loaded = []
        for network in ("policy", "value"):
            policy.import_model_from_h5(path, network=network)
            loaded.append(changed(policy, start))
            policy.set_weights(start)
    assert sorted({*loaded[0], *loaded[1]}) == sorted(start)
    assert {name.partition("/")[0] for name in {*loaded[0]} & {*loaded[1]}} == set(in_both)


@LIBRARIES
@FORMS
def test_each_network_of_a_custom_model_has_its_name(library, form, tmp_path):  # b12
    values = write_critic(library, [5, 1], tmp_path / form)
    with small_policy(model={"custom_model": ActorCritic}) as policy:
        start = policy.get_weights()
        policy.import_model_from_h5(tmp_path / form, network="critic")
        names = changed(policy, start)
        assert len(names) == 4 and all(name.startswith("critic/") for name in names)
        _, _, extras = policy.compute_actions(observations(), explore=False)
    np.testing.assert_allclose(extras["vf_preds"], values, atol=1e-6)


def test_names_in_a_file_do_not_depend_on_what_was_built_before(tmp_path):  # b10
    names = []
    for path in (tmp_path / "first.h5", tmp_path / "second.h5"):
        tf_keras.Sequential([tf_keras.layers.Dense(3), tf_keras.layers.Dense(2)])
        with small_policy(model={"custom_model": ActorCritic}) as policy:
            policy.export_model_to_h5(path)
        names.append([name for _, weights in read_h5(path) for name, _ in weights])
    assert names[0] == names[1] and len(names[0]) == 8


def test_the_parts_of_a_keras_class_are_its_networks(tmp_path):  # b12
    with small_policy(obs_space=OBS, model={"custom_model": KerasActorCritic}) as policy:
        start = policy.get_weights()
        policy.export_model_to_h5(tmp_path / "w.h5")
        policy.set_weights(sequential(start))
        report = policy.import_model_from_h5(tmp_path / "w.h5", network="actor")
        assert sorted(report.loaded) == ["actor/bias", "actor/kernel"]
        with pytest.raises(KeyError, match="there are: actor, critic"):
            policy.import_model_from_h5(tmp_path / "w.h5", network="value")
