"""SampleBatch: a mapping of equally long columns, one row a step of an environment."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, overload

import numpy as np

from tfpolicy.columns import Column, as_column, map_column, row_count, select
from tfpolicy.sequences import as_seq_lens, lengths_within, pad, rows_in_order


class SampleBatch(MutableMapping[str, Column]):
    """Columns of equal length, by name.

    A column is an array `[B, ...]` or a nested dict or tuple of arrays (a Dict or Tuple space).
    Lists become arrays; nothing else is converted, and nothing is copied unless a method says so.
    Only `infos` may hold Python objects. As in every mapping, `len(batch)` counts columns;
    `batch.count` counts rows.

    `seq_lens` `[S]` int32 is the one column that counts sequences: consecutive rows belong to one,
    and the lengths sum to `count`. In a batch padded by `right_zero_pad` the lengths are still the
    true ones, while every sequence takes up `max_seq_len` rows.

    `"dones"` reads as `terminateds | truncateds` unless it was stored; it is not listed.

    Raises:
        ValueError: If columns differ in length, or one is a scalar, ragged, or of objects.
        TypeError: If the name of a column is not a string.
    """

    OBS = "obs"
    NEXT_OBS = "new_obs"
    ACTIONS = "actions"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    DONES = "dones"
    INFOS = "infos"
    EPS_ID = "eps_id"
    UNROLL_ID = "unroll_id"
    AGENT_INDEX = "agent_index"
    T = "t"
    PREV_ACTIONS = "prev_actions"
    PREV_REWARDS = "prev_rewards"
    SEQ_LENS = "seq_lens"
    ACTION_LOGP = "action_logp"
    ACTION_PROB = "action_prob"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    VF_PREDS = "vf_preds"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"

    def __init__(self, columns: Mapping[str, Any] | None = None, /, **named_columns: Any):
        self._columns: dict[str, Column] = {}
        self._count = 0
        self._max_seq_len: int | None = None
        if isinstance(columns, SampleBatch):
            self._columns = columns._columns.copy()
            self._count = columns._count
            self._max_seq_len = columns._max_seq_len
            columns = None
        values = {**(columns or {}), **named_columns}
        # The lengths of the sequences can only be checked once the number of rows is known.
        for name, value in values.items():
            if name != self.SEQ_LENS:
                self[name] = value
        if self.SEQ_LENS in values:
            self[self.SEQ_LENS] = values[self.SEQ_LENS]

    @classmethod
    def _of_checked(
        cls, columns: dict[str, Column], count: int, max_seq_len: int | None
    ) -> SampleBatch:
        """Wraps columns that came out of a checked batch: slicing must cost next to nothing."""
        batch = cls.__new__(cls)
        batch._columns = columns
        batch._count = count
        batch._max_seq_len = max_seq_len
        return batch

    @property
    def count(self) -> int:
        """The number of rows, those of the padding included."""
        return self._count

    @property
    def max_seq_len(self) -> int | None:
        """The rows every sequence takes up in a padded batch; None in any other."""
        return self._max_seq_len

    @overload
    def __getitem__(self, key: str) -> Column: ...

    @overload
    def __getitem__(self, key: builtins.slice) -> SampleBatch: ...

    def __getitem__(self, key: str | builtins.slice) -> Column:
        if isinstance(key, slice):
            if key.step not in (None, 1):
                raise ValueError(f"A batch is sliced with step 1, got {key.step}; use `take`.")
            return self.slice(key.start, key.stop)
        if key in self._columns:
            return self._columns[key]
        if key == self.DONES and self.TERMINATEDS in self._columns:
            return self._dones()
        raise KeyError(f"No column `{key}` in the batch; present: {sorted(self._columns)}.")

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"The name of a column must be a string, got {name!r}.")
        if name == self.SEQ_LENS:
            self._columns[name] = self._checked_seq_lens(value)
            return
        column = as_column(name, value, objects=name == self.INFOS)
        rows = row_count(name, column)
        if rows != self._count:
            self._check_may_change_count(name, rows)
            self._count = rows
        self._columns[name] = column

    def __delitem__(self, name: str) -> None:
        if name not in self._columns:
            raise KeyError(f"No column `{name}` to delete; present: {sorted(self._columns)}.")
        del self._columns[name]
        if not self._columns.keys() - {self.SEQ_LENS}:
            self._columns.clear()
            self._count = 0
        if self.SEQ_LENS not in self._columns:
            self._max_seq_len = None

    def __contains__(self, name: object) -> bool:
        """Whether `batch[name]` can be read."""
        if name in self._columns:
            return True
        return name == self.DONES and self.TERMINATEDS in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"SampleBatch({self._count} rows: {list(self._columns)})"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterates over the rows as dicts, without `seq_lens`."""
        columns = [(name, self[name]) for name in self._columns if name != self.SEQ_LENS]
        for i in range(self._count):
            yield {name: select(column, i) for name, column in columns}

    def slice(self, start: int | None, end: int | None) -> SampleBatch:
        """Returns rows `start` to `end` as views, with Python's rules for slices.

        A sequence that is cut keeps the rows within: `seq_lens` follow.

        Raises:
            ValueError: If a padded batch is cut within a sequence.
        """
        start, end, _ = slice(start, end).indices(self._count)
        end = max(start, end)
        columns = self._select(slice(start, end))
        if self.SEQ_LENS in self._columns:
            columns[self.SEQ_LENS] = self._sliced_seq_lens(start, end)
        return self._of_checked(columns, end - start, self._max_seq_len)

    def take(self, indices: Any) -> SampleBatch:
        """Returns a new batch of the rows at `indices`, `[K]` int, in that order.

        Raises:
            ValueError: If the batch has `seq_lens`: rows at will are no sequences.
        """
        if self.SEQ_LENS in self._columns:
            raise ValueError("`take` expects a batch without `seq_lens`; delete the column first.")
        indices = np.asarray(indices)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise ValueError(
                f"`indices`: expected integers [K], got {indices.dtype} of shape {indices.shape}."
            )
        indices = indices.astype(np.intp, copy=False)
        return self._of_checked(self._select(indices), len(indices), None)

    def shuffle(self, rng: np.random.Generator) -> SampleBatch:
        """Returns a new batch in random order: of whole sequences if it has `seq_lens`."""
        if self.SEQ_LENS not in self._columns:
            return self.take(rng.permutation(self._count))
        seq_lens = self._columns[self.SEQ_LENS]
        order = rng.permutation(len(seq_lens))
        columns = self._select(rows_in_order(self._sequence_rows(), order))
        columns[self.SEQ_LENS] = seq_lens[order]
        return self._of_checked(columns, self._count, self._max_seq_len)

    def concat(self, other: Mapping[str, Any]) -> SampleBatch:
        """Returns a new batch of these rows, then those of `other`, which has the same columns."""
        return concat_samples([self, other])

    @staticmethod
    def concat_samples(samples: Iterable[Mapping[str, Any]]) -> SampleBatch:
        """See `concat_samples` of this module; here because RLlib has it here, too."""
        return concat_samples(samples)

    def split_by_episode(self) -> list[SampleBatch]:
        """Returns the batch cut where `eps_id` changes, or without that column, after each end.

        Raises:
            KeyError: If there is neither `eps_id` nor `terminateds`.
            ValueError: If the batch is padded.
        """
        if self._max_seq_len is not None:
            raise ValueError("`split_by_episode` expects an unpadded batch, got a padded one.")
        if self.EPS_ID in self._columns:
            eps_id = self._columns[self.EPS_ID]
            last = eps_id[1:] != eps_id[:-1]
        else:
            last = np.asarray(self[self.DONES], dtype=bool)[:-1]
        cuts = [0, *(np.flatnonzero(last) + 1).tolist(), self._count]
        return [self.slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False) if a < b]

    def timeslices(self, size: int) -> list[SampleBatch]:
        """Returns consecutive slices of `size` rows; the last has what is left over."""
        if size < 1:
            raise ValueError(f"`size` must be positive, got {size}.")
        return [self.slice(start, start + size) for start in range(0, self._count, size)]

    def right_zero_pad(self, max_seq_len: int) -> SampleBatch:
        """Returns a new batch with every sequence padded by zeros to `max_seq_len` rows.

        Raises:
            KeyError: If there is no `seq_lens`.
            ValueError: If a sequence is longer than that, or the batch is padded already.
        """
        if self._max_seq_len is not None:
            raise ValueError(
                f"The batch is padded already, to {self._max_seq_len} rows a sequence."
            )
        seq_lens = self[self.SEQ_LENS]
        columns = {
            name: seq_lens.copy() if name == self.SEQ_LENS else pad(column, seq_lens, max_seq_len)
            for name, column in self._columns.items()
        }
        return self._of_checked(columns, len(seq_lens) * max_seq_len, max_seq_len)

    def copy(self) -> SampleBatch:
        """Returns a batch that shares no memory with this one."""
        columns = {
            name: map_column(copy.deepcopy, column) for name, column in self._columns.items()
        }
        return self._of_checked(columns, self._count, self._max_seq_len)

    def _select(self, index: Any) -> dict[str, Column]:
        # A copy is of the same kind of dict, which may be one that notes what is read.
        columns = self._columns.copy()
        columns.pop(self.SEQ_LENS, None)
        for name, column in columns.items():
            columns[name] = select(column, index)
        return columns

    def _dones(self) -> np.ndarray:
        terminateds = np.asarray(self._columns[self.TERMINATEDS], dtype=bool)
        if self.TRUNCATEDS not in self._columns:
            return terminateds
        return terminateds | np.asarray(self._columns[self.TRUNCATEDS], dtype=bool)

    def _sequence_rows(self) -> np.ndarray:
        """Returns how many rows each sequence takes up, `[S]`."""
        seq_lens = self._columns[self.SEQ_LENS]
        return seq_lens if self._max_seq_len is None else np.full_like(seq_lens, self._max_seq_len)

    def _sliced_seq_lens(self, start: int, end: int) -> np.ndarray:
        seq_lens = self._columns[self.SEQ_LENS]
        if self._max_seq_len is None:
            return lengths_within(seq_lens, start, end)
        if start % self._max_seq_len or end % self._max_seq_len:
            raise ValueError(
                f"A padded batch is cut at multiples of {self._max_seq_len}, got {start}:{end}."
            )
        return seq_lens[start // self._max_seq_len : end // self._max_seq_len]

    def _checked_seq_lens(self, value: Any) -> np.ndarray:
        seq_lens = as_seq_lens(value)
        if self._max_seq_len is not None:
            rows, longest = len(seq_lens) * self._max_seq_len, self._max_seq_len
        else:
            rows, longest = int(seq_lens.sum()), self._count
        if rows != self._count or seq_lens.max(initial=0) > longest:
            raise ValueError(
                f"`seq_lens`: expected the lengths of sequences in {self._count} rows"
                f"{'' if self._max_seq_len is None else f' padded to {longest}'}, "
                f"got {seq_lens.tolist()}."
            )
        return seq_lens

    def _check_may_change_count(self, name: str, rows: int) -> None:
        """Only a batch's sole column may come with another number of rows."""
        others = sorted(self._columns.keys() - {name})
        if others:
            raise ValueError(
                f"Column `{name}`: expected {self._count} rows, as in {others}, got {rows}."
            )


def concat_samples(samples: Iterable[Mapping[str, Any]]) -> SampleBatch:
    """Returns a new batch of the rows of all `samples`, in order.

    Args:
        samples: Batches or plain dicts with the same columns.

    Raises:
        ValueError: If there is none, their columns differ, or only some are padded.
    """
    batches = [s if isinstance(s, SampleBatch) else SampleBatch(s) for s in samples]
    if not batches:
        raise ValueError("`samples`: expected at least one batch, got none.")
    _check_same_columns(batches)
    paddings = {batch.max_seq_len for batch in batches}
    if len(paddings) > 1:
        raise ValueError(f"`samples`: expected one padded length, got {paddings}.")
    columns = {name: _concat_column(name, [b[name] for b in batches]) for name in batches[0]}
    count = sum(batch.count for batch in batches)
    return SampleBatch._of_checked(columns, count, paddings.pop())


def _check_same_columns(batches: Sequence[SampleBatch]) -> None:
    first = set(batches[0])
    for i, batch in enumerate(batches):
        if set(batch) != first:
            raise ValueError(
                "`samples`: expected the same columns in every batch, got in batch "
                f"{i} none of {sorted(first - set(batch))} but also {sorted(set(batch) - first)}."
            )


def _concat_column(name: str, parts: list[Column]) -> Column:
    try:
        return map_column(lambda *leaves: np.concatenate(leaves), *parts)
    except ValueError as error:
        raise ValueError(f"Column `{name}` cannot be concatenated: {error}") from error
