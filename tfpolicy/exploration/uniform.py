"""Uniform actions: of the choices that are not masked, or of a whole space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Family,
    MultiCategorical,
    SimplexFamily,
    split_seed,
)
from tfpolicy.exploration.base import sampled_actions
from tfpolicy.ops.masking import MASKED_LOGIT
from tfpolicy.spaces import is_float_box, leaf_spaces, unflatten

# Families whose inputs are one logit a choice. Logits below a tenth of the mask's are masked:
# nothing else comes near, and a bias added to masked logits changes nothing.
CHOICE_FAMILIES = (Bernoulli, Categorical, MultiCategorical)
_LOWEST_UNMASKED = 0.1 * MASKED_LOGIT


def uniform_choices(distribution: Family) -> Family:
    """Returns the uniform distribution over the choices that another one does not mask.

    Args:
        distribution: One of `CHOICE_FAMILIES`; logits of -1e8 and less are masked.
    """
    inputs = tf.where(distribution.inputs > _LOWEST_UNMASKED, 0.0, MASKED_LOGIT)
    return type(distribution)(inputs, distribution.space)


def uniform_actions(
    distribution: Distribution, space: gym.Space, seed: tf.Tensor
) -> tuple[Any, tf.Tensor]:
    """Draws one action per row, independent of what the model says except for masks.

    Float boxes are sampled as by `space.sample()`: uniformly between two bounds, from an
    exponential distribution beyond a single one, from a standard normal distribution without any.
    Where the distribution is one over a simplex, actions are uniform over that.

    Args:
        distribution: The policy's distribution for [B] observations.
        space: The policy's own action space.
        seed: [2] int32.

    Returns:
        Actions [B, ...] nested as `space`, and their log-probability (density) [B] float32.
    """
    leaves = list(leaf_spaces(space, "action").values())
    parts = distribution.parts
    if parts == (distribution,):  # It need not be of one leaf: a family may take a nested space.
        parts *= len(leaves)
    chosen = map(_uniform_part, parts, leaves, split_seed(seed, len(leaves)))
    actions, logps = zip(*chosen, strict=True)
    return unflatten(space, actions), tf.add_n(list(logps))


def _uniform_part(
    part: Distribution, leaf: gym.Space, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    if isinstance(part, CHOICE_FAMILIES):
        return sampled_actions(uniform_choices(part), seed)
    if isinstance(part, SimplexFamily):
        return part.uniform(seed)
    return _uniform_leaf(leaf, tf.shape(part.inputs)[0], seed)


def _uniform_leaf(
    space: gym.Space, rows: tf.Tensor, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    if is_float_box(space):
        return _uniform_floats(space, rows, seed)
    first, count = _choices(space)
    uniform = tf.random.stateless_uniform([rows, *count.shape], seed, dtype=tf.float64)
    actions = tf.cast(tf.floor(uniform * count), tf.int64) + first
    logp = -np.log(count).sum().astype(np.float32)
    return tf.cast(actions, space.dtype), tf.fill([rows], logp)


def _uniform_floats(
    space: gym.spaces.Box, rows: tf.Tensor, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    below, above = np.isfinite(space.low), np.isfinite(space.high)
    low = np.where(below, space.low, 0).astype(np.float64)
    high = np.where(above, space.high, 0).astype(np.float64)
    # Each dimension takes one of three terms, the others are multiplied by 0.
    width = np.where(below & above, high - low, 0)
    tail = below.astype(np.float64) - above
    unbounded = (~below & ~above).astype(np.float32)

    shape = [rows, *space.shape]
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    uniform = tf.random.stateless_uniform(shape, seeds[0])
    normal = tf.random.stateless_normal(shape, seeds[1])
    exponential = -tf.math.log1p(-uniform)
    actions = (
        np.where(below, low, high).astype(np.float32)
        + width.astype(np.float32) * uniform
        + tail.astype(np.float32) * exponential
        + unbounded * normal
    )
    log_width = np.log(np.where(width > 0, width, 1)).astype(np.float32)
    log_densities = (
        -log_width
        - np.abs(tail).astype(np.float32) * exponential
        - unbounded * (0.5 * tf.square(normal) + np.float32(0.5 * np.log(2 * np.pi)))
    )
    return actions, tf.reduce_sum(log_densities, axis=list(range(1, len(shape))))


def _choices(space: gym.Space) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first value and the number of values of each dimension of a leaf of integers."""
    if isinstance(space, gym.spaces.Discrete):
        first, count = space.start, space.n
    elif isinstance(space, gym.spaces.MultiDiscrete):
        first, count = space.start, space.nvec
    elif isinstance(space, gym.spaces.Box):
        first, count = space.low, space.high.astype(np.float64) - space.low + 1
    else:  # MultiBinary
        first, count = np.zeros(space.shape), np.full(space.shape, 2)
    return np.asarray(first, np.int64), np.asarray(count, np.float64)
