"""The acting part of the graph: observations in, actions and what belongs to them out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions import ActionDistribution
from tfpolicy.exploration import Exploration
from tfpolicy.graph.dependencies import operations_behind
from tfpolicy.graph.inputs import ActingInputs
from tfpolicy.graph.placeholders import ColumnSpec, LazyColumns, batch_placeholder
from tfpolicy.graph.session import GraphSession
from tfpolicy.models.base import Model
from tfpolicy.spaces import flatten


class _Call(NamedTuple):
    """One way to act: the session's callable, and what is where in the list that it returns.

    The list holds the leaves of the actions, their log-probabilities, the columns `names`, and the
    states. Log-probabilities are always computed, since they tell whether the rest is finite.
    """

    run: Callable[..., list[np.ndarray]]
    names: tuple[str, ...]
    num_actions: int
    first_state: int
    wants_logp: bool


class Actor:
    """Everything that acting adds to the graph, and the callables that run it.

    Exploring or not is a choice between two callables, so the graph has no conditional.

    Attributes:
        inputs: Makes what is fed of what a caller gives.
        feeds: Placeholders of greedy acting, observation leaves first.
        has_values: Whether the model has a value head.
        values_apart: Whether it has one that reads no trained variable that actions or states
            depend on: for many rows values cost less in a call of their own then.
        extra_names: What acting can give besides actions and states.

    Args:
        graph_session: The graph.
        observation_space: The environment's own.
        model: Maps columns to distribution inputs.
        action_dist: Makes the distribution.
        exploration: Makes the exploring actions.
        specs: Columns that the model may read while acting.
        check_numerics: Whether a network's output that is not finite is an error.
    """

    def __init__(
        self,
        graph_session: GraphSession,
        observation_space: gym.Space,
        model: Model,
        action_dist: ActionDistribution,
        exploration: Exploration,
        specs: Mapping[str, ColumnSpec],
        *,
        check_numerics: bool = True,
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
            # In the graph: NumPy takes several times as long for one number.
            greedy_prob, explored_prob = tf.exp(greedy_logp), tf.exp(explored_logp)
        self._structure = tf.nest.map_structure(lambda _: None, greedy)
        scored = flatten(action_dist.space, scored)
        self._action_dtypes = [leaf.dtype.as_numpy_dtype for leaf in scored]
        self._check_numerics = check_numerics
        self._make_callable = graph_session.callable
        # Sets of names that were found to be right.
        self._known: set[tuple[str, ...]] = set()
        self._calls: dict[tuple[bool, tuple[str, ...] | None], _Call] = {}
        self.feeds, self._seed = feeds, seed
        self._greedy = [*tf.nest.flatten(greedy), greedy_logp]
        self._explored = [*tf.nest.flatten(explored), explored_logp]
        self._probs = {True: greedy_prob, False: explored_prob}
        self._extras = {"action_dist_inputs": output.dist_inputs}
        self.has_values = output.vf_preds is not None
        if self.has_values:
            self._extras["vf_preds"] = output.vf_preds
            self._values = self._callable(feeds, [output.vf_preds])
        self.extra_names = (*self._extras, "action_logp", "action_prob")
        self._state_out = list(output.state_out)
        acts_with = _trained_variables([output.dist_inputs, *output.state_out])
        self.values_apart = self.has_values and acts_with.isdisjoint(
            _trained_variables([output.vf_preds])
        )
        self._score = self._callable([*feeds, *scored], [score])

    @property
    def greedy_fetches(self) -> list[tf.Tensor]:
        """All that acting greedily can compute."""
        return [*self._greedy, *self._extras.values(), self._probs[True], *self._state_out]

    def known_extras(self, names: Iterable[str]) -> tuple[str, ...]:
        """Checks names of columns that acting is to give besides actions and states.

        Raises:
            KeyError: Acting does not give one of them.
        """
        wanted = tuple(names)
        if wanted in self._known:
            return wanted
        for name in wanted:
            if name not in self.extra_names:
                known = ", ".join(self.extra_names)
                raise KeyError(f"`extra_fetches`: expected some of {known}, got {name!r}.")
        self._known.add(wanted)
        return wanted

    def act(
        self,
        feeds: Sequence[np.ndarray],
        seed: np.ndarray | None,
        timestep: int,
        extra_fetches: tuple[str, ...] | None = None,
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """Acts on one array for each input leaf.

        Args:
            feeds: Arrays [B, ...], observation leaves first.
            seed: Decides the draw; `None` acts greedily.
            timestep: What schedules of the exploration go by.
            extra_fetches: Which further columns to compute; `None` means all `extra_names`.

        Returns:
            Actions [B, ...], states after them [B, S], further columns [B, ...].

        Raises:
            FloatingPointError: The network's output is not finite.
        """
        key = seed is None, extra_fetches
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._make_call(*key)
        if seed is None:
            results = call.run(*feeds)
        elif not self._scalars:
            results = call.run(*feeds, seed)
        else:
            scalars = self._exploration.scalars(timestep)
            results = call.run(*feeds, seed, *map(np.float32, scalars.values()))
        _, names, num_actions, first_state, wants_logp = call
        logp = results[num_actions]
        if self._check_numerics and _has_nan(logp):
            raise FloatingPointError(_not_finite_text(feeds, logp))
        actions = results[0]
        if self._structure is not None:
            actions = tf.nest.pack_sequence_as(self._structure, results[:num_actions])
        extras = dict(zip(names, results[num_actions + 1 : first_state], strict=True))
        if wants_logp:
            extras["action_logp"] = logp
        return actions, results[first_state:], extras

    def log_probs(self, feeds: Sequence[np.ndarray], actions: Sequence[np.ndarray]) -> np.ndarray:
        """Log-probabilities [B] of given actions, the leaves of the space [B, ...] of any dtype."""
        pairs = zip(actions, self._action_dtypes, strict=True)
        return self._score(*feeds, *(a.astype(dtype, copy=False) for a, dtype in pairs))[0]

    def values(self, feeds: Sequence[np.ndarray]) -> np.ndarray:
        """State values [B]."""
        return self._values(*feeds)[0]

    def _make_call(self, greedy: bool, extra_fetches: tuple[str, ...] | None) -> _Call:
        wanted = self.extra_names if extra_fetches is None else extra_fetches
        feeds, fetches = self.feeds, self._greedy
        if not greedy:
            feeds, fetches = [*feeds, self._seed, *self._scalars.values()], self._explored
        known = {**self._extras, "action_prob": self._probs[greedy]}
        extras = {name: tensor for name, tensor in known.items() if name in wanted}
        return _Call(
            self._callable(feeds, [*fetches, *extras.values(), *self._state_out]),
            tuple(extras),
            num_actions=len(fetches) - 1,
            first_state=len(fetches) + len(extras),
            wants_logp="action_logp" in wanted,
        )

    def _callable(self, feeds: Sequence[tf.Tensor], fetches: Sequence[tf.Tensor]) -> Any:
        # One device, one small graph: the thread that calls runs it.
        return self._make_callable(feeds, fetches, on_calling_thread=True)


def single_steps(rows: tf.Tensor) -> dict[str, Any]:
    """Columns that say what acting is to a recurrent model: each row is a sequence of its own."""
    return {"seq_lens": tf.ones(tf.shape(rows)[:1], tf.int32), "max_seq_len": 1}


def _trained_variables(tensors: Sequence[tf.Tensor]) -> set[str]:
    """Names of the trainable variables that tensors of one graph depend on."""
    needed = {operation.name for operation in operations_behind(tensors)}
    trainable = tensors[0].graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
    return needed & {variable.op.name for variable in trainable}


def _has_nan(values: np.ndarray) -> bool:
    """Whether any of `values` [B] is NaN."""
    # A dot product is NaN if an element is, and takes a fifth of the time of `isnan` and `any`.
    total = values.item() if len(values) == 1 else values.dot(values)
    return total != total


def _not_finite_text(feeds: Sequence[np.ndarray], logp: np.ndarray) -> str:
    rows = np.flatnonzero(np.isnan(logp))[:5].tolist()
    inputs = [i for i, feed in enumerate(feeds) if feed.dtype.kind == "f" and np.isnan(feed).any()]
    cause = f"input {inputs[0]} holds NaN there" if inputs else "the inputs hold no NaN"
    return f"The network's output is not finite in rows {rows}; {cause}."
