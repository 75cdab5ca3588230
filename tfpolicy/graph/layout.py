"""How the columns of a train batch lie in memory: as rows, or as padded sequences of rows."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfpolicy.graph.placeholders import ColumnSpec

_PER_SEQUENCE = re.compile(r"seq_lens|state_in_\d+")


class TrainLayout:
    """Converts between a batch and the flat list of leaves that the graph takes.

    A *unit* is a row, or with `max_seq_len` a sequence of so many rows: what may not be torn apart
    by minibatches or towers. Leaves are [U, ...] per row, [U, T, ...] per sequence of rows.

    Args:
        specs: The columns that learning reads, with specs of one row.
        max_seq_len: Length of the padded sequences; `None` for rows.
        per_sequence: Columns of which a sequence has one value, beside `seq_lens` and the states.
    """

    def __init__(
        self,
        specs: Mapping[str, ColumnSpec],
        max_seq_len: int | None = None,
        per_sequence: Collection[str] = (),
    ):
        self.per_sequence = frozenset(per_sequence)
        self.specs = dict(sorted(specs.items()))
        self.max_seq_len = max_seq_len
        self.rows_per_unit = max_seq_len or 1
        self._leaf_names = [
            name for name, spec in self.specs.items() for _ in tf.nest.flatten(spec)
        ]
        self._row_specs = tf.nest.flatten(self.specs)

    @property
    def batch_specs(self) -> dict[str, Any]:
        """The columns with specs [B, ...], as one tower's loss sees them."""
        return tf.nest.map_structure(_with_free_batch, self.specs)

    @property
    def unit_specs(self) -> list[tf.TensorSpec]:
        """The spec of one unit of each leaf."""
        if self.max_seq_len is None:
            return self._row_specs
        return [
            spec
            if self._is_per_sequence(name)
            else tf.TensorSpec([self.max_seq_len, *spec.shape], spec.dtype)
            for name, spec in zip(self._leaf_names, self._row_specs, strict=True)
        ]

    @property
    def input_specs(self) -> list[tf.TensorSpec]:
        """Specs of the leaves with any number of units."""
        return [_with_free_batch(spec) for spec in self.unit_specs]

    def leaves(self, batch: Mapping[str, Any]) -> list[np.ndarray]:
        """Takes the columns that learning reads out of a batch and checks them.

        Args:
            batch: Columns [B, ...]; B is U * T, and `seq_lens`, the states and `per_sequence` are
                [U, ...], if there are sequences.

        Raises:
            KeyError: A column is missing.
            ValueError: A column has the wrong shape or dtype, or there are no rows.
        """
        missing = [name for name in self.specs if name not in batch]
        if missing:
            raise KeyError(
                f"The batch lacks what learning reads: {', '.join(missing)}. "
                f"It has: {', '.join(batch)}."
            )
        leaves = []
        for name, spec in self.specs.items():
            leaves += column_leaves(name, batch[name], spec)
        if not len(leaves[0]):
            raise ValueError("The batch has no rows; there is nothing to learn from.")
        return [
            self._as_units(name, leaf) for name, leaf in zip(self._leaf_names, leaves, strict=True)
        ]

    def num_valid(self, leaves: Sequence[Any]) -> Any:
        """How many rows are learned from, for arrays (an int) or tensors (an int32 scalar)."""
        first = leaves[0]
        if not tf.is_tensor(first):
            return int(self.unit_rows(leaves).sum())
        if self.max_seq_len is None:
            return tf.shape(first)[0]
        num_rows = tf.reduce_sum(leaves[self._leaf_names.index("seq_lens")])
        if "burn_in" not in self._leaf_names:
            return num_rows
        warming_up = leaves[self._leaf_names.index("burn_in")]
        return num_rows - tf.reduce_sum(tf.cast(warming_up, tf.int32))

    def unit_rows(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """How many rows to learn from each unit has, [U] int."""
        if self.max_seq_len is None:
            return np.ones(len(leaves[0]), np.int64)
        seq_lens = leaves[self._leaf_names.index("seq_lens")]
        if "burn_in" not in self._leaf_names:
            return seq_lens
        return seq_lens - leaves[self._leaf_names.index("burn_in")].sum(axis=1)

    def as_rows(self, leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Flattens sequences to the rows that a loss sees; states and `seq_lens` stay."""
        if self.max_seq_len is None:
            return list(leaves)
        return [
            leaf if self._is_per_sequence(name) else tf.reshape(leaf, [-1, *spec.shape])
            for name, leaf, spec in zip(self._leaf_names, leaves, self._row_specs, strict=True)
        ]

    def _is_per_sequence(self, name: str) -> bool:
        return name in self.per_sequence or _PER_SEQUENCE.fullmatch(name) is not None

    def _as_units(self, name: str, leaf: np.ndarray) -> np.ndarray:
        if self.max_seq_len is None or self._is_per_sequence(name):
            return leaf
        return leaf.reshape(-1, self.max_seq_len, *leaf.shape[1:])


def column_leaves(name: str, value: Any, spec: ColumnSpec) -> list[np.ndarray]:
    """The leaves of one column, each [B, ...] of the dtype of its spec.

    A nested column is a structure of arrays or a list of structures.

    Raises:
        ValueError: The structure, a shape or a dtype does not fit.
    """
    if isinstance(spec, tf.TensorSpec):
        return [_checked(name, value, spec)]
    try:
        if isinstance(value, list):  # One structure a row.
            value = tf.nest.map_structure(lambda *rows: np.stack(rows), *value)
        tf.nest.assert_same_structure(spec, value, check_types=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Column `{name}`: expected the structure {spec}: {error}") from None
    pairs = zip(tf.nest.flatten(value), tf.nest.flatten(spec), strict=True)
    return [_checked(name, leaf, leaf_spec) for leaf, leaf_spec in pairs]


def _with_free_batch(spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([None, *spec.shape], spec.dtype)


def _checked(name: str, value: Any, spec: tf.TensorSpec) -> np.ndarray:
    array = np.asarray(value)
    dtype = spec.dtype.as_numpy_dtype
    if array.shape[1:] != tuple(spec.shape) or array.ndim == 0:
        expected = ", ".join(["B", *map(str, spec.shape)])
        raise ValueError(f"Column `{name}`: expected shape ({expected}), got {array.shape}.")
    if array.dtype == dtype:
        return array
    both_integers = array.dtype.kind in "iu" and spec.dtype.is_integer
    if not both_integers and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"Column `{name}`: expected {spec.dtype.name}, got {array.dtype}.")
    converted = array.astype(dtype)
    if array.dtype.kind in "iu" and not np.array_equal(converted, array):
        raise ValueError(f"Column `{name}`: a value does not fit into {spec.dtype.name}.")
    return converted
