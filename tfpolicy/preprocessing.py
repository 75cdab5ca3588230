"""From raw observations to the features a network reads, inside the graph.

Because this happens in the graph, acting, learning and every export see the environment's own
observation, and there is no second implementation that could drift.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.spaces import Leaf, flatten, leaf_spaces


def num_features(space: gym.Space) -> int:
    """How many features `flatten_observation` makes of an observation of `space`."""
    return sum(_num_leaf_features(leaf) for leaf in leaf_spaces(space, "obs").values())


def flatten_observation(space: gym.Space, observation: Any) -> tf.Tensor:
    """Encodes raw observations as one vector each: discrete parts one-hot, images scaled.

    Args:
        space: The environment's observation space.
        observation: Tensors [B, ...] in the structure and the dtypes of `space`.

    Returns:
        [B, num_features(space)] float32, leaves in the order of the space's keys.
    """
    leaves = leaf_spaces(space, "obs").values()
    parts = [
        _encode(leaf, value)
        for leaf, value in zip(leaves, flatten(space, observation), strict=True)
    ]
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)


def is_bytes(space: gym.Space) -> bool:
    """Whether values are bytes over their whole range, such as those of images."""
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def scale_box(space: gym.spaces.Box, value: tf.Tensor) -> tf.Tensor:
    """Casts a Box observation to float32; bytes over their whole range become [0, 1]."""
    value = tf.cast(value, tf.float32)
    return value / 255.0 if is_bytes(space) else value


def feature_scales(space: gym.Space) -> np.ndarray:
    """By what `flatten_observation` divides each feature, [num_features(space)] float32."""
    scales = [
        np.full(_num_leaf_features(leaf), 255.0 if is_bytes(leaf) else 1.0, np.float32)
        for leaf in leaf_spaces(space, "obs").values()
    ]
    return np.concatenate(scales)


def _num_leaf_features(space: Leaf) -> int:
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(np.prod(space.shape))


def _encode(space: Leaf, value: tf.Tensor) -> tf.Tensor:
    if isinstance(space, gym.spaces.Discrete):
        return tf.one_hot(tf.cast(value, tf.int64) - int(space.start), int(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return _encode_multi_discrete(space, value)
    if isinstance(space, gym.spaces.MultiBinary):
        return _rows(tf.cast(value, tf.float32), space.shape)
    return _rows(scale_box(space, value), space.shape)


def _encode_multi_discrete(space: gym.spaces.MultiDiscrete, value: tf.Tensor) -> tf.Tensor:
    nvec = space.nvec.ravel()
    digits = _rows(tf.cast(value, tf.int64) - space.start.astype(np.int64), space.shape)
    if (nvec == nvec[0]).all():
        return _rows(tf.one_hot(digits, int(nvec[0])), (len(nvec), int(nvec[0])))
    one_hots = [tf.one_hot(digits[:, i], int(n)) for i, n in enumerate(nvec)]
    return tf.concat(one_hots, axis=1)


def _rows(value: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """Flattens everything but the batch dimension."""
    if len(shape) == 1:
        return value
    # -1 would be ambiguous for a space without elements.
    return tf.reshape(value, [tf.shape(value)[0], int(np.prod(shape))])
