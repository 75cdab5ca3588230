"""Gaussian distribution with a diagonal covariance, for float boxes."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions.base import Distribution, check_float_box

# Wider than any useful exploration, yet ratios of two σ and their squares are far from overflow.
LOG_STD_RANGE = (-20.0, 10.0)
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


class DiagGaussian(Distribution[gym.spaces.Box]):
    """Independent normal distributions N(μ_i, σ_i²). Inputs are μ ++ log σ, [B, 2·D].

    log σ is clipped to [-20, 10] (no gradient outside), so that it never overflows. Actions are not
    clipped to the box: the log-probability belongs to the raw sample, and what goes to the
    environment is clipped or unsquashed later. On a bounded box an entropy bonus can push σ far
    beyond the bounds; `SquashedGaussian` and `Beta` cannot leave them.
    """

    def __init__(self, inputs: tf.Tensor, space: gym.spaces.Box) -> None:
        super().__init__(inputs, space)
        self._mean, log_std = tf.split(self.inputs, 2, axis=1)
        self._log_std = tf.clip_by_value(log_std, *LOG_STD_RANGE)
        self._std = tf.exp(self._log_std)

    @classmethod
    def check_space(cls, space: gym.Space) -> None:
        """Accepts float boxes, bounded or not."""
        check_float_box(cls, space)

    @staticmethod
    def num_inputs(space: gym.spaces.Box) -> int:
        """Mean and log standard deviation of every dimension."""
        return 2 * math.prod(space.shape)

    def sample(self, seed: tf.Tensor) -> tf.Tensor:
        """μ + σ ε, [B, *space.shape] float32."""
        return self._shaped(_normal_sample(self._mean, self._std, seed))

    def mode(self) -> tf.Tensor:
        """μ, [B, *space.shape] float32."""
        return self._shaped(self._mean)

    def log_prob(self, actions: tf.Tensor | np.ndarray) -> tf.Tensor:
        """-Σ_i ((a_i - μ_i)² / 2σ_i² + log σ_i + ½ log 2π)."""
        z = (self._flat(self._checked_actions(actions, tf.float32)) - self._mean) / self._std
        return -tf.reduce_sum(0.5 * tf.square(z) + self._log_std + _LOG_SQRT_2PI, axis=1)

    def entropy(self) -> tf.Tensor:
        """Σ_i (log σ_i + ½ log 2πe)."""
        return tf.reduce_sum(self._log_std + (_LOG_SQRT_2PI + 0.5), axis=1)

    def _kl(self, other: DiagGaussian) -> tf.Tensor:
        # Σ_i (log σ'_i/σ_i + (σ_i² + (μ_i - μ'_i)²) / 2σ'_i² - ½); expm1 is exact near σ' = σ.
        log_ratio = self._log_std - other._log_std
        z = (self._mean - other._mean) / other._std
        return tf.reduce_sum(
            0.5 * (tf.math.expm1(2.0 * log_ratio) + tf.square(z)) - log_ratio, axis=1
        )


def _normal_sample(mean: tf.Tensor, std: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws μ + σ ε, [B, D], with ε from `seed` alone."""
    # `stateless_normal` multiplies and adds in any case: given μ and σ, it takes no further ops.
    return tf.random.stateless_normal(tf.shape(mean), seed, mean=mean, stddev=std)
