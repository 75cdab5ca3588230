"""Advantages of whole blocks: T steps of N sub-environments at once, not episode by episode."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfpolicy.columns import Column, map_column, select
from tfpolicy.returns import discounted_returns, gae
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.tf_policy import TFPolicy
from tfpolicy.view_requirement import ViewRequirement

Array = np.ndarray
# Where in a block: steps [K] and sub-environments [K].
Places = tuple[Array, Array]


def block_advantages(
    policy: TFPolicy,
    columns: Mapping[str, Column],
    *,
    gamma: float,
    lambda_: float,
    use_critic: bool = True,
) -> dict[str, Array] | None:
    """What `add_advantages` adds to the fragments of a block, computed for all of them together.

    Args:
        policy: Gives values of states: all that are needed in one call.
        columns: Columns [T, N, ...]; the steps of a sub-environment follow each other, episode upon
            episode.
        gamma: As for `add_advantages`.
        lambda_: As for `add_advantages`.
        use_critic: As for `add_advantages`.

    Returns:
        `advantages` and `value_targets`, [T, N] float32; `None` if the model has a view that cannot
        be moved on by one step without the rest of its episode.
    """
    views = policy.acting_views
    if not all(_moves_on(name, view) for name, view in views.items()):
        return None
    terminateds = np.asarray(columns[SampleBatch.TERMINATEDS], bool)
    truncateds = np.asarray(columns[SampleBatch.TRUNCATEDS], bool)
    values = np.asarray(columns[SampleBatch.VF_PREDS], np.float32)
    next_values = np.zeros_like(values)
    next_values[:-1] = values[1:]
    # Elsewhere the next observation is the one acted on next, whose value is known.
    unknown = truncateds.copy()
    unknown[-1] = True
    steps, envs = np.nonzero(unknown & ~terminateds)
    if len(steps):
        places = steps, envs
        seen = {name: _seen_next(name, view, columns, places) for name, view in views.items()}
        next_values[places] = policy.compute_values(seen)
    rewards = columns[SampleBatch.REWARDS]
    if use_critic:
        advantages, targets = gae(
            rewards, values, next_values, terminateds, truncateds, gamma, lambda_
        )
    else:
        advantages = targets = discounted_returns(
            rewards, terminateds, truncateds, gamma, next_values
        )
    return {SampleBatch.ADVANTAGES: advantages, SampleBatch.VALUE_TARGETS: targets}


def _moves_on(name: str, view: ViewRequirement) -> bool:
    """Whether what a view sees next follows from what it sees now and one newer value."""
    if name.startswith("state_in_"):
        return True
    newest = 0 if (view.data_col or name) == SampleBatch.OBS else -1
    return view.offsets == tuple(range(view.offsets[0], newest + 1))


def _seen_next(
    name: str, view: ViewRequirement, columns: Mapping[str, Column], places: Places
) -> Column:
    """What a view sees one step after `places`, [K, ...]."""
    if name.startswith("state_in_"):
        return select(columns[name.replace("_in_", "_out_")], places)
    data_col = view.data_col or name
    column = columns[SampleBatch.NEXT_OBS if data_col == SampleBatch.OBS else data_col]
    newest = np.ones(len(places[0]), bool) if view.as_mask else select(column, places)
    if not view.is_window:
        return newest
    return map_column(
        lambda now, new: np.concatenate([now[:, 1:], new[:, None]], axis=1),
        select(columns[name], places),
        newest,
    )
