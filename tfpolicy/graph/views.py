"""The columns a policy deals with: which there are, and of what shape and dtype."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.graph.discovery import sample_rows
from tfpolicy.graph.placeholders import ColumnSpec, array_spec, space_spec, view_spec
from tfpolicy.policy import ACTED_COLUMNS
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.view_requirement import ViewRequirement

# Writers and evaluation need these whatever the loss reads, so they always stay collectable.
KEPT_COLUMNS = (
    "obs", "actions", "rewards", "terminateds", "truncateds", "infos", "eps_id", "unroll_id",
    "agent_index", "t",
)  # fmt: skip
# Behind the name of a view: its mask, and what it will see a step later; see `offered_views`.
MASK_SUFFIX = "_valid"
AFTER_SUFFIX = "_after"
_REWARD_SPACE = gym.spaces.Box(-np.inf, np.inf, (), np.float32)


def standard_views(
    observation_space: gym.Space, action_space: gym.Space, states: Sequence[np.ndarray]
) -> dict[str, ViewRequirement]:
    """What every trajectory can offer, before anyone said what is read.

    Args:
        observation_space: The environment's own.
        action_space: The policy's own.
        states: The initial recurrent state, [S] each.
    """
    views = {
        "obs": ViewRequirement(space=observation_space),
        "new_obs": _learning_view("obs", observation_space, 1),
        "actions": _learning_view(None, action_space),
        "rewards": _learning_view(None, _REWARD_SPACE),
        "prev_actions": ViewRequirement("actions", action_space, -1),
        "prev_rewards": ViewRequirement("rewards", _REWARD_SPACE, -1),
    }
    for name in KEPT_COLUMNS:
        views.setdefault(name, _learning_view(None, None))
    for index, state in enumerate(states):
        space = gym.spaces.Box(-np.inf, np.inf, state.shape, np.float32)
        views[f"state_in_{index}"] = ViewRequirement(space=space)
        views[f"state_out_{index}"] = _learning_view(None, space)
    return views


def offered_views(views: Mapping[str, ViewRequirement]) -> dict[str, ViewRequirement]:
    """The views, and what is offered beside them; like every column an input only of who reads it.

    Of a view `frames` that looks at other steps than the present one:

    - `frames_valid`, its mask: bool, false where `frames` has zeros because there was no such step.
    - `frames_after`, if it leaves out steps: what it will see one step later of the past of the
      step that was taken, so that a state beyond the last row can be valued.
    """
    offered: dict[str, ViewRequirement] = {}
    for name, view in views.items():
        # Whatever ends an episode, the next observation is known.
        if view.as_mask or view.offsets == (0,) or name == "new_obs":
            continue
        mask = dataclasses.replace(view, data_col=view.data_col or name, space=None, as_mask=True)
        for offered_name, offered_view in ((name, view), (f"{name}{MASK_SUFFIX}", mask)):
            offered.setdefault(offered_name, offered_view)
            if leaves_out_steps(view):
                offered[f"{offered_name}{AFTER_SUFFIX}"] = dataclasses.replace(
                    offered_view,
                    data_col=view.data_col or name,
                    shift=[offset + 1 for offset in view.offsets if offset < -1],
                    batch_repeat_value=1,
                    used_for_compute_actions=False,
                )
    return {**offered, **views}


def leaves_out_steps(view: ViewRequirement) -> bool:
    """Whether a view sees a step that at the step before it did not see, but for the last two."""
    return any(offset < -1 and offset + 1 not in view.offsets for offset in view.offsets)


def acting_specs(views: Mapping[str, ViewRequirement]) -> dict[str, ColumnSpec]:
    """Specs of the columns that a model may read while acting: what is known then, or given."""
    return {
        name: view_spec(view, _data_spec(view, views))
        for name, view in views.items()
        if view.used_for_compute_actions and (view.is_past(name) or _is_given(name, view))
    }


def blank_rows(specs: Mapping[str, ColumnSpec], num_rows: int) -> dict[str, Any]:
    """Columns [num_rows, ...] of zeros, as they are before the first step of an episode."""
    return {
        name: tf.nest.map_structure(
            lambda leaf: np.zeros((num_rows, *leaf.shape), leaf.dtype.as_numpy_dtype), spec
        )
        for name, spec in specs.items()
    }


def drawn_rows(
    views: Mapping[str, ViewRequirement], specs: Mapping[str, ColumnSpec], num_rows: int, seed: int
) -> dict[str, Any]:
    """Columns [num_rows, ...] that tell rows and steps apart, so that none can be mistaken.

    Previous actions are zeros: not every one comes back bit for bit from the environment's side.
    """
    rng = np.random.default_rng(seed)
    rows = blank_rows(specs, num_rows)
    for name, spec in specs.items():
        view = views[name]
        if view.data_col == "obs" and not view.as_mask:
            width = len(view.offsets) if view.is_window else 1
            space = cast(gym.Space, view.space or views["obs"].space)
            steps = sample_rows(space, num_rows * width, seed)
            rows[name] = tf.nest.map_structure(
                lambda leaf, row: leaf.reshape(num_rows, *row.shape), steps, spec
            )
        elif view.data_col != "actions" or view.as_mask:
            rows[name] = tf.nest.map_structure(
                lambda leaf: rng.integers(0, 2, leaf.shape).astype(leaf.dtype), rows[name]
            )
    return rows


def dummy_trajectory(
    views: Mapping[str, ViewRequirement], acted: Mapping[str, Any], num_rows: int, seed: int
) -> dict[str, Any]:
    """The columns of one short episode, to try the hooks of a policy on.

    Args:
        views: All views.
        acted: Columns [num_rows, ...] that acting on the observations gave, `obs` and `actions`
            among them.
        num_rows: Steps of the episode, which goes on after them.
        seed: What the rest is drawn by.
    """
    steps = np.arange(num_rows)
    columns = {
        "rewards": np.ones(num_rows, np.float32),
        "terminateds": np.zeros(num_rows, bool),
        "truncateds": np.zeros(num_rows, bool),
        "infos": np.array([{} for _ in steps], object),
        "eps_id": np.zeros(num_rows, np.int64),
        "unroll_id": np.zeros(num_rows, np.int64),
        "agent_index": np.zeros(num_rows, np.int64),
        "t": steps.astype(np.int64),
        **acted,
    }
    for name, view in views.items():
        if name in columns:
            continue
        if name == "new_obs" and view.space is not None:
            columns[name] = sample_rows(view.space, num_rows, seed)
        elif (view.data_col or name) in columns:
            # Batches have one value a row; who takes one a sequence drops the others.
            single = dataclasses.replace(view, batch_repeat_value=1)
            columns[name] = single.apply(columns[view.data_col or name])
    return columns


def trained_specs(
    views: Mapping[str, ViewRequirement], batch: SampleBatch
) -> dict[str, ColumnSpec]:
    """Specs of everything that a loss can read, out of a postprocessed batch.

    Observations keep their dtype, since the model casts them; other float64 columns become float32.
    """
    specs = {
        name: _as_float32(array_spec(column)) for name, column in batch.items() if name != "infos"
    }
    for name, view in views.items():
        if name in specs and (view.data_col or name) == "obs" and not view.as_mask:
            specs[name] = view_spec(view, _data_spec(view, views))
    return {**specs, "seq_lens": tf.TensorSpec([], tf.int32)}


def used_views(
    views: Mapping[str, ViewRequirement],
    acting: Collection[str],
    training: Collection[str],
) -> dict[str, ViewRequirement]:
    """The views that something reads, and the columns that are always kept.

    Args:
        views: All views.
        acting: Names that the model reads while acting.
        training: Names that the loss or the postprocessing reads.
    """
    candidates = {**{name: _learning_view(None, None) for name in ACTED_COLUMNS}, **views}
    return {
        name: dataclasses.replace(
            view, used_for_compute_actions=name in acting, used_for_training=name in training
        )
        for name, view in candidates.items()
        if name in acting or name in training or name in KEPT_COLUMNS
    }


def _is_given(name: str, view: ViewRequirement) -> bool:
    """Whether a view is a column of its own: that is up to who acts."""
    return view.data_col in (None, name) and view.offsets == (0,)


def _learning_view(data_col: str | None, space: gym.Space | None, shift: int = 0):
    return ViewRequirement(data_col, space, shift, used_for_compute_actions=False)


def _data_spec(view: ViewRequirement, views: Mapping[str, ViewRequirement]) -> ColumnSpec:
    if view.as_mask:
        return tf.TensorSpec([], tf.bool)
    space = view.space
    if space is None:
        data = views.get(view.data_col) if view.data_col else None
        if data is None or data.space is None:
            raise ValueError(f"A view that is used for acting must have a space, got {view}.")
        space = data.space
    spec = space_spec(space)
    # Observations come in the environment's dtype; what the policy makes is float32 throughout.
    return spec if view.data_col in (None, "obs") else _as_float32(spec)


def _as_float32(spec: ColumnSpec) -> ColumnSpec:
    return tf.nest.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape, tf.float32) if leaf.dtype.is_floating else leaf, spec
    )
