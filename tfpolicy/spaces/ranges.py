"""Whether discrete values are among those of their space."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

from tfpolicy.spaces.base import Leaf


def has_range(space: Space) -> TypeGuard[Discrete | MultiDiscrete | MultiBinary]:
    """Returns whether `check_in_range` has anything to check for a leaf."""
    return isinstance(space, Discrete | MultiDiscrete | MultiBinary)


def check_in_range(space: Leaf, values: np.ndarray, name: str) -> None:
    """Checks that no discrete value is outside of its space.

    A one-hot encoding makes zeros of such a value, and a loss may take it without a word.
    Boxes are not checked: environments do leave their bounds, and networks take it.

    Args:
        space: A leaf space.
        values: `[B, *space.shape]` of any dtype.
        name: What the message calls them.

    Raises:
        ValueError: A value is outside; the first such row is named.
    """
    if not isinstance(space, Box):
        check_in_bounds(space, values, name)


def check_in_bounds(space: Leaf, values: np.ndarray, name: str) -> None:
    """Checks as `check_in_range`, but values of boxes, too."""
    low: Any
    high: Any
    if isinstance(space, Box):
        low, high = space.low, space.high
    elif isinstance(space, MultiBinary):
        low, high = np.int64(0), np.int64(1)
    elif isinstance(space, MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    else:
        low, high = space.start, space.start + space.n - 1
    outside = (values < low) | (values > high)
    if outside.any():
        row = int(np.argwhere(outside)[0][0])
        raise ValueError(f"`{name}`: row {row} is {values[row]!s}, outside of {space}.")
