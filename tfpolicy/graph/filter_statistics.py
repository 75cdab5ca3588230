"""What an observation filter knows of the observations that were learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tfpolicy.graph.session import GraphSession, variable_names
from tfpolicy.models.filtered import Filtered
from tfpolicy.moments import Moments, merge_moments, row_moments
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.spaces import batch_observations

# Beyond it float32, which networks compute in, is infinite; squares stay finite in float64.
_LARGEST = float(np.finfo(np.float32).max)


class Update(NamedTuple):
    """The moments before and after a batch.

    Attributes:
        before: Values in the order of the variables.
        after: Values by the names of the variables.
        num_rows_not_finite: Rows of the batch that did not enter.
    """

    before: list[np.ndarray]
    after: dict[str, np.ndarray]
    num_rows_not_finite: int


class FilterStatistics:
    """Moves batches into the moments of a filter.

    When that happens decides whether PPO is sound. A batch was collected under the moments of that
    time: its log-probabilities and values are those of observations normalized by them. So it must
    be learned from under the same ones, or the ratio of new to old probability is not 1 before the
    first step, and the clipped loss punishes what no step has done. Hence a batch enters when it is
    loaded, for acting from then on, but what is learned from it reads the moments from before,
    which the buffer keeps beside it. Of several batches that were collected before any of them was
    loaded this is so for the first alone.

    Args:
        graph_session: The graph with the filter's variables.
        observation_filter: The filter.
    """

    def __init__(self, graph_session: GraphSession, observation_filter: Filtered):
        self._graph_session = graph_session
        self._filter = observation_filter
        graph_session.prepare_access(observation_filter.variables)

    def update(self, batch: Mapping[str, Any]) -> Update:
        """What `batch` makes of the moments; nothing is assigned yet.

        Rows count alike whatever tower they are for, and those only warming up a recurrent state do
        not. A row with anything that is not finite among what is normalized stays out.

        Args:
            batch: Rows as they were sampled, without padding.

        Raises:
            KeyError: There is no column `obs`.
            ValueError: It is of the wrong shape or dtype.
        """
        if SampleBatch.OBS not in batch:
            raise KeyError(
                f"The batch lacks `obs`, whose mean and deviation the observation filter keeps. It "
                f"has: {', '.join(batch)}."
            )
        model = self._filter
        leaves = batch_observations(model.observation_space, batch[SampleBatch.OBS])
        filtered = {name: leaves[index] for name, index in model.leaves.items()}
        learned = ~np.asarray(batch.get("burn_in", np.zeros(len(leaves[0]))), bool)
        finite = np.all([_finite_rows(rows) for rows in filtered.values()], axis=0)
        entering = finite & learned
        names = dict(zip(model.moments, variable_names(model.variables), strict=True))
        current = self._graph_session.read(model.variables)
        count = int(current[names["count"]])
        after = {names["count"]: np.int64(count + np.count_nonzero(entering))}
        for leaf, rows in filtered.items():
            mean, variance = names[f"{leaf}/mean"], names[f"{leaf}/variance"]
            merged = merge_moments(
                Moments(count, current[mean], current[variance]), row_moments(rows[entering])
            )
            after[mean], after[variance] = merged.mean, merged.variance
        return Update(list(current.values()), after, int(np.count_nonzero(learned & ~finite)))

    def assign(self, update: Update) -> None:
        """Assigns the moments after a batch."""
        self._graph_session.write(self._filter.variables, update.after)


def _finite_rows(rows: np.ndarray) -> np.ndarray:
    """Which rows hold nothing that is, or in float32 becomes, infinite or no number, [B] bool."""
    if rows.dtype.kind != "f":
        return np.ones(len(rows), bool)
    finite = np.abs(rows) <= _LARGEST
    return finite.reshape(len(rows), -1).all(axis=1)
