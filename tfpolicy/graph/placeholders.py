"""Columns that become graph inputs when something first reads them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.spaces import leaf_spaces, unflatten
from tfpolicy.view_requirement import ViewRequirement

# The spec of a column: `tf.TensorSpec` of one row, in the structure of a nested column.
ColumnSpec = Any


class LazyColumns(Mapping):
    """A mapping of columns whose tensors are made at the first read.

    What was read is known afterwards (`columns.read`), so that nothing needs to be declared and
    nothing taken away again.

    Args:
        specs: The columns that can be read.
        make: Makes the tensor of one leaf from its name and the spec of one row.
    """

    def __init__(
        self, specs: Mapping[str, ColumnSpec], make: Callable[[str, tf.TensorSpec], tf.Tensor]
    ):
        self._specs = specs
        self._make = make
        self._given: dict[str, Any] = {}
        self.read: dict[str, Any] = {}

    def give(self, columns: Mapping[str, Any]) -> None:
        """Adds columns that are not inputs, but computed in the graph or plain numbers."""
        self._given.update(columns)

    def __getitem__(self, name: str) -> Any:
        if name in self._given:
            return self._given[name]
        if name not in self.read:
            if name not in self._specs:
                raise KeyError(unknown_column(name, list(self)))
            self.read[name] = make_structure(name, self._specs[name], self._make)
        return self.read[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._given, *(name for name in self._specs if name not in self._given)])

    def __len__(self) -> int:
        return len(list(iter(self)))


def batch_placeholder(name: str, spec: tf.TensorSpec) -> tf.Tensor:
    """A placeholder for rows of `spec`: the batch dimension is free."""
    return tf.compat.v1.placeholder(spec.dtype, [None, *spec.shape], name)


def make_structure(name: str, spec: ColumnSpec, make: Callable[[str, tf.TensorSpec], Any]) -> Any:
    """Applies `make` to each leaf of a column; nested ones get the path in their name."""
    if isinstance(spec, Mapping):
        return {key: make_structure(f"{name}_{key}", part, make) for key, part in spec.items()}
    if isinstance(spec, tuple):
        parts = (make_structure(f"{name}_{i}", part, make) for i, part in enumerate(spec))
        return tuple(parts)
    return make(_scope_name(name), spec)


def unknown_column(name: str, known: list[str]) -> str:
    """The text of the error about a column that does not exist."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"There is no column {name!r}.{hint} Columns: {', '.join(known)}."


def space_spec(space: gym.Space) -> ColumnSpec:
    """The spec of one value of a space, in the space's structure."""
    leaves = leaf_spaces(space, "leaf").values()
    return unflatten(space, [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in leaves])


def view_spec(view: ViewRequirement, data: ColumnSpec) -> ColumnSpec:
    """The spec of one row of a view: windows have an axis for their offsets in front."""
    if not view.is_window:
        return data
    width = len(view.offsets)
    return tf.nest.map_structure(lambda s: tf.TensorSpec([width, *s.shape], s.dtype), data)


def array_spec(column: Any) -> ColumnSpec:
    """The spec of one row of a column of arrays [B, ...]."""
    return tf.nest.map_structure(
        lambda array: tf.TensorSpec(array.shape[1:], np.asarray(array).dtype), column
    )


def _scope_name(name: str) -> str:
    """Graph names allow only some characters, and fewer at the start."""
    allowed = re.sub(r"[^0-9A-Za-z_./-]", "_", name)
    return allowed if re.match(r"[0-9A-Za-z]", allowed) else f"column{allowed}"
