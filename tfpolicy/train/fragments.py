"""Blocks of steps, time-major as they were sampled, and the fragments of episodes cut from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tfpolicy.columns import Column, map_column
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.view_requirement import ViewRequirement

Array = np.ndarray


class Recorder:
    """Columns [T, ...] that are allocated when their first row comes in.

    Args:
        num_steps: T.
    """

    def __init__(self, num_steps: int):
        self.num_steps = num_steps
        self.columns: dict[str, Column] = {}

    def put(self, step: int, name: str, rows: Column) -> None:
        """Copies `rows` [N, ...], an array or a structure of arrays, into column `name`."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = map_column(self._allocate, rows)
        if type(column) is np.ndarray:
            column[step] = rows
        else:
            _assign(column, step, rows)

    def _allocate(self, rows: Array) -> Array:
        return np.empty((self.num_steps, *rows.shape), rows.dtype)


@dataclasses.dataclass(frozen=True)
class Block:
    """T steps of N sub-environments.

    Attributes:
        columns: Columns [T, N, ...]; the rows of an episode follow each other along T.
        valid: [T, N] bool, False where a step was a reset and its row is no transition.
    """

    columns: Mapping[str, Column]
    valid: Array

    def rows(self, first_unroll_id: int) -> SampleBatch:
        """All transitions [B, ...], those of one sub-environment after those of another.

        Args:
            first_unroll_id: Number of the first fragment: a column says which fragment a row is of.
        """
        num_rows = self.valid.size
        kept = None if self.valid.all() else np.flatnonzero(self.valid.T)

        def flat(column: Array) -> Array:
            rows = column.swapaxes(0, 1).reshape(num_rows, *column.shape[2:])
            return rows if kept is None else rows[kept]

        rows = {name: map_column(flat, column) for name, column in self.columns.items()}
        eps_id = rows[SampleBatch.EPS_ID]
        unroll_id = np.zeros(len(eps_id), np.int64)
        # An episode runs in one sub-environment, so a new one begins wherever the number changes.
        np.cumsum(eps_id[1:] != eps_id[:-1], out=unroll_id[1:])
        rows[SampleBatch.UNROLL_ID] = unroll_id + first_unroll_id
        rows[SampleBatch.AGENT_INDEX] = np.zeros(len(eps_id), np.int64)
        return SampleBatch(rows)


def fragments_of(rows: SampleBatch, late: Mapping[str, ViewRequirement]) -> list[SampleBatch]:
    """Cuts the rows of a block at the borders of sub-environments and episodes.

    Args:
        rows: See `Block.rows`.
        late: Views to be made from the rows of each fragment.
    """
    fragments = rows.split_by_episode() if rows.count else []
    for fragment in fragments:
        for name, view in late.items():
            fragment[name] = view.apply(fragment[view.data_col or name])
    return fragments


def _assign(column: Column, step: int, rows: Column) -> None:
    if isinstance(column, np.ndarray):
        column[step] = rows
    elif isinstance(column, dict):
        for key, child in column.items():
            _assign(child, step, rows[key])
    else:
        for child, child_rows in zip(column, rows, strict=True):
            _assign(child, step, child_rows)
