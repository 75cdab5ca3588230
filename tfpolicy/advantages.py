"""Advantages and value targets of fragments, and of whole blocks of steps at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfpolicy.columns import Column, blank, map_column, select
from tfpolicy.graph.views import AFTER_SUFFIX, leaves_out_steps
from tfpolicy.returns import discounted_returns, gae
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.tf_policy import TFPolicy
from tfpolicy.view_requirement import ViewRequirement

Array = np.ndarray

# More would not be faster, and take memory where observations are images.
_ROWS_PER_CALL = 512


def add_advantages(
    policy: TFPolicy,
    batch: Mapping[str, Any],
    *,
    gamma: float,
    lambda_: float,
    use_critic: bool = True,
) -> SampleBatch:
    """Adds `advantages` and `value_targets` [B] to one fragment of one episode.

    An episode that terminated has no value beyond its end. One that was truncated, or that goes on
    after the fragment, is bootstrapped from the value of the true next observation.

    Args:
        policy: Gives values of states.
        batch: The fragment, with `rewards`, `vf_preds`, `terminateds`, `truncateds`, `new_obs`.
        gamma: Discount.
        lambda_: Of generalised advantage estimation; 1 gives returns minus values.
        use_critic: Without it advantages are the discounted returns themselves.
    """
    result = SampleBatch(batch)
    added = advantages_of(policy, result, gamma=gamma, lambda_=lambda_, use_critic=use_critic)
    for name, column in added.items():
        result[name] = column
    return result


def advantages_of(
    policy: TFPolicy,
    columns: Mapping[str, Column],
    *,
    gamma: float,
    lambda_: float,
    use_critic: bool = True,
) -> dict[str, Array]:
    """What `add_advantages` adds, for a fragment or for N sub-environments side by side.

    Args:
        policy: Gives values of states: those beyond ends in one call.
        columns: Columns [T, ...] of one fragment, or [T, N, ...] in which the steps of each
            sub-environment follow each other, episode upon episode.
        gamma: As for `add_advantages`.
        lambda_: As for `add_advantages`.
        use_critic: As for `add_advantages`.

    Returns:
        `advantages` and `value_targets`, [T] or [T, N] float32; besides `vf_preds`, if `columns`
        have none.
    """
    acted_with_values = SampleBatch.VF_PREDS in columns
    values = columns[SampleBatch.VF_PREDS] if acted_with_values else _values_of(policy, columns)
    values = np.asarray(values, np.float32)
    terminateds = np.asarray(columns[SampleBatch.TERMINATEDS], bool)
    truncateds = np.asarray(columns[SampleBatch.TRUNCATEDS], bool)
    next_values = np.zeros_like(values)
    next_values[:-1] = values[1:]
    # Elsewhere the next observation is the one acted on next, whose value is known.
    unknown = truncateds.copy()
    unknown[-1:] = True  # There may be no step at all.
    places = np.nonzero(unknown & ~terminateds)
    if len(places[0]):
        seen = {
            name: _seen_next(name, view, columns, places)
            for name, view in policy.acting_views.items()
        }
        next_values[places] = policy.compute_values(seen)
    rewards = columns[SampleBatch.REWARDS]
    ends = terminateds, truncateds
    if use_critic:
        advantages, targets = gae(rewards, values, next_values, *ends, gamma, lambda_)
    else:
        advantages = targets = discounted_returns(rewards, *ends, gamma, next_values)
    added = {SampleBatch.ADVANTAGES: advantages, SampleBatch.VALUE_TARGETS: targets}
    return added if acted_with_values else {SampleBatch.VF_PREDS: values, **added}


def _values_of(policy: TFPolicy, columns: Mapping[str, Column]) -> Array:
    """State values of all rows [T, ...], in calls of not too many."""
    shape = np.shape(columns[SampleBatch.REWARDS])
    num_rows = math.prod(shape)

    def flat(column: Array) -> Array:
        return column.reshape(num_rows, *column.shape[len(shape) :])

    seen = {name: map_column(flat, columns[name]) for name in policy.acting_columns}
    values = np.empty(num_rows, np.float32)
    for begin in range(0, num_rows, _ROWS_PER_CALL):
        rows = slice(begin, begin + _ROWS_PER_CALL)
        values[rows] = policy.compute_values({k: select(v, rows) for k, v in seen.items()})
    return values.reshape(shape)


def _seen_next(
    name: str, view: ViewRequirement, columns: Mapping[str, Column], places: tuple[Array, ...]
) -> Column:
    """What a view sees one step after each of K places in the columns, [K, ...]."""
    if name.startswith("state_in_"):
        return select(columns[name.replace("_in_", "_out_")], places)
    steps = [_step_next(name, view, offset, columns, places) for offset in view.offsets]
    if not view.is_window:
        return steps[0]
    return map_column(lambda *leaves: np.stack(leaves, axis=1), *steps)


def _step_next(
    name: str,
    view: ViewRequirement,
    offset: int,
    columns: Mapping[str, Column],
    places: tuple[Array, ...],
) -> Column:
    """What is `offset` steps away from the step after each place, [K, ...]."""
    data_col = view.data_col or name
    if offset < -1:  # The place itself saw it as one step less far away.
        if not leaves_out_steps(view):
            seen, index = columns[name], view.offsets.index(offset + 1)
        else:
            earlier = [other for other in view.offsets if other < -1]
            seen, index = columns[f"{name}{AFTER_SUFFIX}"], earlier.index(offset)
        return map_column(lambda leaf: leaf[:, index], select(seen, places))
    known = offset == -1 or data_col == SampleBatch.OBS
    if view.as_mask:
        return np.full(len(places[0]), known)
    if offset == 0 and data_col == SampleBatch.OBS:
        return select(columns[SampleBatch.NEXT_OBS], places)
    rows = select(columns[data_col], places)
    # Zeros, as while acting: nothing is known yet of an action to come.
    return rows if known else map_column(lambda leaf: blank(leaf.shape, leaf.dtype), rows)
