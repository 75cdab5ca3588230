"""Distributions over shares of a whole, for boxes that stand for a simplex."""

from __future__ import annotations

import abc
import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions.base import Family, check_bounded_box
from tfpolicy.distributions.beta import EXCESS_RANGE, log_beta
from tfpolicy.distributions.categorical import (
    at_temperature,
    categorical_entropy,
    categorical_kl,
)


class SimplexFamily(Family[gym.spaces.Box]):
    """Shares x_1 … x_n ≥ 0 with Σ x_i = 1, as actions a_i = low + (high - low) x_i.

    The space is a float Box [n] with the same two bounds in every dimension; that the shares sum to
    1 is beyond what a Box can say. Densities are those of the first n - 1 dimensions. Shares below
    what float32 resolves next to `low` count as that much: 6e-8 with bounds -1 and 1, 1e-30 with a
    lower bound of 0, so that small shares are best told apart with `normalize_actions=False`.
    """

    def __init__(self, inputs: tf.Tensor, space: gym.spaces.Box) -> None:
        super().__init__(inputs, space)
        self._low, self._high = float(space.low[0]), float(space.high[0])
        self._width = self._high - self._low
        resolution = np.finfo(np.float32).eps * abs(self._low) / self._width
        self._smallest = max(float(resolution), 1e-30)
        # Σ over the first n - 1 dimensions of log da/dx.
        self._log_det = (space.shape[0] - 1) * math.log(self._width)

    @classmethod
    def check_space(cls, space: gym.Space) -> None:
        """Accepts float boxes of one axis, at least two dimensions and one pair of bounds."""
        box = check_bounded_box(cls, space)
        num_bounds = len(np.unique(box.low)), len(np.unique(box.high))
        if len(box.shape) != 1 or box.shape[0] < 2 or num_bounds != (1, 1):
            raise ValueError(
                f"{cls.__name__} expects a Box of shape (n,), n >= 2, with the same bounds in "
                f"every dimension, got {space}."
            )

    @staticmethod
    def num_inputs(space: gym.spaces.Box) -> int:
        """One value per share."""
        return int(space.shape[0])

    def uniform(self, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Actions [B, n] drawn uniformly from the simplex, and their log-density [B]."""
        shape = tf.shape(self.inputs)
        exponentials = -tf.math.log1p(-tf.random.stateless_uniform(shape, seed))
        logp = math.lgamma(self._shape[0]) - self._log_det
        return self._actions(_normalized(exponentials)), tf.fill(shape[:1], np.float32(logp))

    @abc.abstractmethod
    def _log_density(self, log_shares: tf.Tensor) -> tf.Tensor:
        """Of the first n - 1 shares, [B], given the logarithms [B, n] of all."""

    def log_prob(self, actions: tf.Tensor | np.ndarray) -> tf.Tensor:
        """Log-density [B] of actions on the simplex."""
        shares = (self._checked_actions(actions, tf.float32) - self._low) / self._width
        log_shares = tf.math.log(tf.clip_by_value(shares, self._smallest, 1.0))
        return self._log_density(log_shares) - self._log_det

    def _actions(self, shares: tf.Tensor) -> tf.Tensor:
        # Rounding may carry a share of 1 past the bound.
        return tf.minimum(self._low + self._width * shares, self._high)


class Dirichlet(SimplexFamily):
    """Dirichlet(α). Inputs are raw α, [B, n]; α = 1 + softplus(raw), at most 10001.

    As in `Beta`, which is its case n = 2, the density has one peak and is finite everywhere.
    """

    def __init__(self, inputs: tf.Tensor, space: gym.spaces.Box) -> None:
        super().__init__(inputs, space)
        self._excess = tf.clip_by_value(tf.math.softplus(self.inputs), *EXCESS_RANGE)
        self._alpha = 1.0 + self._excess

    def sample(self, seed: tf.Tensor) -> tf.Tensor:
        """X_i / Σ X with X_i ~ Γ(α_i), [B, n] float32."""
        gammas = tf.random.stateless_gamma(tf.shape(self._alpha), seed, alpha=self._alpha)
        return self._actions(_normalized(gammas))

    def mode(self) -> tf.Tensor:
        """(α_i - 1) / (Σ α - n), [B, n] float32; equal shares for a flat density."""
        return self._actions(_normalized(self._excess))

    def entropy(self) -> tf.Tensor:
        """Log B(α) + Σ_i (α_i - 1) (ψ(Σ α) - ψ(α_i)) + (n - 1) log width."""
        differences = tf.math.digamma(self._total) - tf.math.digamma(self._alpha)
        terms = tf.reduce_sum((self._alpha - 1.0) * differences, axis=1)
        return self._log_normalizer() + terms + self._log_det

    def _log_density(self, log_shares: tf.Tensor) -> tf.Tensor:
        # Σ_i (α_i - 1) log x_i - log B(α)
        return tf.reduce_sum((self._alpha - 1.0) * log_shares, axis=1) - self._log_normalizer()

    def _kl(self, other: Dirichlet) -> tf.Tensor:
        # log B(α') - log B(α) + Σ_i (α_i - α'_i) (ψ(α_i) - ψ(Σ α))
        differences = tf.math.digamma(self._alpha) - tf.math.digamma(self._total)
        terms = tf.reduce_sum((self._alpha - other._alpha) * differences, axis=1)
        return other._log_normalizer() - self._log_normalizer() + terms

    @property
    def _total(self) -> tf.Tensor:
        return tf.reduce_sum(self._alpha, axis=1, keepdims=True)

    def _log_normalizer(self) -> tf.Tensor:
        """Log B(α) = Σ_k log B(α_k, α_1 + … + α_{k-1}): no large log Γ to cancel."""
        before = tf.cumsum(self._alpha, axis=1)[:, :-1]
        return tf.reduce_sum(log_beta(self._alpha[:, 1:], before), axis=1)


class GumbelSoftmax(SimplexFamily):
    """A choice out of n, relaxed: x = softmax((z + G) / τ) with Gumbel noise G.

    Jang et al. (2017), https://arxiv.org/abs/1611.01144; density as in Maddison et al. (2017),
    https://arxiv.org/abs/1611.00712, eq. 10. Inputs are the logits z, [B, n]. Gradients flow from
    a sample into the logits.

    Entropy and KL are those of the choice itself, Categorical(softmax z), which is the largest
    share of x: those of the relaxation have no closed form. This KL is a lower bound of theirs.

    Args:
        inputs: Logits [B, n].
        space: The simplex.
        temperature: τ; towards 0, shares become 0 and 1.
    """

    def __init__(self, inputs: tf.Tensor, space: gym.spaces.Box, temperature: float = 1.0) -> None:
        super().__init__(inputs, space)
        self._scaled = at_temperature(self.inputs, temperature)
        self._temperature = temperature

    def sample(self, seed: tf.Tensor) -> tf.Tensor:
        """[B, n] float32; differentiable in the logits."""
        smallest = np.finfo(np.float32).tiny
        uniform = tf.random.stateless_uniform(tf.shape(self.inputs), seed, minval=smallest)
        gumbel = -tf.math.log(-tf.math.log(uniform))
        return self._actions(tf.nn.softmax(self._scaled + gumbel / self._temperature))

    def mode(self) -> tf.Tensor:
        """The relaxation without noise, softmax(z / τ), [B, n] float32."""
        return self._actions(tf.nn.softmax(self._scaled))

    def entropy(self) -> tf.Tensor:
        """-Σ_i p_i log p_i with p = softmax z."""
        return categorical_entropy(self.inputs)

    def _log_density(self, log_shares: tf.Tensor) -> tf.Tensor:
        # log (n-1)! + (n-1) log τ + Σ_k (z_k - (τ+1) log x_k) - n log Σ_i exp(z_i - τ log x_i)
        n, tau = self._shape[0], self._temperature
        constant = math.lgamma(n) + (n - 1) * math.log(tau)
        terms = tf.reduce_sum(self.inputs - (tau + 1.0) * log_shares, axis=1)
        return constant + terms - n * tf.reduce_logsumexp(self.inputs - tau * log_shares, axis=1)

    def _kl(self, other: GumbelSoftmax) -> tf.Tensor:
        return categorical_kl(self.inputs, other.inputs)


def _normalized(parts: tf.Tensor) -> tf.Tensor:
    return parts / tf.reduce_sum(parts, axis=1, keepdims=True)
