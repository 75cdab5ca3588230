"""The inference graph: raw observations in, the environment's actions out, and nothing to learn.

It is built anew from plain data, in a graph of its own, so that what is exported holds no loss, no
optimizer and no buffer, and the graph of the policy never grows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.config import PolicyConfig
from tfpolicy.graph.acting import single_steps
from tfpolicy.graph.inputs import ActingInputs
from tfpolicy.graph.network import Network, build_network
from tfpolicy.graph.placeholders import (
    LazyColumns,
    batch_placeholder,
    space_spec,
    view_spec,
)
from tfpolicy.graph.session import GraphSession, check_values, variable_names
from tfpolicy.graph.views import acting_specs
from tfpolicy.models import ModelOutput
from tfpolicy.ops.actions import environment_action, normalize_action
from tfpolicy.spaces import flatten, leaf_spaces, unflatten
from tfpolicy.view_requirement import ViewRequirement

# The signatures: the distribution's mode, a draw from it, the state before the first step.
SERVING = "serving_default"
SAMPLE = "sample"
INITIAL_STATE = "initial_state"


class Signature(NamedTuple):
    """Tensors [B, ...] by the names under which the world sees them."""

    inputs: dict[str, tf.Tensor]
    outputs: dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class InferenceGraph:
    """A graph that acts, built here or loaded from a file.

    Attributes:
        graph_session: The graph with its weights.
        signatures: What can be called; `SERVING` and `SAMPLE` take the same inputs.
        observation_space: The environment's own.
        columns: The columns that acting reads beside the observation: in the structure of each, the
            names of its inputs.
    """

    graph_session: GraphSession
    signatures: dict[str, Signature]
    observation_space: gym.Space
    columns: dict[str, Any]

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs in the order of `acting_inputs().arrays`."""
        observations = leaf_spaces(self.observation_space, "obs")
        return [*observations, *tf.nest.flatten(list(self.columns.values()))]

    def acting_inputs(self) -> ActingInputs:
        """Turns what a caller gives into the arrays that the signatures take."""
        inputs = self.signatures[SERVING].inputs
        specs = tf.nest.map_structure(
            lambda name: tf.TensorSpec(inputs[name].shape[1:], inputs[name].dtype), self.columns
        )
        return ActingInputs(self.observation_space, specs, self._initial_state())

    def function(self, name: str) -> Callable[..., dict[str, np.ndarray]]:
        """One signature as a function of arrays, for any thread.

        Args:
            name: `SERVING` or `SAMPLE`, which take their arrays in the order of `input_names`, or
                `INITIAL_STATE`.
        """
        signature = self.signatures[name]
        order = list(signature.inputs) if name == INITIAL_STATE else self.input_names
        run = self.graph_session.callable(
            [signature.inputs[key] for key in order],
            list(signature.outputs.values()),
            on_calling_thread=True,
        )
        names = list(signature.outputs)
        return lambda *arrays: dict(zip(names, run(*arrays), strict=True))

    def run(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature that acts once, with arrays by name; for many times get `function`.

        Raises:
            KeyError: An input is missing.
        """
        return self.function(name)(*(inputs[key] for key in self.input_names))

    def close(self) -> None:
        """Frees graph and session."""
        self.graph_session.close()

    def __enter__(self) -> InferenceGraph:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _initial_state(self) -> list[np.ndarray]:
        if INITIAL_STATE not in self.signatures:
            return []
        states = self.function(INITIAL_STATE)(np.zeros(1, np.int32))
        return [states[f"state_in_{index}"][0] for index in range(len(states))]


def build_inference(
    observation_space: gym.Space,
    action_space: gym.Space,
    config: PolicyConfig,
    weights: Mapping[str, np.ndarray],
) -> InferenceGraph:
    """Builds the inference graph of a policy.

    Inputs are the leaves of the observation ("obs", or "obs_<leaf>"), and what else the model
    reads: "state_in_<i>", "prev_rewards", and "prev_actions" as the environment took them. Outputs
    are the leaves of the environment's action ("actions", or "actions_<leaf>"), "action_logp" of
    the policy's own action, "action_dist_inputs", "vf_preds" if there are values, "state_out_<i>".

    Args:
        observation_space: The environment's own.
        action_space: The environment's own.
        config: Any policy's config.
        weights: All weights by name.

    Raises:
        ValueError: The weights do not fit what spaces and config describe.
    """
    graph_session = GraphSession()
    try:
        with graph_session.building():
            with tf.variable_creator_scope(_variable_of_zeros):
                network = build_network(observation_space, action_space, config, seed=0)
            graph = _build(graph_session, observation_space, action_space, config, network)
        variables = graph_session.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        check_values(variables, weights, "weights")
        _assign(graph_session, variables, weights)
    except BaseException:
        graph_session.close()
        raise
    return graph


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
    if view.data_col == "actions":
        return action_space
    space = view.space or views[view.data_col or name].space
    if space is None:
        raise ValueError(f"A view that is used for acting must have a space, got {view}.")
    return space


def _build(
    graph_session: GraphSession,
    observation_space: gym.Space,
    action_space: gym.Space,
    config: PolicyConfig,
    network: Network,
) -> InferenceGraph:
    columns = _Columns(network.views, action_space, config.normalize_actions)
    rows = flatten(observation_space, columns["obs"])[0]
    columns.give(single_steps(rows))
    output = network.model(columns)
    distribution = network.dist_class(output.dist_inputs)
    names = columns.input_names()
    inputs = columns.inputs(names)

    def signature(scope: str, own_action: Any) -> Signature:
        with tf.name_scope(scope):
            outputs = {
                **_action_outputs(own_action, action_space, config),
                "action_logp": distribution.log_prob(own_action),
                **_model_outputs(output),
            }
            # An input that is passed through is no output of its own to some consumers.
            return Signature(inputs, {k: tf.identity(v, k) for k, v in outputs.items()})

    # Stateful and without a seed: two replicas of a server must not draw in step.
    seed = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32, name="seed")
    signatures = {
        SERVING: signature(SERVING, distribution.mode()),
        SAMPLE: signature(SAMPLE, distribution.sample(seed)),
    }
    states = network.model.initial_state()
    if states:
        signatures[INITIAL_STATE] = _initial_state_signature(states)
    del names["obs"]
    return InferenceGraph(graph_session, signatures, observation_space, names)


class _Columns(Mapping):
    """The columns as the model reads them, made of what is known on the environment's side.

    Args:
        views: Everything that the model may read.
        action_space: The environment's own.
        normalized: Whether the policy's own actions are normalized.
    """

    def __init__(
        self, views: Mapping[str, ViewRequirement], action_space: gym.Space, normalized: bool
    ):
        specs = acting_specs(views)
        self._spaces = {name: environment_space(name, views, action_space) for name in specs}
        self._action_space = action_space
        self._normalized = normalized
        self._actions = [name for name in specs if views[name].data_col == "actions"]
        for name in self._actions:
            specs[name] = view_spec(views[name], space_spec(action_space))
        self._columns = LazyColumns(specs, batch_placeholder)

    def give(self, columns: Mapping[str, Any]) -> None:
        """Adds columns that are not inputs."""
        self._columns.give(columns)

    def input_names(self) -> dict[str, Any]:
        """For each column that was read the names of its inputs, in its structure."""
        return {
            name: unflatten(self._spaces[name], leaf_spaces(self._spaces[name], name))
            for name in self._columns.read
        }

    def inputs(self, names: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """The placeholders by name."""
        flat = tf.nest.flatten(dict(names))
        twice = sorted({name for name in flat if flat.count(name) > 1})
        if twice:
            raise ValueError(f"Two columns that the model reads have the input {twice[0]!r}.")
        return dict(zip(flat, tf.nest.flatten(self._columns.read), strict=True))

    def __getitem__(self, name: str) -> Any:
        value = self._columns[name]
        if name not in self._actions:
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


def _action_outputs(
    own_action: Any, action_space: gym.Space, config: PolicyConfig
) -> dict[str, tf.Tensor]:
    """The leaves of the environment's action by name."""
    action = environment_action(
        own_action, action_space, config.normalize_actions, config.clip_actions
    )
    names = leaf_spaces(action_space, "actions")
    return dict(zip(names, flatten(action_space, action), strict=True))


def _model_outputs(output: ModelOutput) -> dict[str, tf.Tensor]:
    outputs = {"action_dist_inputs": output.dist_inputs}
    if output.vf_preds is not None:
        outputs["vf_preds"] = output.vf_preds
    return {**outputs, **{f"state_out_{i}": state for i, state in enumerate(output.state_out)}}


def _initial_state_signature(states: list[np.ndarray]) -> Signature:
    """As many rows of the initial state as `batch_size` [B] has elements: no input is a scalar."""
    with tf.name_scope(INITIAL_STATE):
        batch_size = tf.compat.v1.placeholder(tf.int32, [None], "batch_size")
        num_rows = tf.shape(batch_size)[0]
        outputs = {
            f"state_in_{index}": tf.repeat(state[None], num_rows, axis=0, name=f"state_in_{index}")
            for index, state in enumerate(states)
        }
    return Signature({"batch_size": batch_size}, outputs)


def _assign(
    graph_session: GraphSession, variables: list[tf.Variable], weights: Mapping[str, np.ndarray]
) -> None:
    """Runs the initializers on the weights, so that no further operations are needed."""
    initializers = [variable.initializer for variable in variables]
    values = {
        initializer.inputs[1].name: weights[name]
        for initializer, name in zip(initializers, variable_names(variables), strict=True)
    }
    graph_session.session.run(initializers, values)


def _variable_of_zeros(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Makes a variable without the operations that draw initial weights: they are assigned."""
    shape, dtype = kwargs.get("shape"), kwargs.get("dtype")
    if shape is not None and dtype is not None and callable(kwargs["initial_value"]):
        kwargs["initial_value"] = lambda: tf.zeros(shape, dtype)
    return next_creator(**kwargs)
