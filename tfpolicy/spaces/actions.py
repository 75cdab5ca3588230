"""Actions between the policy's own space and the environment's."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, cast

import numpy as np
from gymnasium.spaces import Box, Dict, Space, Tuple

from tfpolicy.spaces.base import NESTED_TYPES, Leaf, map_leaves

Array = np.ndarray


def unbatch(actions: Any) -> list[Any]:
    """Returns the rows of a nested batch: a list of single actions, each nested like the batch."""
    if isinstance(actions, Mapping):
        columns = [unbatch(column) for column in actions.values()]
        return [dict(zip(actions, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(actions, tuple):
        return list(zip(*map(unbatch, actions), strict=True))
    return list(np.asarray(actions))


def first_action(space: Space, actions: Any) -> Any:
    """Returns the first of a batch of actions, as `space` has it.

    Args:
        space: The space of the actions.
        actions: `[B, *leaf.shape]` arrays, nested as `space`.

    Returns:
        `[*leaf.shape]` arrays, of choices without a shape scalars.
    """
    if isinstance(space, NESTED_TYPES):
        return map_leaves(first_action, space, actions)
    # A `Box` without dimensions has arrays of rank 0, and NumPy makes scalars of them.
    return np.asarray(actions[0]) if isinstance(space, Box) else actions[0]


def normalized_space(space: Space) -> Space:
    """Returns the policy's own action space: float dimensions with two finite bounds span [-1, 1].

    All other dimensions and leaves are those of `space`.
    """
    if isinstance(space, Dict):
        # An `OrderedDict`, for Gymnasium sorts the keys of any other.
        items = space.spaces.items()
        return Dict(OrderedDict((key, normalized_space(child)) for key, child in items))
    if isinstance(space, Tuple):
        return Tuple(map(normalized_space, space.spaces))
    if not is_float_box(space):
        return space
    scaled = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(scaled, -1, space.low), np.where(scaled, 1, space.high)
    return Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype)


def own_space(space: Space, normalized: bool) -> Space:
    """Returns the space of the actions that a policy draws and learns from.

    Args:
        space: The action space of the environment.
        normalized: Whether float dimensions with two finite bounds span [-1, 1].

    Returns:
        `normalized_space(space)` or `space`, with float boxes of at least 32 bits: so many are
        drawn, and in fewer an action would not have the log-probability with which it was.
    """
    return _widened(normalized_space(space) if normalized else space)


def normalize_action(action: Any, space: Space) -> Any:
    """Maps an action of the environment to the policy's own space, `normalized_space(space)`.

    Dimensions with two finite bounds go linearly from [low, high] to [-1, 1], and on outside of it;
    all others stay as they are. `unsquash_action` undoes it, up to rounding.

    Args:
        action: `[*leaf.shape]` or `[..., *leaf.shape]` arrays, nested as `space`.
        space: The action space of the environment.

    Returns:
        Arrays of the same shapes and the leaves' dtypes.
    """
    return map_leaves(_normalize_leaf, space, action)


def unsquash_action(action: Any, space: Space) -> Any:
    """Maps an action of the policy's own space to the environment's, always inside the bounds.

    Dimensions with two finite bounds go linearly from [-1, 1] to [low, high]; all others stay as
    they are. Then everything is clipped, as by `clip_action`.

    Args:
        action: `[*leaf.shape]` or `[..., *leaf.shape]` arrays, nested as `space`.
        space: The action space of the environment.

    Returns:
        Arrays of the same shapes and the leaves' dtypes.
    """
    return map_leaves(_unsquash_leaf, space, action)


def clip_action(action: Any, space: Space) -> Any:
    """Clips an action to the bounds of its space; integer boxes are rounded, half to even, first.

    Args:
        action: `[*leaf.shape]` or `[..., *leaf.shape]` arrays, nested as `space`.
        space: The action space of the environment.

    Returns:
        Arrays of the same shapes and the leaves' dtypes.
    """
    return map_leaves(_clip_leaf, space, action)


def environment_transform(space: Space, *, unsquash: bool, clip: bool) -> Callable[[Any], Any]:
    """Returns what makes the environment's actions of the policy's own, with all done once.

    Args:
        space: The action space of the environment.
        unsquash: Whether the result does what `unsquash_action` does. It wins over `clip`.
        clip: Whether it does what `clip_action` does. Otherwise only dtypes change.

    Returns:
        A function of `[*leaf.shape]` or `[..., *leaf.shape]` arrays, nested as `space`.
    """
    if isinstance(space, NESTED_TYPES):
        leaf = _unsquash_leaf if unsquash else _clip_leaf if clip else _as_leaf
        return lambda action: map_leaves(leaf, space, action)
    if not isinstance(space, Box):
        return functools.partial(_cast_exactly, cast("Leaf", space))
    if not is_float_box(space) or not (unsquash or clip):
        return functools.partial(_clip_leaf if unsquash or clip else _as_leaf, space)
    low, high, dtype = space.low, space.high, space.dtype
    centre, scale = action_scaling(space)
    scales = unsquash and not (np.all(centre == 0) and np.all(scale == 1))

    def transform(action: Array) -> Array:
        if scales:
            action = centre + scale * action
        return np.minimum(np.maximum(action, low), high).astype(dtype, copy=False)

    return transform


def blank_action(space: Space, normalized: bool) -> Any:
    """Returns what is zero in the policy's own space, as an action of the environment.

    That is what previous actions are before the first step: the centre of two finite bounds, else
    0, even if that is no element of the space.

    Args:
        space: The action space of the environment.
        normalized: Whether the policy's own space is `normalized_space(space)`.

    Returns:
        `[*leaf.shape]` arrays, nested as `space`.
    """

    def leaf_blank(leaf: Leaf) -> Array:
        if normalized and is_float_box(leaf):
            return action_scaling(leaf)[0].astype(leaf.dtype)
        return np.zeros(leaf.shape or (), leaf.dtype)

    return map_leaves(leaf_blank, space)


def is_float_box(space: Space) -> TypeGuard[Box]:
    """Returns whether a leaf is a `Box` of floats: the only kind that is ever scaled."""
    return isinstance(space, Box) and space.dtype.kind == "f"


def action_scaling(space: Box) -> tuple[Array, Array]:
    """Returns the `centre` and `scale` with which centre + scale·a is the environment's action.

    Dimensions without two finite bounds have centre 0 and scale 1. The result has to be clipped:
    scales are rounded up where -1 or 1 would miss its bound otherwise.

    Args:
        space: A `Box` of floats.

    Returns:
        Two arrays of the space's shape; float64 for a float64 space, float32 for narrower ones.
    """
    # A space cannot be hashed, so it is its bounds that are the key of the cache.
    return _scaling(space.low.tobytes(), space.high.tobytes(), space.shape, space.dtype.str)


@functools.lru_cache(maxsize=256)
def _scaling(
    low_bytes: bytes, high_bytes: bytes, shape: tuple[int, ...], dtype: str
) -> tuple[Array, Array]:
    calculated = np.result_type(dtype, np.float32)
    low = np.frombuffer(low_bytes, dtype).astype(calculated)
    high = np.frombuffer(high_bytes, dtype).astype(calculated)
    scaled = np.isfinite(low) & np.isfinite(high)
    low[~scaled], high[~scaled] = -1, 1
    # Halved first: the sum of two large bounds may overflow.
    centre = low / 2 + high / 2
    scale = np.maximum(high - centre, centre - low)
    missed = (centre + scale < high) | (centre - scale > low)
    scale[missed] = np.nextafter(scale[missed], np.inf)
    scale[scale == 0] = 1
    return centre.reshape(shape), scale.reshape(shape)


def _widened(space: Space) -> Space:
    if isinstance(space, Dict):
        items = space.spaces.items()
        return Dict(OrderedDict((key, _widened(child)) for key, child in items))
    if isinstance(space, Tuple):
        return Tuple(map(_widened, space.spaces))
    if not is_float_box(space) or space.dtype.itemsize >= 4:
        return space
    return Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)


def _as_leaf(space: Leaf, action: Any) -> Any:
    return np.asarray(action).astype(space.dtype, copy=False)


def _normalize_leaf(space: Leaf, action: Any) -> Any:
    array = _leaf_array(space, action)
    if not is_float_box(space):
        return _cast_exactly(space, array)
    centre, scale = action_scaling(space)
    return np.asarray((array - centre) / scale, space.dtype)


def _unsquash_leaf(space: Leaf, action: Any) -> Any:
    if not is_float_box(space):
        return _clip_leaf(space, action)
    centre, scale = action_scaling(space)
    return _clip_leaf(space, centre + scale * _leaf_array(space, action))


def _clip_leaf(space: Leaf, action: Any) -> Any:
    array = _leaf_array(space, action)
    if is_float_box(space):
        return np.asarray(np.clip(array, space.low, space.high), space.dtype)
    if isinstance(space, Box):
        return _round_and_clip(space, array)
    return _cast_exactly(space, array)


def _round_and_clip(space: Box, action: Array) -> Array:
    """Rounds to integers that saturate at the limits of the dtype, then clips to the bounds."""
    dtype: np.dtype[Any] = np.dtype(np.uint8) if space.dtype.kind == "b" else space.dtype
    limits = np.iinfo(dtype)
    if action.dtype.kind == "f":
        largest = float(limits.max)
        if largest > limits.max:  # float64 rounds 2⁶³ - 1 up, out of the dtype.
            largest = np.nextafter(largest, 0)
        action = np.clip(np.rint(action, dtype=np.float64), limits.min, largest)
    elif action.dtype.kind in "iu":
        given = np.iinfo(action.dtype)
        action = np.clip(action, max(limits.min, given.min), min(limits.max, given.max))
    return np.asarray(np.clip(action.astype(dtype), space.low, space.high), space.dtype)


def _cast_exactly(space: Leaf, action: Array) -> Any:
    # A `Discrete` action is a scalar, usable as an index or a key, and not an array of rank 0.
    return action.astype(space.dtype, casting="same_kind", copy=False)[
        () if space.shape == () else ...
    ]


def _leaf_array(space: Leaf, action: Any) -> Array:
    array, shape = np.asarray(action), space.shape or ()
    if array.shape[array.ndim - len(shape) :] != shape:
        expected = ", ".join(["...", *map(str, shape)])
        raise ValueError(f"`action`: expected ({expected}) for {space}, got {array.shape}.")
    return array
