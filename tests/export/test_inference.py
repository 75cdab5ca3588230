"""The inference graph takes raw observations and gives the environment's actions."""

import keyword

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import Recurrent

from tfpolicy.config import PolicyConfig
from tfpolicy.export.inference import INITIAL_STATE, SAMPLE, SERVING, build_inference
from tfpolicy.graph.network import build_network
from tfpolicy.graph.session import variable_names
from tfpolicy.models import Model, ModelOutput
from tfpolicy.spaces import normalized_space
from tfpolicy.view_requirement import ViewRequirement

S = gym.spaces
OBS = S.Box(-1.0, 1.0, (4,), np.float32)
SKEWED = S.Box(np.float32([-2, 0]), np.float32([6, 1]))
INF = np.inf


def build(obs_space, action_space, seed=0, **config):
    """An inference graph with drawn weights, and those weights."""
    config = PolicyConfig.from_dict({"model": {"fcnet_hiddens": [8]}, **config})
    with tf.Graph().as_default() as graph:
        build_network(obs_space, action_space, config, seed=0)
        variables = graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    rng = np.random.default_rng(seed)
    weights = {
        name: rng.normal(0, 0.5, variable.shape).astype(np.float32)
        for name, variable in zip(variable_names(variables), variables, strict=True)
    }
    return build_inference(obs_space, action_space, config, weights), weights


def observations(rows=5, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, (rows, 4)).astype(np.float32)


def logits_and_values(weights, obs):
    hidden, value_hidden = (
        np.tanh(obs @ weights[f"{layer}/kernel"] + weights[f"{layer}/bias"])
        for layer in ("fc_1", "fc_value_1")
    )
    logits = hidden @ weights["fc_out/kernel"] + weights["fc_out/bias"]
    values = value_hidden @ weights["value_out/kernel"] + weights["value_out/bias"]
    return logits, values[:, 0]


# What goes in and what comes out.


@pytest.mark.parametrize(
    ("obs_space", "inputs"),
    [
        (OBS, {"obs": "float32"}),
        (S.Box(0, 255, (2, 2, 1), np.uint8), {"obs": "uint8"}),
        (S.Box(-1, 1, (2,), np.float64), {"obs": "float64"}),
        (
            S.Dict(pos=OBS, rest=S.Tuple([S.Discrete(3, start=-1), S.MultiBinary(2)])),
            {"obs_pos": "float32", "obs_rest_0": "int64", "obs_rest_1": "int8"},
        ),
        (S.Tuple([S.MultiDiscrete([2, 3]), OBS]), {"obs_0": "int64", "obs_1": "float32"}),
        (S.Dict({"a b": OBS, "a/b": S.Discrete(2)}), {"obs_a_b": "float32", "obs_a_b_2": "int64"}),
    ],
    ids=["plain", "image", "float64", "nested", "tuple", "no_identifiers"],
)
def test_every_leaf_of_the_observation_is_an_input_of_its_own_dtype(obs_space, inputs):  # a10
    graph, _ = build(obs_space, S.Discrete(3))
    with graph:
        for name in (SERVING, SAMPLE):
            tensors = graph.signatures[name].inputs
            assert {key: tensor.dtype.name for key, tensor in tensors.items()} == inputs
        assert graph.input_names == list(inputs)


@pytest.mark.parametrize(
    ("action_space", "dtype", "shape"),
    [
        (S.Discrete(3, start=2), "int64", []),
        (S.Box(-2, 5, (2,)), "float32", [2]),
        (S.Box(-INF, INF, (2, 3)), "float32", [2, 3]),
        (S.Box(-2, 5, (2,), np.float64), "float64", [2]),
        (S.Box(-2, 5, (2,), np.int16), "int16", [2]),
        (S.Box(0, 1, (2,), np.bool_), "bool", [2]),
        (S.MultiDiscrete([2, 3]), "int64", [2]),
        (S.MultiBinary(3), "int8", [3]),
    ],
    ids=str,
)
def test_actions_have_the_dtype_and_the_shape_of_the_space(action_space, dtype, shape):  # a7, e3
    graph, _ = build(OBS, action_space)
    with graph:
        for name in (SERVING, SAMPLE):
            actions = graph.signatures[name].outputs["actions"]
            assert (actions.dtype.name, actions.shape.as_list()) == (dtype, [None, *shape])
            for action in graph.function(name)(observations())["actions"]:
                assert action_space.contains(action)


@pytest.mark.parametrize("recurrent", [False, True])
def test_names_are_identifiers_and_the_batch_dimension_leads_and_is_free(recurrent):  # a1, a19
    model = {"fcnet_hiddens": [4], **({"custom_model": Recurrent} if recurrent else {})}
    graph, _ = build(OBS, S.Discrete(3), model=model)
    with graph:
        assert set(graph.signatures) == {SERVING, SAMPLE, *([INITIAL_STATE] if recurrent else [])}
        for signature in graph.signatures.values():
            for name, tensor in [*signature.inputs.items(), *signature.outputs.items()]:
                assert name.isidentifier() and not keyword.iskeyword(name)
                assert tensor.shape.rank >= 1 and tensor.shape[0] is None


def test_two_columns_of_one_input_name_are_refused():
    class Window(Reader):
        def view_requirements(self):
            return {"obs_0": ViewRequirement("rewards", shift=-1)}

        def read(self, columns):
            return columns["obs"][0] + columns["obs_0"][:, None]

    with pytest.raises(ValueError, match="Two columns that the model reads have the input 'obs_0"):
        build(S.Tuple([OBS]), S.Discrete(4), model={"custom_model": Window})


# What it computes.


def test_the_deterministic_signature_equals_the_formulas():
    graph, weights = build(OBS, S.Discrete(3, start=2))
    obs = observations()
    logits, values = logits_and_values(weights, obs)
    with graph:
        found = graph.function(SERVING)(obs)
    np.testing.assert_array_equal(found["actions"], 2 + logits.argmax(1))
    np.testing.assert_allclose(found["action_dist_inputs"], logits, atol=1e-6)
    np.testing.assert_allclose(found["vf_preds"], values, atol=1e-6)
    logp = logits.max(1) - np.log(np.exp(logits).sum(1))
    np.testing.assert_allclose(found["action_logp"], logp, atol=1e-6)  # j11


@pytest.mark.parametrize(
    ("config", "formula"),
    [
        ({}, lambda mean: np.clip(np.float32([2, 0.5]) + np.float32([4, 0.5]) * mean, *BOUNDS)),
        ({"normalize_actions": False, "clip_actions": True}, lambda mean: np.clip(mean, *BOUNDS)),
        ({"normalize_actions": False, "clip_actions": False}, lambda mean: mean),
        ({"clip_actions": True}, lambda mean: np.clip([2, 0.5] + [4, 0.5] * mean, *BOUNDS)),
    ],
    ids=["unsquashed", "clipped", "raw", "unsquashing_wins"],
)
def test_actions_are_brought_to_the_environment_as_the_config_says(config, formula):  # h12
    graph, weights = build(OBS, SKEWED, seed=3, **config)
    mean = logits_and_values(weights, observations())[0][:, :2]
    with graph:
        found = graph.function(SERVING)(observations())["actions"]
    np.testing.assert_allclose(found, formula(mean), atol=1e-6)
    assert (np.abs(mean) > 1).any()


BOUNDS = (SKEWED.low, SKEWED.high)


def test_rows_do_not_depend_on_the_batch_they_are_in():  # a22, e25
    graph, _ = build(OBS, S.Box(-2, 5, (2,)))
    obs = observations(7)
    with graph:
        act = graph.function(SERVING)
        together = act(obs)
        for index in range(7):
            for name, value in act(obs[index : index + 1]).items():
                np.testing.assert_allclose(value[0], together[name][index], atol=1e-6)
        assert act(obs[:0])["actions"].shape == (0, 2)


def test_samples_follow_the_distribution_and_have_their_own_log_probability():
    graph, weights = build(OBS, S.Discrete(3))
    obs = np.repeat(observations(1), 20_000, axis=0)
    logits = logits_and_values(weights, obs[:1])[0][0]
    probabilities = np.exp(logits) / np.exp(logits).sum()
    with graph:
        found = graph.function(SAMPLE)(obs)
    frequencies = np.bincount(found["actions"], minlength=3) / len(obs)
    np.testing.assert_allclose(frequencies, probabilities, atol=0.02)
    np.testing.assert_allclose(
        np.exp(found["action_logp"]), probabilities[found["actions"]], rtol=1e-4
    )


def test_two_replicas_do_not_draw_in_step():
    graphs = [build(OBS, S.Box(-1, 1, (3,)))[0] for _ in range(2)]
    draws = [
        graph.function(SAMPLE)(observations())["actions"].tobytes()
        for graph in graphs
        for _ in "ab"
    ]
    for graph in graphs:
        graph.close()
    assert len(set(draws)) == 4


# Recurrent networks and other columns.


def test_the_state_goes_in_and_comes_out_by_name():  # a1, a25, j16
    graph, w = build(OBS, S.Discrete(3), model={"custom_model": Recurrent, "fcnet_hiddens": [4]})
    obs, state = observations(3), np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    with graph:
        assert graph.input_names == ["obs", "state_in_0"]
        found = graph.function(SERVING)(obs, state)
    after = np.tanh(obs @ w["w"] + w["b"] + state @ w["u"])
    np.testing.assert_allclose(found["state_out_0"], after, atol=1e-6)
    np.testing.assert_allclose(found["vf_preds"], (after @ w["out"])[:, -1], atol=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_initial_state_has_as_many_rows_as_its_input_has_elements(rows):  # a15
    graph, _ = build(OBS, S.Discrete(3), model={"custom_model": Recurrent, "fcnet_hiddens": [4]})
    with graph:
        found = graph.function(INITIAL_STATE)(np.full(rows, 7, np.int32))
    assert found.keys() == {"state_in_0"}
    expected = np.repeat(np.linspace(-0.5, 0.5, 4, dtype=np.float32)[None], rows, axis=0)
    np.testing.assert_array_equal(found["state_in_0"], expected)


class Reader(Model):
    """Passes what `read` makes of the columns on, as distribution inputs and as state."""

    def read(self, columns):
        raise NotImplementedError

    def __call__(self, columns):
        rows = tf.cast(self.read(columns), tf.float32)
        return ModelOutput(rows[:, : self.num_outputs] + self.scale * 0.0, None, ())

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scale = tf.compat.v1.get_variable("scale", [], tf.float32, use_resource=True)


def test_an_input_that_is_passed_through_is_an_output_of_its_own():
    class PassingThrough(Reader):
        def initial_state(self):
            return [np.zeros(4, np.float32)]

        def __call__(self, columns):
            return ModelOutput(columns["obs"], None, (columns["state_in_0"],))

    graph, _ = build(OBS, S.Discrete(4), model={"custom_model": PassingThrough})
    with graph:
        names = [
            [tensor.name for tensor in [*signature.inputs.values(), *signature.outputs.values()]]
            for signature in graph.signatures.values()
        ]
        assert all(len(set(tensors)) == len(tensors) for tensors in names)
        state = np.ones((1, 4), np.float32)
        found = graph.function(SERVING)(observations(1), state)
        np.testing.assert_array_equal(found["state_out_0"], state)
        assert "vf_preds" not in found


@pytest.mark.parametrize(
    ("action_space", "given", "read"),
    [
        (SKEWED, np.float32([[6, 0.25], [2, 0.5]]), [[1, -0.5], [0, 0]]),
        (S.Box(0, 4, (2,), np.float64), np.array([[1.0, 4.0]]), [[-0.5, 1]]),
        (S.Box(-INF, INF, (2,)), np.float32([[7, -7]]), [[7, -7]]),
        (S.MultiDiscrete([5, 5]), np.array([[4, 1]]), [[4, 1]]),
    ],
    ids=["unsquashed", "float64", "unbounded", "discrete"],
)
def test_previous_actions_are_given_as_the_environment_took_them(action_space, given, read):
    seen = []

    class PreviousActions(Reader):
        def read(self, columns):
            seen.append(columns["prev_actions"])
            return tf.concat([tf.cast(columns["prev_actions"], tf.float32)] * 5, axis=1)

    model = {"custom_model": PreviousActions}
    graph, _ = build(OBS, action_space, model=model)
    with graph:
        assert graph.input_names == ["obs", "prev_actions"]
        dtype = graph.signatures[SERVING].inputs["prev_actions"].dtype
        assert dtype == action_space.dtype
        found = graph.function(SERVING)(observations(len(given)), given)
    np.testing.assert_allclose(found["action_dist_inputs"][:, :2], read)
    own = normalized_space(action_space)
    assert seen[-1].dtype == (tf.float32 if own.dtype.kind == "f" else own.dtype)


def test_windows_of_previous_actions_and_rewards_are_inputs_too():
    class Windows(Reader):
        def view_requirements(self):
            return {"last_actions": ViewRequirement("actions", shift="-2:-1")}

        def read(self, columns):
            return columns["last_actions"][:, 0] + columns["prev_rewards"][:, None]

    free = {"custom_model": Windows, "custom_action_dist": "deterministic"}
    graph, _ = build(OBS, SKEWED, model=free)
    with graph:
        assert graph.input_names == ["obs", "last_actions", "prev_rewards"]
        window = np.float32([[[6, 1], [-2, 0]]])
        found = graph.function(SERVING)(observations(1), window, np.float32([0.5]))
    np.testing.assert_allclose(found["action_dist_inputs"], [[1.5, 1.5]])


def test_what_nothing_depends_on_is_no_input():  # a9
    class LastTwo(Reader):
        def view_requirements(self):
            return {"frames": ViewRequirement("obs", shift="-1:0")}

        def read(self, columns):
            rows = tf.cast(columns["frames"]["a"][:, 1] + columns["seq_lens"][:, None], tf.float32)
            return rows + tf.cast(columns["frames_valid"][:, :1], tf.float32)

    space = S.Dict(a=S.Box(-9, 9, (3,), np.int32), b=S.Discrete(3))
    graph, _ = build(space, S.Discrete(3), model={"custom_model": LastTwo})
    with graph:
        for name in (SERVING, SAMPLE):
            inputs = graph.signatures[name].inputs
            assert {key: tensor.shape.as_list() for key, tensor in inputs.items()} == {
                "frames_a": [None, 2, 3],
                "frames_valid": [None, 2],
            }
        # What acts in this process may be given everything all the same.
        assert graph.input_names == ["obs_a", "obs_b", "frames_a", "frames_b", "frames_valid"]
        obs = {"a": np.zeros((1, 3), np.int32), "b": np.zeros(1, np.int64)}
        frames = {"a": np.int32([[[0, 0, 0], [3, 2, 1]]]), "b": np.zeros((1, 2), np.int64)}
        columns = {"obs": obs, "frames": frames, "frames_valid": np.array([[False, True]])}
        found = graph.function(SERVING)(*graph.acting_inputs().arrays(columns))
    np.testing.assert_array_equal(found["action_dist_inputs"], [[4, 3, 2]])


# What it is made of.


def test_there_is_nothing_in_it_but_what_acting_needs():
    graph, weights = build(OBS, S.Discrete(3))
    with graph:
        operations = graph.graph_session.graph.get_operations()
        kinds = [operation.type for operation in operations]
        random = [o.name for o in operations if "Random" in o.type or o.type == "Qr"]
        assert random == ["seed"]
        assert kinds.count("VarHandleOp") == len(weights)
        assert kinds.count("Placeholder") == 2  # `obs`, and the input that Keras makes.
        assert not [kind for kind in kinds if kind.startswith("Resource") or "Grad" in kind]
        assert len(kinds) < 150


def test_weights_that_do_not_fit_are_listed():
    with pytest.raises(
        ValueError, match="missing: fc_out/bias.*unexpected: other.*fc_1/kernel: exp"
    ):
        config = PolicyConfig.from_dict({"model": {"fcnet_hiddens": [8]}})
        graph, weights = build(OBS, S.Discrete(3))
        graph.close()
        del weights["fc_out/bias"]
        weights |= {"other": np.zeros(1), "fc_1/kernel": np.zeros((1, 2))}
        build_inference(OBS, S.Discrete(3), config, weights)


def test_a_closed_graph_says_so():
    graph, _ = build(OBS, S.Discrete(3))
    act = graph.function(SERVING)
    graph.close()
    with pytest.raises(RuntimeError, match="closed"):
        act(observations())
