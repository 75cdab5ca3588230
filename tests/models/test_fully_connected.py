"""The fully connected network against a slow reference."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.config import ModelConfig
from tfpolicy.models import FullyConnected, model_for

S = gym.spaces
OBS = S.Box(-np.inf, np.inf, (3,))


class Built:
    """A network in a graph of its own."""

    def __init__(self, space=OBS, num_outputs=4, seed=1, **config):
        self.graph = tf.Graph()
        self.session = tf.compat.v1.Session(graph=self.graph)
        with self.graph.as_default(), self.session.as_default():
            self.model = model_for(space, None, num_outputs, ModelConfig(**config), seed)
            self.session.run(tf.compat.v1.global_variables_initializer())
            variables = self.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
            self.weights = self.session.run({v.name.removesuffix(":0"): v for v in variables})

    def __call__(self, obs):
        with self.graph.as_default(), self.session.as_default():
            obs = tf.nest.map_structure(tf.constant, obs)
            return self.session.run(self.model({"obs": obs})[:2])


ACTIVATIONS = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0), "linear": lambda x: x}


def forward(weights, names, x, activation):
    for name in names:
        x = activation(x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"])
    return x


def randomised(built):
    """Replaces the initial weights, of which many are 0, by others."""
    rng = np.random.default_rng(0)
    with built.graph.as_default():
        variables = built.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        for variable in variables:
            name = variable.name.removesuffix(":0")
            built.weights[name] = rng.normal(0, 0.7, variable.shape).astype(np.float32)
            variable.load(built.weights[name], built.session)
    return built


X = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)


@pytest.mark.parametrize("share", [False, True], ids=["own layers", "shared layers"])
@pytest.mark.parametrize(
    ("hiddens", "activation"), [((6, 5), "tanh"), ((4,), "relu"), ((), "tanh"), ((3,), "linear")]
)
def test_outputs_and_values_are_those_of_the_layers_in_turn(hiddens, activation, share):
    built = randomised(
        Built(fcnet_hiddens=hiddens, fcnet_activation=activation, vf_share_layers=share)
    )
    layers = [f"fc_{index + 1}" for index in range(len(hiddens))]
    value_layers = layers if share else [name.replace("fc", "fc_value") for name in layers]
    expected = {f"{n}/{part}" for n in (*layers, *value_layers) for part in ("kernel", "bias")}
    heads = {f"{n}/{part}" for n in ("fc_out", "value_out") for part in ("kernel", "bias")}
    assert set(built.weights) == expected | heads
    hidden, value_hidden = (
        forward(built.weights, names, X, ACTIVATIONS[activation])
        for names in (layers, value_layers)
    )
    outputs, values = built(X)
    linear = ACTIVATIONS["linear"]
    np.testing.assert_allclose(
        outputs, forward(built.weights, ["fc_out"], hidden, linear), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        values, forward(built.weights, ["value_out"], value_hidden, linear)[:, 0],
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


def test_free_log_stds_are_the_same_for_every_observation_and_learned():
    built = randomised(Built(free_log_std=True, fcnet_hiddens=(4,)))
    outputs, _ = built(X)
    assert built.weights["fc_out/kernel"].shape == (4, 2)
    np.testing.assert_array_equal(outputs[:, 2:], np.tile(built.weights["log_std"], (5, 1)))
    hidden = forward(built.weights, ["fc_1"], X, np.tanh)
    means = forward(built.weights, ["fc_out"], hidden, ACTIVATIONS["linear"])
    np.testing.assert_allclose(outputs[:, :2], means, rtol=1e-4, atol=1e-5)
    with built.graph.as_default():
        gradient = tf.gradients(
            built.model({"obs": tf.constant(X)}).dist_inputs, built.model.log_std
        )
        assert built.session.run(gradient[0]).tolist() == [5, 5]


def test_hidden_layers_start_orthogonal_and_the_policys_head_small():
    built = Built(fcnet_hiddens=(3, 3), num_outputs=2)
    for name in ("fc_1", "fc_2", "fc_value_1", "fc_value_2"):
        kernel = built.weights[f"{name}/kernel"]
        np.testing.assert_allclose(kernel.T @ kernel, 2 * np.eye(3), atol=1e-5)
        assert not built.weights[f"{name}/bias"].any()
    kernel = built.weights["fc_out/kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 1e-4 * np.eye(2), atol=1e-7)
    assert np.linalg.norm(built.weights["value_out/kernel"]) == pytest.approx(1)
    # No two layers of the same shape start alike.
    assert (built.weights["fc_1/kernel"] != built.weights["fc_value_1/kernel"]).any()


def test_the_seed_decides_the_weights_and_names_do_not_depend_on_what_was_built_before():  # b10
    first, again, other = (Built(seed=seed, fcnet_hiddens=(4,)) for seed in (1, 1, 2))
    assert list(first.weights) == list(again.weights) == list(other.weights)
    for name, weight in first.weights.items():
        np.testing.assert_array_equal(weight, again.weights[name])
        assert "bias" in name or (weight != other.weights[name]).any()


def test_nested_observations_are_flattened_into_one_vector():
    space = S.Dict({"n": S.Discrete(3), "x": S.Box(-1, 1, (2,))})
    built = randomised(Built(space, fcnet_hiddens=(4,)))
    assert isinstance(built.model, FullyConnected)
    outputs, _ = built({"x": np.float32([[5, 6]]), "n": np.array([1])})
    hidden = forward(built.weights, ["fc_1"], np.float32([[0, 1, 0, 5, 6]]), np.tanh)
    expected = forward(built.weights, ["fc_out"], hidden, ACTIVATIONS["linear"])
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
