"""Actions of the policy's own space as actions of the environment, in the graph.

The same results as the functions of these names in `tfpolicy.spaces`, bit by bit.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.spaces import action_scaling, is_float_box, map_leaves


def unsquash_action(action: Any, space: gym.Space) -> Any:
    """Maps actions of the policy's own space to the environment's, always inside the bounds.

    Dimensions with two finite bounds go linearly from [-1, 1] to [low, high]; all others stay as
    they are. Then everything is clipped, as by `clip_action`.

    Args:
        action: [B, *leaf.shape] tensors, nested as `space`.
        space: The action space of the environment.

    Returns:
        Tensors of the same shapes and the leaves' dtypes. Gradients flow through floats that are
        not clipped.

    Raises:
        ValueError: If an action has another shape.
        TypeError: If float actions are given for a leaf of choices.
    """
    return map_leaves(_unsquash_leaf, space, action)


def clip_action(action: Any, space: gym.Space) -> Any:
    """Clips actions to the bounds of their space; integer boxes are rounded, half to even, first.

    Args:
        action: [B, *leaf.shape] tensors, nested as `space`.
        space: The action space of the environment.

    Returns:
        Tensors of the same shapes and the leaves' dtypes. Gradients flow through floats that are
        not clipped.

    Raises:
        ValueError: If an action has another shape.
        TypeError: If float actions are given for a leaf of choices.
    """
    return map_leaves(_clip_leaf, space, action)


def normalize_action(action: Any, space: gym.Space) -> Any:
    """Maps actions of the environment to the policy's own space, and on outside of the bounds.

    Equal to its namesake up to rounding: TensorFlow divides by multiplying with the inverse.

    Args:
        action: [..., *leaf.shape] tensors, nested as `space`.
        space: The action space of the environment.

    Returns:
        Tensors of the same shapes and the leaves' dtypes.
    """
    return map_leaves(_normalize_leaf, space, action)


def environment_action(action: Any, space: gym.Space, normalized: bool, clip: bool) -> Any:
    """What the environment's `step` takes, made of the policy's own actions.

    Args:
        action: [B, *leaf.shape] tensors, nested as `space`.
        space: The action space of the environment.
        normalized: Whether the policy's own space is `spaces.normalized_space(space)`.
        clip: Whether an action that is not `normalized` is clipped to the bounds.

    Returns:
        Tensors of the same shapes and the leaves' dtypes.
    """
    if normalized:
        return unsquash_action(action, space)
    if clip:
        return clip_action(action, space)
    return map_leaves(lambda leaf, value: tf.cast(value, leaf.dtype), space, action)


def _normalize_leaf(space: gym.Space, action: tf.Tensor) -> tf.Tensor:
    if not is_float_box(space):
        return tf.cast(action, space.dtype)
    centre, scale = (part.astype(np.float64) for part in action_scaling(space))
    # In float64, where the inverse of no float32 is too small to be kept.
    return tf.cast((tf.cast(action, tf.float64) - centre) / scale, space.dtype)


def _unsquash_leaf(space: gym.Space, action: tf.Tensor) -> tf.Tensor:
    if not is_float_box(space):
        return _clip_leaf(space, action)
    centre, scale = action_scaling(space)
    action = tf.cast(_checked(space, action), scale.dtype)
    # Most boxes are symmetric, many are [-1, 1] already: no ops for nothing.
    if (scale != 1).any():
        action *= scale
    if centre.any():
        action += centre
    return _clip_leaf(space, action)


def _clip_leaf(space: gym.Space, action: tf.Tensor) -> tf.Tensor:
    action = _checked(space, action)
    if is_float_box(space):
        _, scale = action_scaling(space)
        return tf.cast(_clip(tf.cast(action, scale.dtype), space), space.dtype)
    if isinstance(space, gym.spaces.Box):
        dtype = tf.uint8 if space.dtype == np.bool_ else tf.as_dtype(space.dtype)
        if action.dtype == tf.bool:
            action = tf.cast(action, dtype)
        elif action.dtype != dtype:
            action = tf.saturate_cast(tf.round(action), dtype)
        return tf.cast(_clip(action, space), space.dtype)
    if action.dtype.is_floating:
        raise TypeError(f"`action`: expected integers for {space}, got {action.dtype.name}.")
    return tf.cast(action, space.dtype)


def _clip(action: tf.Tensor, space: gym.spaces.Box) -> tf.Tensor:
    if (space.low > -np.inf).any():
        action = tf.maximum(action, space.low.astype(action.dtype.as_numpy_dtype))
    if (space.high < np.inf).any():
        action = tf.minimum(action, space.high.astype(action.dtype.as_numpy_dtype))
    return action


def _checked(space: gym.Space, action: tf.Tensor) -> tf.Tensor:
    action, shape = tf.convert_to_tensor(action), space.shape or ()
    if not action.shape.is_compatible_with([None, *shape]):
        expected = ", ".join(["B", *map(str, shape)])
        raise ValueError(f"`action`: expected ({expected}) for {space}, got {action.shape}.")
    return action
