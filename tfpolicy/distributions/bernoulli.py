"""Independent coin tosses, for MultiBinary."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions.base import Family


class Bernoulli(Family[gym.spaces.MultiBinary]):
    """Independent bits with P(a_i = 1) = sigmoid(z_i). Inputs are the logits z, [B, D].

    A bit is masked, i.e. always 0, by a logit of -1e9.
    """

    @classmethod
    def check_space(cls, space: gym.Space) -> None:
        """Accepts MultiBinary."""
        if not isinstance(space, gym.spaces.MultiBinary):
            raise ValueError(f"{cls.__name__} expects a MultiBinary space, got {space}.")

    @staticmethod
    def num_inputs(space: gym.spaces.MultiBinary) -> int:
        """One logit per bit."""
        return math.prod(space.shape)

    @property
    def logits(self) -> tf.Tensor:
        """[B, D] float32."""
        return self.inputs

    def sample(self, seed: tf.Tensor) -> tf.Tensor:
        """[B, *space.shape] in the dtype of the space."""
        uniform = tf.random.stateless_uniform(tf.shape(self.inputs), seed)
        return self._bits(uniform < tf.sigmoid(self.inputs))

    def mode(self) -> tf.Tensor:
        """1 where it is the more likely one."""
        return self._bits(self.inputs > 0.0)

    def log_prob(self, actions: tf.Tensor | np.ndarray) -> tf.Tensor:
        """Σ_i (a_i log p_i + (1 - a_i) log(1 - p_i))."""
        bits = self._flat(self._checked_actions(actions, tf.float32))
        # P(a) = sigmoid(±z), and log sigmoid(x) = -softplus(-x).
        return -tf.reduce_sum(tf.math.softplus((1.0 - 2.0 * bits) * self.inputs), axis=1)

    def entropy(self) -> tf.Tensor:
        """-Σ_i (p_i log p_i + (1 - p_i) log(1 - p_i))."""
        # It is even in z, and for z < 0 it is a sum of positive terms: nothing cancels.
        z = tf.abs(self.inputs)
        return tf.reduce_sum(tf.math.softplus(-z) + z * tf.sigmoid(-z), axis=1)

    def _kl(self, other: Bernoulli) -> tf.Tensor:
        # log p = -softplus(-z), log(1 - p) = -softplus(z)
        z, z_other = self.inputs, other.inputs
        ones = tf.sigmoid(z) * (tf.math.softplus(-z_other) - tf.math.softplus(-z))
        zeros = tf.sigmoid(-z) * (tf.math.softplus(z_other) - tf.math.softplus(z))
        return tf.reduce_sum(ones + zeros, axis=1)

    def _bits(self, condition: tf.Tensor) -> tf.Tensor:
        return self._shaped(tf.cast(condition, self.space.dtype))
