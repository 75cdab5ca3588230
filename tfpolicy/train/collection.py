"""Which columns a policy wants of each step, and where they come from."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfpolicy.columns import Column, map_column
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.view_requirement import History, ViewRequirement

STATE_IN = "state_in_"
STATE_OUT = "state_out_"

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Collection:
    """The views of a policy, sorted by when their values are known.

    Attributes:
        columns: Columns to record as they come.
        past: Views that look back from what is known before acting.
        acting: Names among `past` that the policy needs to act.
        next_obs: Names of views of the next observation.
        late: Other views: known once the fragment is complete, zeros beyond its ends.
    """

    columns: frozenset[str]
    past: Mapping[str, ViewRequirement]
    acting: frozenset[str]
    next_obs: tuple[str, ...]
    late: Mapping[str, ViewRequirement]

    @property
    def depth(self) -> int:
        """How many steps the longest view looks back, the present one included."""
        return 1 - min((min(view.offsets) for view in self.past.values()), default=0)


def collection_for(views: Mapping[str, ViewRequirement]) -> Collection:
    """Sorts a policy's view requirements."""
    columns = {SampleBatch.OBS}
    sorted_views: dict[str, dict[str, ViewRequirement]] = {"past": {}, "next_obs": {}, "late": {}}
    for name, view in views.items():
        if not (view.used_for_compute_actions or view.used_for_training):
            continue
        kind = _kind(name, view)
        if kind != "next_obs":
            columns.add(view.data_col or name)
        if kind != "column":
            # One value a row is collected; who trains on every k-th drops the others.
            sorted_views[kind][name] = dataclasses.replace(
                view, batch_repeat_value=1, used_for_compute_actions=True
            )
    past = sorted_views["past"]
    acting = frozenset(name for name in past if views[name].used_for_compute_actions)
    next_obs = tuple(sorted_views["next_obs"])
    return Collection(frozenset(columns), past, acting, next_obs, sorted_views["late"])


def _kind(name: str, view: ViewRequirement) -> str:
    """Which field of `Collection` a view belongs to."""
    data_col = view.data_col or name
    if name.startswith((STATE_IN, STATE_OUT)):
        return "column"
    if (
        not view.is_window
        and not view.as_mask
        and (data_col, view.offsets[0])
        in (
            (SampleBatch.OBS, 1),
            (SampleBatch.NEXT_OBS, 0),
        )
    ):
        return "next_obs"
    if data_col == name and view.offsets == (0,) and not view.is_window:
        return "column"
    return "past" if view.is_past(name) else "late"


class ActingHistory:
    """The past views of N sub-environments, in a form that can be saved.

    It remembers what it was told, as far back as any view looks: who is told the same has the
    same views.

    Args:
        collection: What is looked at.
        num_envs: N.
        blanks: What is seen in place of zeros, see `History`.
    """

    def __init__(
        self, collection: Collection, num_envs: int, blanks: Mapping[str, Column] | None = None
    ):
        # The column that says which step is the present one, whether or not a view looks at it.
        self._views = {SampleBatch.OBS: ViewRequirement(), **collection.past}
        self._columns = {view.data_col or name for name, view in self._views.items()}
        self._num_envs = num_envs
        self._blanks = blanks
        self._told: collections.deque[dict[str, Any]] = collections.deque(
            maxlen=2 * collection.depth
        )
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._history = History(self._views, self._num_envs, self._blanks)
        self._told.clear()

    def before(self, obs: Column) -> dict[str, Column]:
        """Takes in what is known before acting; returns the views, each [N, ...]."""
        self._tell({SampleBatch.OBS: obs}, None)
        return self._history.views()

    def after(self, columns: Mapping[str, Column], started: Array | None) -> None:
        """Takes in what acting and the step gave.

        Args:
            columns: Columns [N, ...] by name; those no view looks at are ignored.
            started: [N] bool, where a new episode begins and the old one is forgotten; or `None`.
        """
        self._tell(columns, started)

    def get_state(self) -> list[dict[str, Any]]:
        """What was told last, oldest first."""
        return list(self._told)

    def set_state(self, state: list[dict[str, Any]]) -> None:
        """The inverse of `get_state`."""
        self.clear()
        for told in state:
            self._tell(told["columns"], told["started"])

    def _tell(self, columns: Mapping[str, Column], started: Array | None) -> None:
        # Copies: environments and the graph reuse their memory.
        kept = {
            name: map_column(np.copy, column)
            for name, column in columns.items()
            if name in self._columns
        }
        started = None if started is None else started.copy()
        self._told.append({"columns": kept, "started": started})
        self._history.append(kept)
        if started is not None:
            self._history.reset(started)
