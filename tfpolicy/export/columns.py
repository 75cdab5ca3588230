"""The columns that acting reads, as who acts in the environment knows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

import gymnasium as gym
import tensorflow as tf

from tfpolicy.graph.acting import single_steps
from tfpolicy.graph.placeholders import (
    ColumnSpec,
    LazyColumns,
    batch_placeholder,
    space_spec,
    view_spec,
)
from tfpolicy.graph.views import acting_specs
from tfpolicy.ops.actions import normalize_action
from tfpolicy.spaces import leaf_spaces, unflatten
from tfpolicy.view_requirement import ViewRequirement


class EnvironmentColumns(Mapping):
    """The columns as the model reads them, made of what is known on the environment's side.

    Args:
        views: Everything that the model may read.
        action_space: The environment's own.
        normalized: Whether the policy's own actions are normalized.
    """

    def __init__(
        self, views: Mapping[str, ViewRequirement], action_space: gym.Space, normalized: bool
    ):
        self._views = {
            name: dataclasses.replace(
                views[name], space=environment_space(name, views, action_space)
            )
            for name in acting_specs(views)
        }
        self._action_space = action_space
        self._normalized = normalized
        self._columns = LazyColumns(environment_specs(self._views), batch_placeholder)

    def views_read(self) -> dict[str, ViewRequirement]:
        """The columns that were read beside the observation."""
        return {name: self._views[name] for name in self._columns.read if name != "obs"}

    def inputs(self) -> dict[str, tf.Tensor]:
        """The placeholders by name."""
        names = {name: input_names(name, self._views[name]) for name in self._columns.read}
        flat = tf.nest.flatten(names)
        twice = sorted({name for name in flat if flat.count(name) > 1})
        if twice:
            raise ValueError(f"Two columns that the model reads have the input {twice[0]!r}.")
        return dict(zip(flat, tf.nest.flatten(self._columns.read), strict=True))

    def __getitem__(self, name: str) -> Any:
        if name in ("seq_lens", "max_seq_len"):
            # Who asks has a state, or else has read something already.
            first = next(iter(self._columns.read), "obs")
            first = "state_in_0" if "state_in_0" in self._views else first
            return single_steps(tf.nest.flatten(self._columns[first])[0])[name]
        value = self._columns[name]
        view = self._views[name]
        if view.data_col != "actions" or view.as_mask:
            return value
        if self._normalized:
            value = normalize_action(value, self._action_space)
        return tf.nest.map_structure(
            lambda leaf: tf.cast(leaf, tf.float32) if leaf.dtype.is_floating else leaf, value
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def input_names(name: str, view: ViewRequirement) -> Any:
    """The names of the inputs of a column, in the structure of its space."""
    space = cast(gym.Space, view.space)
    return unflatten(space, leaf_spaces(space, name))


def environment_specs(views: Mapping[str, ViewRequirement]) -> dict[str, ColumnSpec]:
    """The specs of columns that have spaces of the environment: actions are in its dtypes."""
    taken = {
        name: view_spec(view, space_spec(cast(gym.Space, view.space)))
        for name, view in views.items()
        if view.data_col == "actions" and not view.as_mask
    }
    return {**acting_specs(views), **taken}


def environment_space(
    name: str, views: Mapping[str, ViewRequirement], action_space: gym.Space
) -> gym.Space:
    """The space of a column that acting reads, as the environment knows it.

    Args:
        name: Of the column.
        views: Everything that the model may read.
        action_space: The environment's own.
    """
    view = views[name]
    if view.as_mask:
        return gym.spaces.Discrete(2)
    if view.data_col == "actions":
        return action_space
    space = view.space or views[view.data_col or name].space
    if space is None:
        raise ValueError(f"A view that is used for acting must have a space, got {view}.")
    return space
