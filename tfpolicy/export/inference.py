"""The inference graph: raw observations in, the environment's actions out, and nothing to learn.

It is built anew from plain data, in a graph of its own, so that what is exported holds no loss, no
optimizer and no buffer, and the graph of the policy never grows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.config import PolicyConfig
from tfpolicy.export.columns import EnvironmentColumns, environment_specs, input_names
from tfpolicy.graph.dependencies import operations_behind
from tfpolicy.graph.inputs import ActingInputs
from tfpolicy.graph.keras_classes import building_in
from tfpolicy.graph.network import Network, build_network
from tfpolicy.graph.session import GraphSession, check_values, variable_names
from tfpolicy.models import ModelOutput
from tfpolicy.ops.actions import environment_action
from tfpolicy.spaces import flatten, leaf_spaces
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
        views: The columns that acting reads beside the observation, as the environment knows them.
    """

    graph_session: GraphSession
    signatures: dict[str, Signature]
    observation_space: gym.Space
    views: dict[str, ViewRequirement]

    @property
    def input_names(self) -> list[str]:
        """Names in the order of `acting_inputs().arrays`; a signature has those that it depends on.

        With a window over the observations, for instance, nothing may depend on `obs`.
        """
        observations = leaf_spaces(self.observation_space, "obs")
        columns = (input_names(name, view) for name, view in self.views.items())
        return [*observations, *tf.nest.flatten(list(columns))]

    def acting_inputs(self) -> ActingInputs:
        """Turns what a caller gives into the arrays that the signatures take."""
        specs = environment_specs(self.views)
        return ActingInputs(self.observation_space, specs, self._initial_state())

    def function(self, name: str) -> Callable[..., dict[str, np.ndarray]]:
        """One signature as a function of arrays, for any thread.

        Args:
            name: `SERVING` or `SAMPLE`, which take an array for each of `input_names`, or
                `INITIAL_STATE`.
        """
        signature = self.signatures[name]
        order = list(signature.inputs) if name == INITIAL_STATE else self.input_names
        taken = [index for index, key in enumerate(order) if key in signature.inputs]
        run = self.graph_session.callable(
            [signature.inputs[order[index]] for index in taken],
            list(signature.outputs.values()),
            on_calling_thread=True,
        )
        names = list(signature.outputs)
        return lambda *arrays: dict(zip(names, run(*(arrays[i] for i in taken)), strict=True))

    def run(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature that acts once, with arrays by name; for many times get `function`.

        Raises:
            KeyError: An input is missing.
        """
        taken = {key: inputs[key] for key in self.signatures[name].inputs}
        return self.function(name)(*map(taken.get, self.input_names))

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
    reads: "state_in_<i>", "prev_rewards", "prev_actions" as the environment took them, windows over
    several steps; what nothing depends on is no input. Outputs are the leaves of the environment's
    action ("actions", or "actions_<leaf>"), "action_logp" of the policy's own action,
    "action_dist_inputs", "vf_preds" if there are values, "state_out_<i>".

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


def weight_shapes(
    observation_space: gym.Space, action_space: gym.Space, config: PolicyConfig
) -> dict[str, tuple[int, ...]]:
    """The shapes by name of the weights that `build_inference` takes; same arguments."""
    graph = tf.Graph()
    with building_in(graph):
        build_network(observation_space, action_space, config, seed=0)
        variables = graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    shapes = [tuple(variable.shape.as_list()) for variable in variables]
    return dict(zip(variable_names(variables), shapes, strict=True))


def _build(
    graph_session: GraphSession,
    observation_space: gym.Space,
    action_space: gym.Space,
    config: PolicyConfig,
    network: Network,
) -> InferenceGraph:
    columns = EnvironmentColumns(network.views, action_space, config.normalize_actions)
    output = network.model(columns)
    distribution = network.dist_class(output.dist_inputs)
    # All outputs are made of what the model gives.
    inputs = _depended_on(columns.inputs(), _model_outputs(output).values())

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
    return InferenceGraph(graph_session, signatures, observation_space, columns.views_read())


def _depended_on(
    inputs: Mapping[str, tf.Tensor], outputs: Iterable[tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Leaves out inputs that make no difference: whoever calls a signature must give all it has."""
    needed = operations_behind(outputs)
    return {name: tensor for name, tensor in inputs.items() if tensor.op in needed}


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
