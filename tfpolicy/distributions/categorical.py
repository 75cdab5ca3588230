"""Categorical distributions: one choice, or several independent ones."""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions.base import Family
from tfpolicy.spaces import Leaf, check_in_bounds, is_float_box

# Stands for "impossible" where a log-probability is multiplied by its probability: 0 · -inf is NaN.
_LOWEST_LOGIT = -1e9
_MAX_BOX_LOGITS = 4096
# A masked logit is still far below any other one then.
_HIGHEST_TEMPERATURE = 1e4


class Categorical(Family[gym.spaces.Discrete]):
    """One choice out of n. Inputs are the logits [B, n]; actions count from `Discrete.start`.

    A choice is masked by a logit of -1e9 or less, never by 0 (`ops.masking.mask_logits` does it).
    Entropy, KL and gradients stay finite then, even with -inf.

    Args:
        inputs: Logits [B, n].
        space: The choices.
        temperature: What the logits are divided by: above 1 choices become more alike, below 1
            the best one stands out more. Masked choices stay masked.
    """

    def __init__(
        self, inputs: tf.Tensor, space: gym.spaces.Discrete, temperature: float = 1.0
    ) -> None:
        super().__init__(inputs, space)
        self._logits = at_temperature(self.inputs, temperature)

    @classmethod
    def check_space(cls, space: gym.Space) -> None:
        """Accepts Discrete."""
        if not isinstance(space, gym.spaces.Discrete):
            raise ValueError(f"{cls.__name__} expects a Discrete space, got {space}.")

    @staticmethod
    def num_inputs(space: gym.spaces.Discrete) -> int:
        """One logit per choice."""
        return int(space.n)

    @property
    def logits(self) -> tf.Tensor:
        """[B, n] float32, not normalized."""
        return self._logits

    def sample(self, seed: tf.Tensor) -> tf.Tensor:
        """[B] in the dtype of the space."""
        draw = tf.random.stateless_categorical(self._logits, 1, seed, dtype=tf.int64)
        return self._actions(tf.squeeze(draw, axis=1))

    def mode(self) -> tf.Tensor:
        """The choice with the highest logit, the first of several."""
        return self._actions(tf.argmax(self._logits, axis=1, output_type=tf.int64))

    def log_prob(self, actions: tf.Tensor | np.ndarray) -> tf.Tensor:
        """Log-softmax of the logits at `actions`: z_a - log Σ_i exp z_i.

        Running it on a choice outside the space is an error (NaN on a GPU or when jit-compiled).
        """
        labels = self._checked_actions(actions, tf.int64)
        start = int(self.space.start)
        return _log_probs(self._logits, labels - start if start else labels)

    def entropy(self) -> tf.Tensor:
        """-Σ_i p_i log p_i."""
        return categorical_entropy(self._logits)

    def _kl(self, other: Categorical) -> tf.Tensor:
        return categorical_kl(self._logits, other._logits)

    def _actions(self, indices: tf.Tensor) -> tf.Tensor:
        start = int(self.space.start)
        return tf.cast(indices + start if start else indices, self.space.dtype)


class MultiCategorical(Family[gym.spaces.MultiDiscrete | gym.spaces.Box]):
    """K independent choices of n_1 … n_K. Inputs are all logits side by side, [B, n_1 + … + n_K].

    Fits MultiDiscrete of any shape (its `start` is honoured) and boxes of integers or truth values,
    whose choices are the values low … high. All choices are rows of one [B·K, max n] matrix, so
    that the number of ops does not grow with K. Masking and `temperature` work as in `Categorical`.
    """

    def __init__(
        self,
        inputs: tf.Tensor,
        space: gym.spaces.MultiDiscrete | gym.spaces.Box,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(inputs, space)
        counts, self._starts = _choices(space)
        self._num_choices = len(counts)
        self._rows = _padded_rows(at_temperature(self.inputs, temperature), counts)

    @classmethod
    def check_space(cls, space: gym.Space) -> None:
        """Accepts MultiDiscrete, and other than float boxes of at most 4096 values in all."""
        if isinstance(space, gym.spaces.MultiDiscrete):
            return
        if not isinstance(space, gym.spaces.Box) or is_float_box(space):
            raise ValueError(
                f"{cls.__name__} expects a MultiDiscrete or an integer Box, got {space}."
            )
        total = cls.num_inputs(space)
        if total > _MAX_BOX_LOGITS:
            raise ValueError(
                f"An integer Box of actions needs one logit per value, at most {_MAX_BOX_LOGITS} "
                f"over all its dimensions, {space} needs {total}. Use a narrower one, or a float "
                f"Box and round in the environment."
            )

    @staticmethod
    def num_inputs(space: gym.spaces.MultiDiscrete | gym.spaces.Box) -> int:
        """One logit per value of every choice."""
        counts, _ = _choices(space)
        return sum(counts)

    @classmethod
    def check_actions(cls, space: gym.Space, actions: Any, name: str) -> None:
        """See base class; of a Box only low … high are choices."""
        check_in_bounds(cast("Leaf", space), np.asarray(actions), name)

    @property
    def logits(self) -> tf.Tensor:
        """[B, K, max n] float32, not normalized; -inf beyond the n_k values of choice k."""
        return tf.reshape(self._rows, [-1, self._num_choices, self._rows.shape[1]])

    def sample(self, seed: tf.Tensor) -> tf.Tensor:
        """[B, *space.shape] in the dtype of the space."""
        return self._actions(tf.random.stateless_categorical(self._rows, 1, seed, dtype=tf.int64))

    def mode(self) -> tf.Tensor:
        """The value with the highest logit in every choice, the first of several."""
        return self._actions(tf.argmax(self._rows, axis=1, output_type=tf.int64))

    def log_prob(self, actions: tf.Tensor | np.ndarray) -> tf.Tensor:
        """Σ_k log π_k(a_k), with each term as in `Categorical`."""
        labels = self._flat(self._checked_actions(actions, tf.int64))
        if self._starts.any():
            labels -= self._starts
        return self._sum(_log_probs(self._rows, tf.reshape(labels, [-1])))

    def entropy(self) -> tf.Tensor:
        """Σ_k H(π_k)."""
        return self._sum(categorical_entropy(self._rows))

    def _kl(self, other: MultiCategorical) -> tf.Tensor:
        return self._sum(categorical_kl(self._rows, other._rows))

    def _sum(self, rows: tf.Tensor) -> tf.Tensor:
        """[B·K] -> [B]."""
        return tf.reduce_sum(tf.reshape(rows, [-1, self._num_choices]), axis=1)

    def _actions(self, indices: tf.Tensor) -> tf.Tensor:
        actions = tf.reshape(indices, [-1, *self.space.shape])
        if self._starts.any():
            actions += self._starts.reshape(self.space.shape)
        return tf.cast(actions, self.space.dtype)


def categorical_entropy(logits: tf.Tensor) -> tf.Tensor:
    """Entropy [B] of the choices with logits [B, n], which may be -inf."""
    logp = tf.nn.log_softmax(tf.maximum(logits, _LOWEST_LOGIT))
    return -tf.reduce_sum(tf.exp(logp) * logp, axis=1)


def categorical_kl(logits: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """KL(p ‖ q) [B] of the choices with logits [B, n], which may be -inf."""
    logp = tf.nn.log_softmax(tf.maximum(logits, _LOWEST_LOGIT))
    logq = tf.nn.log_softmax(tf.maximum(other, _LOWEST_LOGIT))
    return tf.reduce_sum(tf.exp(logp) * (logp - logq), axis=1)


def at_temperature(logits: tf.Tensor, temperature: float) -> tf.Tensor:
    """Returns logits / temperature.

    Raises:
        ValueError: `temperature` is not positive, or so high that masked choices would be taken.
    """
    if not 0.0 < temperature <= _HIGHEST_TEMPERATURE:
        raise ValueError(
            f"`temperature`: expected a positive number up to {_HIGHEST_TEMPERATURE:g}, "
            f"got {temperature!r}."
        )
    return logits if temperature == 1.0 else logits / temperature


def _choices(space: gym.spaces.MultiDiscrete | gym.spaces.Box) -> tuple[list[int], np.ndarray]:
    """Numbers of values n_k and first values of the K choices of `space`, flat."""
    if isinstance(space, gym.spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.flat], np.asarray(space.start, np.int64).reshape(-1)
    # Python integers: high - low of an int8 box does not fit into int8.
    low, high = space.low.reshape(-1).tolist(), space.high.reshape(-1).tolist()
    counts = [int(last) - int(first) + 1 for first, last in zip(low, high, strict=True)]
    return counts, np.asarray(low, np.int64)


def _padded_rows(logits: tf.Tensor, counts: list[int]) -> tf.Tensor:
    """[B, Σ n_k] as [B·K, max n_k], filled up with -inf."""
    width = max(counts)
    if min(counts) == width:
        return tf.reshape(logits, [-1, width])
    padding_column = sum(counts)
    columns = np.full((len(counts), width), padding_column, np.int32)
    columns[np.arange(width) < np.array(counts)[:, None]] = np.arange(padding_column)
    padded = tf.pad(logits, [[0, 0], [0, 1]], constant_values=-np.inf)
    return tf.reshape(tf.gather(padded, columns.reshape(-1), axis=1), [-1, width])


def _log_probs(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
