"""Gaussian distributions with a diagonal covariance, plain and squashed, for float boxes."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions.base import (
    Bounds,
    Family,
    check_bounded_box,
    check_float_box,
)

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
# Nearer to ±1 than this, float32 has too few digits left to tell u = artanh t.
_BOUND_MARGIN = 1e-6
# Trapezoidal rule over the standard normal density, which converges exponentially in the number of
# nodes: the entropy of a squashed dimension is exact to 5e-5 for σ ≤ 1, to 6e-3 for σ = e².
_NODES = np.linspace(-4.5, 4.5, 33).astype(np.float32)
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()


class DiagGaussian(Family[gym.spaces.Box]):
    """Independent normal distributions N(μ_i, σ_i²). Inputs are μ ++ log σ, [B, 2·D].

    log σ is clipped to `LOG_STD_RANGE` (no gradient outside), so that no σ overflows. Actions are
    not clipped to the box: the log-probability belongs to the raw sample, and what goes to the
    environment is clipped or unsquashed later. On a bounded box an entropy bonus can push σ far
    beyond the bounds; `SquashedGaussian` and `Beta` cannot leave them.
    """

    # Wider than any useful exploration, yet squares of σ ratios are far from overflow.
    LOG_STD_RANGE = (-20.0, 10.0)

    def __init__(self, inputs: tf.Tensor, space: gym.spaces.Box) -> None:
        super().__init__(inputs, space)
        self._mean, log_std = tf.split(self.inputs, 2, axis=1)
        self._log_std = tf.clip_by_value(log_std, *self.LOG_STD_RANGE)
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
        return self._shaped(self._draw(seed))

    def mode(self) -> tf.Tensor:
        """μ, [B, *space.shape] float32."""
        return self._shaped(self._mean)

    def log_prob(self, actions: tf.Tensor | np.ndarray) -> tf.Tensor:
        """-Σ_i ((a_i - μ_i)² / 2σ_i² + log σ_i + ½ log 2π)."""
        densities = self._log_densities(self._flat(self._checked_actions(actions, tf.float32)))
        return tf.reduce_sum(densities, axis=1)

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

    def _draw(self, seed: tf.Tensor) -> tf.Tensor:
        # `stateless_normal` multiplies and adds anyway: given μ and σ, it takes no further ops.
        return tf.random.stateless_normal(
            tf.shape(self._mean), seed, mean=self._mean, stddev=self._std
        )

    def _log_densities(self, x: tf.Tensor) -> tf.Tensor:
        """Of each dimension, [B, D]."""
        if x is self._mean:
            # The mode, at each greedy step: 0 / σ is 0, whereas a NaN must stay one.
            return (x - self._mean) - (self._log_std + _LOG_SQRT_2PI)
        z = (x - self._mean) / self._std
        return -0.5 * tf.square(z) - (self._log_std + _LOG_SQRT_2PI)


class SquashedGaussian(DiagGaussian):
    """A diagonal Gaussian u, squashed into the box: a = centre + half_width · t, t = tanh u.

    Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905, appendix C. Inputs are μ ++ log σ of
    u, [B, 2·D], with log σ clipped to `LOG_STD_RANGE`.

    The log-probability is a function of the action alone, so that it is the same when an action is
    taken and when its loss is computed. t is clipped to ±(1 - 1e-6) there.
    """

    # With σ beyond e² nearly all actions lie at the bounds.
    LOG_STD_RANGE = (-20.0, 2.0)

    def __init__(self, inputs: tf.Tensor, space: gym.spaces.Box) -> None:
        super().__init__(inputs, space)
        self._bounds = Bounds(space)

    @classmethod
    def check_space(cls, space: gym.Space) -> None:
        """Accepts float boxes that are bounded in every dimension."""
        check_bounded_box(cls, space)

    def sample(self, seed: tf.Tensor) -> tf.Tensor:
        """[B, *space.shape] float32, within the bounds."""
        return self._shaped(self._bounds.from_unit(tf.tanh(self._draw(seed))))

    def mode(self) -> tf.Tensor:
        """Where the mode μ of the Gaussian goes, which is the median of the actions."""
        return self._shaped(self._bounds.from_unit(tf.tanh(self._mean)))

    def log_prob(self, actions: tf.Tensor | np.ndarray) -> tf.Tensor:
        """Log N(u; μ, σ²) - Σ_i (log half_width_i + log(1 - tanh² u_i)), with u = artanh t."""
        t = self._bounds.to_unit(self._flat(self._checked_actions(actions, tf.float32)))
        t = tf.clip_by_value(t, _BOUND_MARGIN - 1.0, 1.0 - _BOUND_MARGIN)
        log_above, log_below = tf.math.log1p(t), tf.math.log1p(-t)
        u = 0.5 * (log_above - log_below)
        log_derivative = log_above + log_below  # log(1 - t²)
        densities = self._log_densities(u) - log_derivative
        return tf.reduce_sum(densities, axis=1) - self._bounds.log_det

    def entropy(self) -> tf.Tensor:
        """H(u) + Σ_i (log half_width_i + E[log(1 - tanh² u_i)]).

        The expectation has no closed form. Quadrature with fixed nodes makes it repeatable and
        differentiable, with none of the noise of an estimate from samples.
        """
        u = self._mean[:, :, None] + self._std[:, :, None] * _NODES
        magnitude = tf.abs(u)
        # log(1 - tanh² u), which does not overflow in this form.
        log_derivative = 2.0 * (math.log(2.0) - magnitude - tf.math.softplus(-2.0 * magnitude))
        expectation = tf.reduce_sum(log_derivative * _WEIGHTS, axis=[1, 2])
        return super().entropy() + expectation + self._bounds.log_det

    # KL is inherited: an invertible map that both distributions share leaves it as it is.
