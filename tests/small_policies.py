"""Tiny policies, a recurrent network and batches for them, shared by the tests of the core."""

import dataclasses

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.config import PolicyConfig, setting
from tfpolicy.graph.towers import LossOutput
from tfpolicy.models import Model, ModelOutput
from tfpolicy.policies import policy_class
from tfpolicy.preprocessing import flatten_observation, num_features
from tfpolicy.tf_policy import TFPolicy

S = gym.spaces
OBS = S.Box(-1.0, 1.0, (4,), np.float32)
THREE = S.Discrete(3)
TINY = {"fcnet_hiddens": [8]}
MAX_SEQ_LEN = 5


def small_policy(algo="ppo", obs_space=OBS, action_space=THREE, **config):
    """A policy with one hidden layer of 8 and seed 1."""
    config = {"seed": 1, "model": TINY, "train_batch_size": 128, **config}
    return policy_class(algo)(obs_space, action_space, config)


def ppo_batch(rows, seed=0):
    """What PPO learns from, with actions and log-probabilities of an older policy."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 0.5, (rows, 3)).astype(np.float32)
    actions = rng.integers(0, 3, rows)
    logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return {
        "obs": rng.uniform(-1, 1, (rows, 4)).astype(np.float32),
        "actions": actions,
        "action_dist_inputs": logits,
        "action_logp": logp[np.arange(rows), actions].astype(np.float32),
        "advantages": rng.normal(0, 3, rows).astype(np.float32),
        "value_targets": rng.normal(0, 3, rows).astype(np.float32),
    }


class Recurrent(Model):
    """h_t = tanh(x_t W + h_{t-1} U + b), one state of `fcnet_hiddens[0]` units."""

    def __init__(self, observation_space, action_space, num_outputs, config, seed):
        super().__init__(observation_space, action_space, num_outputs, config, seed)
        self.units = config.fcnet_hiddens[0]
        inputs = num_features(observation_space)
        self.w = self._weight("w", (inputs, self.units))
        self.u = self._weight("u", (self.units, self.units))
        self.b = self._weight("b", (self.units,))
        self.out = self._weight("out", (self.units, num_outputs + 1))

    def _weight(self, name, shape):
        rng = np.random.default_rng([self.seed, self.layer_seed(name)])
        value = rng.normal(0, 0.7, shape).astype(np.float32)
        return tf.compat.v1.get_variable(name, initializer=value, use_resource=True)

    def initial_state(self):
        return [np.linspace(-0.5, 0.5, self.units, dtype=np.float32)]

    def __call__(self, columns):
        features = flatten_observation(self.observation_space, columns["obs"])
        seq_lens = columns["seq_lens"]
        num_sequences = tf.shape(seq_lens)[0]
        length = tf.shape(features)[0] // num_sequences
        inputs = tf.reshape(features @ self.w + self.b, [num_sequences, length, self.units])

        def step(state, t_and_input):
            t, x = t_and_input
            return tf.where((t < seq_lens)[:, None], tf.tanh(x + state @ self.u), state)

        by_time = (tf.range(length), tf.transpose(inputs, [1, 0, 2]))
        states = tf.scan(step, by_time, columns["state_in_0"])
        outputs = tf.reshape(tf.transpose(states, [1, 0, 2]), [-1, self.units]) @ self.out
        return ModelOutput(outputs[:, :-1], outputs[:, -1], (states[-1],))


def recurrent_policy(algo="ppo", max_seq_len=MAX_SEQ_LEN, **config):
    """A policy with the recurrent network above."""
    model = {"fcnet_hiddens": [4], "custom_model": Recurrent, "max_seq_len": max_seq_len}
    return small_policy(algo, **{"model": model, **config})


def recurrent_batch(seq_lens, seed=0):
    """Rows of sequences, the first of each starting from a state of its own."""
    batch = ppo_batch(int(np.sum(seq_lens)), seed)
    states = np.random.default_rng(seed).uniform(-1, 1, (len(batch["obs"]), 4))
    batch["state_in_0"] = states.astype(np.float32)
    batch["seq_lens"] = np.array(seq_lens, np.int32)
    return batch


@dataclasses.dataclass(frozen=True)
class RegressionConfig(PolicyConfig):
    """How `Regression` reduces its loss."""

    reduction: str = "mean"
    lr: float = setting(0.05, low=0.0)


class Regression(TFPolicy):
    """Fits the value head to `rewards` by SGD; the policy's own weights have no gradient."""

    config_class = RegressionConfig

    def loss(self, model, dist_class, train_batch):
        squares = tf.square(model(train_batch).vf_preds - train_batch["rewards"])
        mean = train_batch.mean(squares)
        if self.config.reduction == "mean":
            return LossOutput(mean, {"vf_loss": mean})
        return LossOutput(tf.reduce_sum(squares), {"vf_loss": mean}, "sum")

    def optimizer(self, learning_rate):
        return tf.compat.v1.train.GradientDescentOptimizer(learning_rate)


def regression_batch(rows, seed=0):
    """Observations and rewards."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (rows, 4)).astype(np.float32)
    return {"obs": obs, "rewards": rng.normal(0, 1, rows).astype(np.float32)}
