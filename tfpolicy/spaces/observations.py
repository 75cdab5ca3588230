"""Batches of observations as one array a leaf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Space

from tfpolicy.spaces.base import NESTED_TYPES, Leaf, flatten, leaf_spaces, parts, walk
from tfpolicy.spaces.ranges import check_in_range, has_range

Array = np.ndarray


def batch_observations(space: Space, obs: Any, name: str = "obs") -> list[Array]:
    """Returns a batch of observations as one array a leaf.

    Args:
        space: The observation space.
        obs: An array or list of observations for a leaf. For `Dict` and `Tuple` spaces either a
            mapping or tuple of batches, or a list of observations: a tuple is one batch an item,
            a list one observation an item.
        name: What messages call the observations; leaves as in `leaf_spaces(space, name)`.

    Returns:
        `[B, *leaf.shape]` arrays of the leaves' dtypes. Values are cast where only precision can be
        lost: between floats, from integers to floats, and between integers that fit.

    Raises:
        KeyError: A key of a `Dict` is missing.
        ValueError: A leaf has the wrong shape, dtype or number of rows, or a discrete value that
            is not in its space.
    """
    # What a vector environment returns, at every step: worth not going through the general case.
    if _is_batch(space, obs):
        if has_range(space):
            check_in_range(space, obs, name)
        return [obs]
    leaves = [leaf for _, leaf in walk(space)]
    arrays = list(_columns(space, obs, name))
    if not all(map(_is_batch, leaves, arrays)):
        arrays = list(map(_to_batch, leaves, arrays, leaf_spaces(space, name)))
    for leaf, array, leaf_name in zip(leaves, arrays, leaf_spaces(space, name), strict=True):
        check_in_range(leaf, array, leaf_name)
    if len(set(map(len, arrays))) > 1:
        rows = dict(zip(leaf_spaces(space, name), map(len, arrays), strict=True))
        raise ValueError(f"`{name}`: expected as many rows in every leaf, got {rows}.")
    return arrays


def _is_batch(space: Space, obs: Any) -> bool:
    # The shape of a nested space is None, which no array has.
    return (
        type(obs) is np.ndarray
        and obs.shape[1:] == space.shape
        and obs.ndim > 0
        and obs.dtype == space.dtype
    )


def _columns(space: Space, obs: Any, name: str) -> Iterator[Any]:
    """Yields the batch of each leaf, as it came."""
    if not isinstance(space, NESTED_TYPES):
        yield obs
    elif isinstance(obs, Mapping if isinstance(space, Dict) else tuple):
        for part in parts(space, obs, name):
            yield from _columns(*part)
    elif isinstance(obs, list | tuple) and obs:
        rows = [flatten(space, row, f"{name}[{index}]") for index, row in enumerate(obs)]
        yield from map(list, zip(*rows, strict=True))
    else:
        came = repr(obs) if isinstance(obs, list | tuple) else type(obs).__name__
        raise ValueError(
            f"`{name}`: expected a {'mapping' if isinstance(space, Dict) else 'tuple'} of batches "
            f"or a list of observations, got {came}."
        )


def _to_batch(space: Leaf, obs: Any, name: str) -> Array:
    expected = f"(B, {', '.join(map(str, space.shape))})" if space.shape else "(B,)"
    try:
        array = np.asarray(obs)
    except ValueError as error:
        raise ValueError(f"`{name}`: expected {expected}, got rows of unequal shapes.") from error
    if array.ndim == 0 or array.shape[1:] != space.shape:
        raise ValueError(f"`{name}`: expected {expected}, got {array.shape}.")
    if not _fits(array, space.dtype):
        raise ValueError(
            f"`{name}`: expected {space.dtype}, got {array.dtype} values that it cannot hold."
        )
    return array.astype(space.dtype, copy=False)


def _fits(array: Array, dtype: np.dtype) -> bool:
    """Returns whether `dtype` holds all values of an array, up to the precision of a float."""
    if np.can_cast(array.dtype, dtype):
        return True
    if array.dtype.kind not in ("iuf" if dtype.kind == "f" else "iu"):
        return False
    values = array[np.isfinite(array)]
    if values.size == 0:
        return True
    if dtype.kind == "f":
        return np.abs(values.astype(np.float64)).max() <= np.finfo(dtype).max
    lowest, highest = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return lowest <= int(values.min()) and int(values.max()) <= highest
