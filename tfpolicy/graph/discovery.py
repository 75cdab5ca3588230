"""Finding out which columns the hooks of a policy really read, by running them once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.graph.placeholders import ColumnSpec, LazyColumns, batch_placeholder
from tfpolicy.graph.towers import TrainBatch
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.spaces import leaf_spaces, unflatten

_LARGE = 1e4


def sample_rows(space: gym.Space, num_rows: int, seed: int) -> Any:
    """Rows drawn from a space, in its structure; neither the space nor anyone's seed changes.

    Drawn rather than zero, because some networks cannot take an observation of zeros.
    """
    columns = []
    for index, leaf in enumerate(leaf_spaces(space, "leaf").values()):
        own = copy.deepcopy(leaf)
        own.seed(seed + index)
        rows = np.stack([np.asarray(own.sample(), leaf.dtype) for _ in range(num_rows)])
        if isinstance(leaf, gym.spaces.Box) and rows.dtype.kind == "f":
            # Some spaces are bounded by the largest number there is, where sums are infinite.
            rows = np.clip(np.clip(rows, -_LARGE, _LARGE), leaf.low, leaf.high)
        columns.append(rows)
    return unflatten(space, columns)


def recording_batch(columns: Mapping[str, Any]) -> tuple[SampleBatch, set[str]]:
    """A batch, and the set that fills with the names read from it or from what is made of it."""
    reads: set[str] = set()

    class RecordingBatch(SampleBatch):
        def __init__(self, columns: Mapping[str, Any]):
            super().__init__(columns)
            self._columns = _RecordingColumns(self._columns, reads)

        @classmethod
        def _of_checked(
            cls, columns: dict[str, Any], count: int, max_seq_len: int | None
        ) -> SampleBatch:
            recording = _RecordingColumns(columns, reads)
            return super()._of_checked(recording, count, max_seq_len)

    return RecordingBatch(columns), reads


class _RecordingColumns(dict):
    """Columns that note which of them are read, and whose copy notes it in the same place."""

    def __init__(self, columns: Mapping[str, Any], reads: set[str]):
        super().__init__(columns)
        self._reads = reads

    def __getitem__(self, name: str) -> Any:
        self._reads.add(name)
        return super().__getitem__(name)

    def __delitem__(self, name: str) -> None:
        # Who deletes a column expects that it is there.
        self._reads.add(name)
        super().__delitem__(name)

    def copy(self) -> _RecordingColumns:
        return _RecordingColumns(self, self._reads)


def columns_read(
    function: Callable[[TrainBatch], Any],
    specs: Mapping[str, ColumnSpec],
    coefficients: Mapping[str, tf.Variable],
    max_seq_len: int | None,
) -> list[str]:
    """Names of the columns that a loss reads; the operations it makes are thrown away.

    Raises:
        KeyError: It reads a column that is not in `specs`.
    """
    columns = LazyColumns(specs, batch_placeholder)

    def trace() -> tf.Tensor:
        function(TrainBatch(columns, coefficients, max_seq_len))
        return tf.constant(0)

    tf.function(trace, autograph=False).get_concrete_function()
    return list(columns.read)
