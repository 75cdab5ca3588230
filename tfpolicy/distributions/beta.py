"""Beta distribution, for bounded float boxes."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions.base import Bounds, Family, check_bounded_box

# Of α - 1 and β - 1. Above 0, so that the mode exists; below it float32 still resolves log Γ.
EXCESS_RANGE = (1e-6, 1e4)
# Nearer to 0 and 1 than this, float32 has too few digits left to tell log x and log(1 - x).
_BOUND_MARGIN = 1e-6


class Beta(Family[gym.spaces.Box]):
    """Independent Beta(α_i, β_i), stretched to the bounds of the box: a = low + (high - low) x.

    Chou et al. (2017), https://proceedings.mlr.press/v70/chou17a.html. Inputs are raw α ++ raw β,
    [B, 2·D]; α = 1 + softplus(raw), so that the density has one peak, is finite at the bounds, and
    nothing is lost there as in a clipped Gaussian. α and β are at most 10001.
    """

    def __init__(self, inputs: tf.Tensor, space: gym.spaces.Box) -> None:
        super().__init__(inputs, space)
        self._excess = tf.clip_by_value(tf.math.softplus(self.inputs), *EXCESS_RANGE)
        self._concentrations = 1.0 + self._excess
        self._alpha, self._beta = tf.split(self._concentrations, 2, axis=1)
        self._bounds = Bounds(space)
        # da/dx is the width of the box, twice da/dt.
        self._log_det = self._bounds.log_det + math.prod(space.shape) * math.log(2.0)

    @classmethod
    def check_space(cls, space: gym.Space) -> None:
        """Accepts float boxes that are bounded in every dimension."""
        check_bounded_box(cls, space)

    @staticmethod
    def num_inputs(space: gym.spaces.Box) -> int:
        """Both concentrations of every dimension."""
        return 2 * math.prod(space.shape)

    def sample(self, seed: tf.Tensor) -> tf.Tensor:
        """X / (X + Y) with X ~ Γ(α), Y ~ Γ(β); [B, *space.shape] float32, within the bounds."""
        gammas = tf.random.stateless_gamma(
            tf.shape(self._concentrations), seed, alpha=self._concentrations
        )
        return self._share_of_first(gammas)

    def mode(self) -> tf.Tensor:
        """(α - 1) / (α + β - 2), [B, *space.shape] float32; the centre for a flat density."""
        return self._share_of_first(self._excess)

    def log_prob(self, actions: tf.Tensor | np.ndarray) -> tf.Tensor:
        """Σ_i ((α_i - 1) log x_i + (β_i - 1) log(1 - x_i) - log B(α_i, β_i) - log width_i)."""
        t = self._bounds.to_unit(self._flat(self._checked_actions(actions, tf.float32)))
        x = tf.clip_by_value(0.5 * (1.0 + t), _BOUND_MARGIN, 1.0 - _BOUND_MARGIN)
        log_densities = (
            tf.math.xlogy(self._alpha - 1.0, x)
            + tf.math.xlog1py(self._beta - 1.0, -x)
            - log_beta(self._alpha, self._beta)
        )
        return tf.reduce_sum(log_densities, axis=1) - self._log_det

    def entropy(self) -> tf.Tensor:
        """Σ_i (log B(α, β) - (α-1) ψ(α) - (β-1) ψ(β) + (α+β-2) ψ(α+β) + log width), all _i."""
        a, b = self._alpha, self._beta
        psi = tf.math.digamma
        entropies = (
            log_beta(a, b) + (a - 1.0) * (psi(a + b) - psi(a)) + (b - 1.0) * (psi(a + b) - psi(b))
        )
        return tf.reduce_sum(entropies, axis=1) + self._log_det

    def _kl(self, other: Beta) -> tf.Tensor:
        # Σ_i (log B(α',β')/B(α,β) + (α-α') (ψ(α) - ψ(α+β)) + (β-β') (ψ(β) - ψ(α+β)))
        a, b = self._alpha, self._beta
        psi = tf.math.digamma
        kls = (
            log_beta(other._alpha, other._beta)
            - log_beta(a, b)
            + (a - other._alpha) * (psi(a) - psi(a + b))
            + (b - other._beta) * (psi(b) - psi(a + b))
        )
        return tf.reduce_sum(kls, axis=1)

    def _share_of_first(self, pairs: tf.Tensor) -> tf.Tensor:
        """[B, 2·D] of X ++ Y to the action at x = X / (X + Y), i.e. t = (X - Y) / (X + Y)."""
        first, second = tf.split(pairs, 2, axis=1)
        return self._shaped(self._bounds.from_unit((first - second) / (first + second)))


def log_beta(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Log B(a, b), also where the three log Γ are large and cancel, as tf.math.lbeta cannot."""
    # Seconds to import, needed by this family only.
    import tensorflow_probability as tfp

    return tfp.math.lbeta(a, b)
