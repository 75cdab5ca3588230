"""ViewRequirement: which steps of which column a model sees, in a trajectory and while acting."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from tfpolicy.columns import Column, as_column, blank, map_column, row_count

_RANGE = re.compile(r"(-?\d+):(-?\d+)(?::(\d+))?")


@dataclasses.dataclass(frozen=True)
class ViewRequirement:
    """One column as the model sees it: another column, shifted in time.

    Steps before the first of the episode and after the last of the trajectory are zeros (empty
    dicts for objects).

    Attributes:
        data_col: The column that is looked at; None for the one of the view's own name.
        space: The space of one step of the column; None for a scalar float32.
        shift: What is seen at step t. An int k: step t + k. A sequence of ints, or a range
            `"from:to"` or `"from:to:step"` with both ends included: all those steps, on a new axis
            after that of time. `"-3:0"` is the last four steps, `1` the next one.
        batch_repeat_value: In training, one value is seen for that many rows, that of the first.
            Policies take 1 or, of networks that learn from sequences, `max_seq_len`: then there is
            one row for each sequence, [S, ...], that of its first step. To act, every row has one.
        used_for_compute_actions: Whether the view is needed to act.
        used_for_training: Whether the view is needed to learn.
        as_mask: Whether what is seen is not the values themselves, but which of them are data
            rather than zeros that stand for "no step": bool, whatever the column is.
        offsets: The shift as ints, in the order in which they are seen.

    Raises:
        ValueError: If `shift` names no step or is no range, or `batch_repeat_value` is below 1.
        TypeError: If `shift` is neither an int, a sequence of ints nor a string.
    """

    data_col: str | None = None
    space: gym.Space[Any] | None = None
    shift: int | Sequence[int] | str = 0
    batch_repeat_value: int = 1
    used_for_compute_actions: bool = True
    used_for_training: bool = True
    as_mask: bool = False
    offsets: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.batch_repeat_value < 1:
            raise ValueError(
                f"`batch_repeat_value` must be positive, got {self.batch_repeat_value}."
            )
        object.__setattr__(self, "offsets", _parse_shift(self.shift))

    @property
    def is_window(self) -> bool:
        """Whether the view has an axis for its offsets: the shift is a range or a sequence."""
        return not isinstance(self.shift, int | np.integer)

    def is_past(self, name: str) -> bool:
        """Whether all that the view called `name` sees is known before a step is acted on.

        That is the observation up to the present step, and all else up to the step before.
        """
        return max(self.offsets) <= (0 if (self.data_col or name) == "obs" else -1)

    def apply(self, column: Column) -> Column:
        """Returns what is seen at each step of a trajectory of one episode.

        Args:
            column: `[T, ...]` array or nested column, the data column of the whole trajectory.

        Returns:
            `[R, ...]`, or `[R, K, ...]` for a window of K offsets, with the dtype of the column.
            R is T, or with `batch_repeat_value` k, T / k rounded up. The column itself (not a copy)
            if nothing is shifted. With `as_mask`, what `valid` returns.
        """
        if self.as_mask:
            return self.valid(row_count("column", column))
        if not self.is_window and self.offsets == (0,) and self.batch_repeat_value == 1:
            return column
        steps = self._steps(row_count("column", column))
        return map_column(self._seen_at(steps), column)

    def valid(self, length: int) -> np.ndarray:
        """Returns which values of `apply` on `length` steps are data rather than padding.

        Zeros that stand for "no step" look like a real action 0; this mask, `[R]` or `[R, K]` bool,
        tells them apart.
        """
        steps = self._steps(length)
        valid = (steps >= 0) & (steps < length)
        return valid if self.is_window else valid[:, 0]

    def _steps(self, length: int) -> np.ndarray:
        """Returns the step seen at each row and offset, `[R, K]`, inside the trajectory or not."""
        rows = np.arange(0, length, self.batch_repeat_value)
        return rows[:, None] + np.asarray(self.offsets)

    def _seen_at(self, steps: np.ndarray) -> Any:
        def seen(column: np.ndarray) -> np.ndarray:
            outside = (steps < 0) | (steps >= len(column))
            values = column[np.where(outside, 0, steps)]
            values[outside] = blank((int(outside.sum()), *column.shape[1:]), column.dtype)
            return values if self.is_window else values[:, 0]

        return seen


class History:
    """What several environments, stepped together, have shown so far: the views while acting.

    Only views that are used to act and look at no future step are kept. A step goes

        history.append({"obs": obs})                 # what is known before acting
        actions = act(history.views())
        history.append({"actions": actions, "rewards": rewards})
        history.reset(terminateds | truncateds)      # before the first observation of a new episode

    so that at step t the column `obs` has a value for t, while `actions` and `rewards` have theirs
    for t - 1. The present step is that of the latest `obs`; if none is ever appended, it is the one
    after the latest value of the other columns. A value not known yet (`actions` at offset 0) is
    zero, like those before the first step of the episode.

    Args:
        views: View requirements by name of the view.
        num_envs: The number N of environments.
        blanks: By name of a column one value of it, `[...]`, that is seen in place of zeros.
    """

    def __init__(
        self,
        views: Mapping[str, ViewRequirement],
        num_envs: int,
        blanks: Mapping[str, Column] | None = None,
    ):
        if num_envs < 1:
            raise ValueError(f"`num_envs` must be positive, got {num_envs}.")
        self._blanks = dict(blanks or {})
        self._num_envs = num_envs
        self._views = {
            name: view
            for name, view in views.items()
            if view.used_for_compute_actions and max(view.offsets) <= 0
        }
        self._rings: dict[str, _Ring] = {}
        for name, view in self._views.items():
            if view.as_mask:  # What it shows are the counts below.
                continue
            ring = self._rings.setdefault(view.data_col or name, _Ring(num_envs))
            ring.depth = max(ring.depth, 1 - min(view.offsets))
            ring.space = view.space if ring.space is None else ring.space
        # How many values each column has had; also those no view looks at, for they mark the time.
        self._counts: dict[str, int] = {}
        # The step at which the present episode of each environment began, [N].
        self._first_step = np.zeros(num_envs, dtype=np.int64)

    def append(self, columns: Mapping[str, Any]) -> None:
        """Adds the next value of each column.

        Args:
            columns: `[N, ...]` arrays or nested columns by name; those that no view looks at are
                ignored.

        Raises:
            ValueError: If a column has not N rows, or rows of another shape than its space.
            TypeError: If values would lose their kind, as floats in a column of ints.
        """
        for name, value in columns.items():
            step = self._counts.get(name, 0)
            if name in self._rings:
                column = as_column(name, value, objects=name == "infos")
                self._rings[name].write(name, step, column)
            self._counts[name] = step + 1

    def reset(self, env_mask: Any) -> None:
        """Forgets everything of the environments chosen by `env_mask`, `[N]` bool."""
        env_mask = np.asarray(env_mask, dtype=bool)
        if env_mask.shape != (self._num_envs,):
            raise ValueError(f"`env_mask`: expected ({self._num_envs},), got {env_mask.shape}.")
        self._first_step[env_mask] = self._counts.get("obs", self._present_step())

    def views(self) -> dict[str, Column]:
        """Returns what is seen at the present step: `[N, ...]`, or `[N, K, ...]` for a window."""
        return {
            name: self.valid(name) if view.as_mask else self._view(name, view)
            for name, view in self._views.items()
        }

    def valid(self, name: str) -> np.ndarray:
        """Returns which values of the view `name` are data rather than zeros, `[N]` or `[N, K]`."""
        if name not in self._views:
            raise KeyError(f"No view `{name}` while acting; known: {sorted(self._views)}.")
        view = self._views[name]
        valid = self._is_known(view.data_col or name, self._steps(view))
        return valid if view.is_window else valid[:, 0]

    def _present_step(self) -> int:
        if "obs" in self._counts:
            return self._counts["obs"] - 1
        return max(self._counts.values(), default=0)

    def _steps(self, view: ViewRequirement) -> np.ndarray:
        return self._present_step() + np.asarray(view.offsets)

    def _is_known(self, column: str, steps: np.ndarray) -> np.ndarray:
        return (steps >= self._first_step[:, None]) & (steps < self._counts.get(column, 0))

    def _view(self, name: str, view: ViewRequirement) -> Column:
        data_col = view.data_col or name
        ring = self._rings[data_col]
        steps = self._steps(view)
        unknown = ~self._is_known(data_col, steps)

        def seen(buffer: np.ndarray, unseen: Any = None) -> np.ndarray:
            values = np.swapaxes(buffer[steps % ring.depth], 0, 1)
            if unknown.any():
                if unseen is None:
                    unseen = blank((int(unknown.sum()), *buffer.shape[2:]), buffer.dtype)
                values[unknown] = unseen
            return values if view.is_window else values[:, 0]

        given = [self._blanks[data_col]] if data_col in self._blanks else []
        return map_column(seen, ring.buffer(), *given)


class _Ring:
    """The last `depth` values of one column of all environments: step s is in slot s % depth."""

    def __init__(self, num_envs: int):
        self.depth = 1
        self.space: gym.Space[Any] | None = None
        self._num_envs = num_envs
        self._buffer: Column | None = None

    def buffer(self) -> Column:
        """Returns the values, `[depth, N, ...]`; of the space's shape as long as there are none."""
        if self._buffer is None:
            self._buffer = _blank_of(self.space, (self.depth, self._num_envs))
        return self._buffer

    def write(self, name: str, step: int, column: Column) -> None:
        """Stores `column`, `[N, ...]`, as the value of `step`."""
        if row_count(name, column) != self._num_envs:
            raise ValueError(
                f"Column `{name}`: expected {self._num_envs} rows, one an environment, "
                f"got {row_count(name, column)}."
            )
        if self._buffer is None:
            self._buffer = self._allocate(column)
        slot = step % self.depth
        map_column(lambda buffer, rows: _store(name, buffer, slot, rows), self._buffer, column)

    def _allocate(self, column: Column) -> Column:
        if self.space is not None:
            return self.buffer()
        return map_column(lambda rows: blank((self.depth, *rows.shape), rows.dtype), column)


def _store(name: str, buffer: np.ndarray, slot: int, rows: np.ndarray) -> None:
    if rows.shape != buffer.shape[1:]:
        raise ValueError(f"Column `{name}`: expected {buffer.shape[1:]}, got {rows.shape}.")
    if not np.can_cast(rows.dtype, buffer.dtype, casting="same_kind"):
        raise TypeError(f"Column `{name}`: expected {buffer.dtype}, got {rows.dtype}.")
    buffer[slot] = rows


def _blank_of(space: gym.Space[Any] | None, leading: tuple[int, ...]) -> Column:
    if space is None:
        return blank(leading, np.float32)
    if isinstance(space, gym.spaces.Dict):
        return {key: _blank_of(child, leading) for key, child in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_blank_of(child, leading) for child in space.spaces)
    return blank(leading + (space.shape or ()), space.dtype)


def _parse_shift(shift: int | Sequence[int] | str) -> tuple[int, ...]:
    if isinstance(shift, str):
        return _parse_range(shift)
    offsets = (shift,) if isinstance(shift, int | np.integer) else tuple(shift)
    if not offsets:
        raise ValueError("`shift`: expected at least one offset, got an empty sequence.")
    for offset in offsets:
        if isinstance(offset, bool) or not isinstance(offset, int | np.integer):
            raise TypeError(f"`shift`: expected int offsets, got {offset!r}.")
    return tuple(int(offset) for offset in offsets)


def _parse_range(text: str) -> tuple[int, ...]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f'`shift`: expected "from:to" or "from:to:step", got "{text}".')
    start, stop, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if start > stop or step < 1:
        raise ValueError(f'`shift`: expected from <= to and a positive step, got "{text}".')
    return tuple(range(start, stop + 1, step))
