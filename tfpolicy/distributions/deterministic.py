"""No distribution at all: the model's output is the action."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions.base import Family, check_float_box


class Deterministic(Family[gym.spaces.Box]):
    """The action itself, for policies that do not learn from probabilities. Inputs are [B, D].

    By convention the log-probability of every action is 0, and so are entropy and KL; no gradient
    flows through them. Actions are not clipped to the bounds of the box here.
    """

    @classmethod
    def check_space(cls, space: gym.Space) -> None:
        """Accepts float boxes, bounded or not."""
        check_float_box(cls, space)

    @staticmethod
    def num_inputs(space: gym.spaces.Box) -> int:
        """One value per dimension."""
        return math.prod(space.shape)

    def sample(self, seed: tf.Tensor) -> tf.Tensor:
        """The inputs as [B, *space.shape], whatever the seed."""
        return self.mode()

    def mode(self) -> tf.Tensor:
        """The inputs as [B, *space.shape]."""
        return self._shaped(self.inputs)

    def log_prob(self, actions: tf.Tensor | np.ndarray) -> tf.Tensor:
        """Zeros [B]."""
        self._checked_actions(actions, tf.float32)
        return self._zeros()

    def entropy(self) -> tf.Tensor:
        """Zeros [B]."""
        return self._zeros()

    def _kl(self, other: Deterministic) -> tf.Tensor:
        return self._zeros()

    def _zeros(self) -> tf.Tensor:
        return tf.zeros(tf.shape(self.inputs)[:1])
