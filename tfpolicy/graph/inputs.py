"""What a caller gives for acting, as the arrays that the graph takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.graph.layout import column_leaves
from tfpolicy.graph.placeholders import ColumnSpec
from tfpolicy.spaces import batch_observations


class ActingInputs:
    """The columns that acting reads.

    Args:
        observation_space: The environment's own.
        specs: The columns beside the observation, with specs of one row.
        initial_state: The recurrent state before the first step, without a batch dimension.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        specs: Mapping[str, ColumnSpec],
        initial_state: Sequence[np.ndarray],
    ):
        self.specs = dict(specs)
        self.initial_state = list(initial_state)
        self._observation_space = observation_space
        self._initial_state = {f"state_in_{i}": state for i, state in enumerate(initial_state)}
        self._only_obs = not specs
        # Of a space whose arrays need no further check; of any other no array has this dtype.
        is_box = isinstance(observation_space, gym.spaces.Box)
        self._dtype = observation_space.dtype if is_box else np.dtype(object)
        self._shape = observation_space.shape
        # Dtypes and shapes of those columns that are arrays.
        self._as_given = {
            name: (np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape))
            for name, spec in self.specs.items()
            if isinstance(spec, tf.TensorSpec)
        }

    def feeds(
        self,
        obs: Any,
        states: Sequence[Any] | None,
        prev_actions: Any,
        prev_rewards: Any,
        further: Mapping[str, Any],
    ) -> list[np.ndarray]:
        """The arguments of `compute_actions` as one array for each input leaf, see `arrays`.

        Raises:
            ValueError: Besides, if there are more or fewer states than the model has.
        """
        if self._only_obs and not further and (states is None or not len(states)):
            # What a vector environment gives at every step need not go through the general case.
            if type(obs) is np.ndarray and obs.dtype == self._dtype and obs.ndim:
                if obs.shape[1:] == self._shape:
                    return [obs]
            return batch_observations(self._observation_space, obs)
        return self.arrays(self._columns(obs, states, prev_actions, prev_rewards, further))

    def single_feeds(
        self,
        obs: Any,
        state: Sequence[Any] | None,
        prev_action: Any,
        prev_reward: Any,
        further: Mapping[str, Any],
    ) -> list[np.ndarray]:
        """The arguments of `compute_single_action` as arrays of one row each, see `arrays`."""
        return self.feeds(
            obs[None] if isinstance(obs, np.ndarray) else [obs],
            None if state is None else [np.asarray(part)[None] for part in state],
            None if prev_action is None else _one_row(prev_action),
            None if prev_reward is None else np.asarray([prev_reward], np.float32),
            {name: _one_row(value) for name, value in further.items()} if further else further,
        )

    def arrays(self, columns: Mapping[str, Any]) -> list[np.ndarray]:
        """One array [B, ...] for each input leaf, observations first, then `specs` in order.

        Raises:
            KeyError: A column that the model reads is missing; missing states are the initial ones.
            ValueError: A column has the wrong shape or dtype.
        """
        if "obs" not in columns:
            raise KeyError(f"Acting needs the column 'obs', got: {', '.join(columns)}.")
        leaves = batch_observations(self._observation_space, columns["obs"])
        num_rows = len(leaves[0])
        for name, spec in self.specs.items():
            value = columns.get(name)
            if type(value) is np.ndarray and value.shape[:1] == (num_rows,):
                # As above: a state comes as the policy gave it.
                if (value.dtype, value.shape[1:]) == self._as_given.get(name):
                    leaves.append(value)
                    continue
            if value is None and name in self._initial_state:
                value = np.repeat(self._initial_state[name][None], num_rows, axis=0)
            elif value is None:
                raise KeyError(
                    f"Acting needs the column {name!r}, got: {', '.join(columns)}. What is seen of "
                    f"earlier steps is kept by `tfpolicy.view_requirement.History`."
                )
            added = column_leaves(name, value, spec)
            for leaf in added:
                if len(leaf) != num_rows:
                    raise ValueError(f"Column `{name}`: expected {num_rows} rows, got {len(leaf)}.")
            leaves += added
        return leaves

    def _columns(
        self,
        obs: Any,
        states: Sequence[Any] | None,
        prev_actions: Any,
        prev_rewards: Any,
        further: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The arguments of `compute_actions` as columns by name; what is `None` is left out."""
        columns = {"obs": obs, **further}
        if states is not None and len(states):
            if len(states) != len(self._initial_state):
                raise ValueError(
                    f"`state_batches`: expected {len(self._initial_state)} arrays, "
                    f"got {len(states)}."
                )
            columns.update(zip(self._initial_state, states, strict=True))
        if prev_actions is not None:
            columns["prev_actions"] = prev_actions
        if prev_rewards is not None:
            columns["prev_rewards"] = prev_rewards
        return columns


def _one_row(value: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: np.asarray(leaf)[None], value)
