"""Networks of the user's own: a Keras class, a function of the columns, losses of a model."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from small_policies import OBS, ppo_batch, regression_batch, small_policy
from small_policies import Regression as RegressionPolicy

from tfpolicy.config import ModelConfig
from tfpolicy.models import FullyConnected, ModelOutput, model_for

S = gym.spaces


class OneLayer(tf_keras.Model):
    """One hidden layer for both heads."""

    def __init__(self, observation_space, action_space, num_outputs, width=3, regularizer=None):
        super().__init__()
        self.spaces = (observation_space, action_space)
        self.hidden = tf_keras.layers.Dense(
            width,
            activation="tanh",
            kernel_initializer=tf_keras.initializers.GlorotUniform(seed=1),
            kernel_regularizer=regularizer,
            name="hidden",
        )
        self.heads = tf_keras.layers.Dense(
            num_outputs + 1,
            kernel_initializer=tf_keras.initializers.GlorotUniform(seed=2),
            name="heads",
        )

    def call(self, columns):
        outputs = self.heads(self.hidden(columns["obs"]))
        return ModelOutput(outputs[:, :-1], outputs[:, -1])


def linear(columns, num_outputs=3, scale=1.0):
    """A linear policy with its variables in TensorFlow's own scopes."""
    kernel = tf.compat.v1.get_variable("kernel", [4, num_outputs + 1])
    with tf.compat.v1.variable_scope("offset"):
        bias = tf.compat.v1.get_variable("bias", [num_outputs + 1])
    outputs = (columns["obs"] @ kernel + bias) * scale
    return ModelOutput(outputs[:, :-1], outputs[:, -1])


class Watched(FullyConnected):
    """Has losses and metrics of its own."""

    def losses(self, columns):
        entropy = tf.nn.softmax(self(columns).dist_inputs)
        return {
            "confidence": 0.5 * tf.reduce_max(entropy, axis=1),
            "weight_decay": 0.1 * tf.reduce_sum(tf.square(self.network.layers[1].kernel)),
        }

    def metrics(self, columns):
        return {"mean_reward": columns["rewards"]}


CUSTOM = {
    "keras": ({"custom_model": OneLayer, "custom_model_config": {"width": 5}}, {
        "hidden/kernel": (4, 5), "hidden/bias": (5,), "heads/kernel": (5, 4), "heads/bias": (4,),
    }),
    "function": ({"custom_model": linear, "custom_model_config": {"scale": 2.0}}, {
        "kernel": (4, 4), "offset/bias": (4,),
    }),
}  # fmt: skip


def outputs_by_hand(kind, weights, obs):
    if kind == "function":
        return 2.0 * (obs @ weights["kernel"] + weights["offset/bias"])
    hidden = np.tanh(obs @ weights["hidden/kernel"] + weights["hidden/bias"])
    return hidden @ weights["heads/kernel"] + weights["heads/bias"]


@pytest.mark.parametrize("kind", CUSTOM)
def test_a_custom_network_acts_learns_and_is_exported_like_any_other(kind, tmp_path):
    model, shapes = CUSTOM[kind]
    batch = ppo_batch(32)
    with small_policy(model=model) as policy, small_policy(model=model) as twin:
        weights = policy.get_weights()
        assert {name: value.shape for name, value in weights.items()} == shapes
        for name, value in twin.get_weights().items():  # j12
            np.testing.assert_array_equal(value, weights[name])
        _, _, extras = policy.compute_actions(batch["obs"], explore=False)
        expected = outputs_by_hand(kind, weights, batch["obs"])
        np.testing.assert_allclose(extras["action_dist_inputs"], expected[:, :3], atol=1e-6)
        np.testing.assert_allclose(extras["vf_preds"], expected[:, 3], atol=1e-6)
        policy.learn_on_batch(batch)
        assert all((policy.get_weights()[name] != weights[name]).any() for name in weights)
        loaded = tf.saved_model.load(policy.export_model(tmp_path)).signatures["serving_default"]
        actions, _, _ = policy.compute_actions(batch["obs"], explore=False)
        found = loaded(obs=tf.constant(batch["obs"]))["actions"]
        np.testing.assert_array_equal(found, actions)


@pytest.mark.parametrize("kind", CUSTOM)
def test_compiled_towers_hand_a_custom_network_its_weights(kind):
    config = {"model": CUSTOM[kind][0], "sgd_minibatch_size": 32, "num_sgd_iter": 1}
    weights = []
    for towers in ({}, {"num_gpus": 2, "fake_gpus": True, "jit_compile": True}):
        with small_policy(**config, **towers) as policy:
            policy.load_batch_into_buffer(ppo_batch(32))
            policy.learn_on_buffer(shuffle=False)
            weights.append(policy.get_weights())
    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_and_metrics_of_a_model_are_added_to_those_of_the_policy(reduction):
    model = {"fcnet_hiddens": [3], "custom_model": Watched}
    config = {"reduction": reduction, "seed": 1, "lr": 1.0}
    batch = regression_batch(6)
    towers = ({}, {"num_gpus": 2, "fake_gpus": True})
    steps = []
    for tower in towers:
        with RegressionPolicy(OBS, S.Discrete(3), {**config, **tower, "model": model}) as policy:
            weights = policy.get_weights()
            _, _, extras = policy.compute_actions(batch["obs"], explore=False)
            stats = policy.learn_on_batch(batch)["learner_stats"]
            after = policy.get_weights()
            steps.append({name: after[name] - weights[name] for name in weights})
    logits = extras["action_dist_inputs"]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    confidence = 0.5 * probabilities.max(axis=1).mean()
    decay = 0.1 * np.square(weights["fc_1/kernel"]).sum()
    assert stats["confidence"] == pytest.approx(confidence, rel=1e-5)
    assert stats["weight_decay"] == pytest.approx(decay, rel=1e-5)
    assert stats["mean_reward"] == pytest.approx(batch["rewards"].mean(), rel=1e-5)
    rows = 6 if reduction == "sum" else 1
    total = rows * (stats["vf_loss"] + confidence + decay)
    assert stats["total_loss"] == pytest.approx(total, rel=1e-5)
    for name, step in steps[0].items():
        np.testing.assert_allclose(steps[1][name], step, rtol=1e-4, atol=1e-5)
    # The value loss does not depend on the policy's own layers, those of the model do.
    assert (steps[0]["fc_out/kernel"] != 0).any()


def no_output(columns):
    return columns["obs"]


def too_narrow(columns):
    return linear(columns, num_outputs=2)


def with_state(columns):
    return linear(columns)._replace(state_out=(columns["obs"],))


def made(custom_model, **custom_model_config):
    config = ModelConfig(custom_model=custom_model, custom_model_config=custom_model_config)
    with tf.Graph().as_default(), tf.compat.v1.Session().as_default():
        model = model_for(OBS, S.Discrete(3), 3, config, seed=0)
        model({"obs": tf.zeros([2, 4])})


@pytest.mark.parametrize(
    "custom_model, error, text",
    [
        (no_output, TypeError, "must return a `ModelOutput`"),
        (too_narrow, ValueError, r"`dist_inputs` of shape \(B, 3\), got \(2, 2\)"),
        (with_state, ValueError, "only a subclass of `Model`"),
        (dict, TypeError, "a subclass of `Model` or of `tf_keras.Model`, or a function"),
        (tf_keras.Sequential(), TypeError, "or a function"),
    ],
)
def test_what_is_no_network_is_refused(custom_model, error, text):
    with pytest.raises(error, match=text):
        made(custom_model)


def test_losses_that_only_keras_would_see_are_refused():
    with pytest.raises(ValueError, match="OneLayer has losses in its layers"):
        made(OneLayer, regularizer="l2")


def test_what_is_not_callable_is_refused_by_the_config():
    with pytest.raises(TypeError, match="`custom_model` must be"):
        ModelConfig(custom_model="resnet")
