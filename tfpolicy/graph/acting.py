"""The acting part of the graph: observations in, actions and what belongs to them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions import ActionDistribution
from tfpolicy.exploration import Exploration
from tfpolicy.graph.inputs import ActingInputs
from tfpolicy.graph.placeholders import ColumnSpec, LazyColumns, batch_placeholder
from tfpolicy.graph.session import GraphSession
from tfpolicy.models.base import Model
from tfpolicy.spaces import flatten


class Actor:
    """Everything that acting adds to the graph, and the callables that run it.

    Exploring or not is a choice between two callables, so the graph has no conditional.

    Attributes:
        feeds: Placeholders of greedy acting, observation leaves first.
        greedy_fetches: What greedy acting computes.

    Args:
        graph_session: The graph.
        observation_space: The environment's own.
        model: Maps columns to distribution inputs.
        action_dist: Makes the distribution.
        exploration: Makes the exploring actions.
        specs: Columns that the model may read while acting.
    """

    def __init__(
        self,
        graph_session: GraphSession,
        observation_space: gym.Space,
        model: Model,
        action_dist: ActionDistribution,
        exploration: Exploration,
        specs: Mapping[str, ColumnSpec],
    ):
        self._exploration = exploration
        with graph_session.building():
            columns = LazyColumns(specs, batch_placeholder)
            obs_leaves = flatten(observation_space, columns["obs"])
            columns.give(single_steps(obs_leaves[0]))
            output = model(columns)
            distribution = action_dist(output.dist_inputs)
            # Columns beside the observation, in the order in which their leaves are fed.
            extra_inputs = {k: v for k, v in columns.read.items() if k != "obs"}
            self.inputs = ActingInputs(
                observation_space,
                {name: specs[name] for name in extra_inputs},
                model.initial_state(),
            )
            feeds = obs_leaves + tf.nest.flatten(list(extra_inputs.values()))
            self._scalars = {
                name: tf.compat.v1.placeholder(tf.float32, [], name)
                for name in exploration.scalars(0)
            }
            seed = tf.compat.v1.placeholder(tf.int32, [2], "seed")
            explored, explored_logp = exploration.actions(distribution, self._scalars, seed)
            greedy = distribution.mode()
            greedy_logp = distribution.log_prob(greedy)
            scored = tf.nest.map_structure(
                lambda action: tf.compat.v1.placeholder(action.dtype, action.shape, "action"),
                greedy,
            )
            score = distribution.log_prob(scored)
        self._structure = tf.nest.map_structure(lambda _: None, greedy)
        self._num_actions = len(tf.nest.flatten(greedy))
        scored = flatten(action_dist.space, scored)
        self._action_dtypes = [leaf.dtype.as_numpy_dtype for leaf in scored]
        self.has_values = output.vf_preds is not None
        rest = [output.dist_inputs, *([output.vf_preds] if self.has_values else [])]
        rest += list(output.state_out)
        fetches = [*tf.nest.flatten(greedy), greedy_logp, *rest]
        exploring = [*tf.nest.flatten(explored), explored_logp, *rest]
        self.feeds, self.greedy_fetches = feeds, fetches
        # One device, one small graph: the thread that calls runs it.
        make = graph_session.callable
        self._act_greedily = make(feeds, fetches, on_calling_thread=True)
        self._explore = make(
            [*feeds, seed, *self._scalars.values()], exploring, on_calling_thread=True
        )
        self._score = make([*feeds, *scored], [score], on_calling_thread=True)
        if self.has_values:
            self._values = make(feeds, [output.vf_preds], on_calling_thread=True)

    def act(
        self, feeds: Sequence[np.ndarray], seed: np.ndarray | None, timestep: int
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """Acts on one array for each input leaf.

        Args:
            feeds: Arrays [B, ...], observation leaves first.
            seed: Decides the draw; `None` acts greedily.
            timestep: What schedules of the exploration go by.

        Returns:
            Actions [B, ...], states after them [B, S], further columns [B, ...].
        """
        if seed is None:
            results = self._act_greedily(*feeds)
        else:
            scalars = [np.float32(v) for v in self._exploration.scalars(timestep).values()]
            results = self._explore(*feeds, seed, *scalars)
        count = self._num_actions
        actions = results[0] if count == 1 else results[:count]
        if count != 1 or self._structure is not None:
            actions = tf.nest.pack_sequence_as(self._structure, results[:count])
        logp = results[count]
        extras = {
            "action_dist_inputs": results[count + 1],
            "action_logp": logp,
            "action_prob": np.exp(logp),
        }
        first_state = count + 2
        if self.has_values:
            extras["vf_preds"] = results[first_state]
            first_state += 1
        return actions, results[first_state:], extras

    def log_probs(self, feeds: Sequence[np.ndarray], actions: Sequence[np.ndarray]) -> np.ndarray:
        """Log-probabilities [B] of given actions, the leaves of the space [B, ...] of any dtype."""
        pairs = zip(actions, self._action_dtypes, strict=True)
        return self._score(*feeds, *(a.astype(dtype, copy=False) for a, dtype in pairs))[0]

    def values(self, feeds: Sequence[np.ndarray]) -> np.ndarray:
        """State values [B]."""
        return self._values(*feeds)[0]


def single_steps(rows: tf.Tensor) -> dict[str, Any]:
    """Columns that say what acting is to a recurrent model: each row is a sequence of its own."""
    return {"seq_lens": tf.ones(tf.shape(rows)[:1], tf.int32), "max_seq_len": 1}
