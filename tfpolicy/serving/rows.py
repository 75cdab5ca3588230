"""Rows of a batch that are answered by different versions of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfpolicy.serving.sessions import SessionState

# Actions, the states after them, further columns; as `compute_actions` returns them.
Acted = tuple[Any, list[np.ndarray], dict[str, np.ndarray]]


def rows_of(
    inputs: Mapping[str, np.ndarray], rows: Sequence[int], states: Sequence[SessionState]
) -> dict[str, np.ndarray]:
    """Some rows of named arrays [B, ...], with their states for input."""
    chosen = {name: value[rows] for name, value in inputs.items()}
    for index in range(len(states[rows[0]].arrays)):
        chosen[f"state_in_{index}"] = np.stack([states[row].arrays[index] for row in rows])
    return chosen


def merged(acted: Sequence[tuple[list[int], Acted]]) -> Acted:
    """Puts the rows of several versions back in order.

    Args:
        acted: For each version the numbers of its rows, and what it did for them.

    Returns:
        What was done for all rows; no states where those of the versions differ in shape.
    """
    if len(acted) == 1:
        return acted[0][1]
    order = np.argsort([row for rows, _ in acted for row in rows])

    def join(*parts: np.ndarray) -> np.ndarray:
        return np.concatenate(parts)[order]

    actions, states, extras = zip(*(part for _, part in acted), strict=True)
    shapes = {tuple(array.shape[1:] for array in part) for part in states}
    return (
        tf.nest.map_structure(join, *actions),
        [join(*parts) for parts in zip(*states, strict=True)] if len(shapes) == 1 else [],
        {name: join(*(part[name] for part in extras)) for name in extras[0]},
    )
