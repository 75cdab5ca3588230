"""A version of a model on a server: what it takes and gives, in the words of a policy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from tfpolicy.export.inference import INITIAL_STATE, SAMPLE, SERVING, Signature
from tfpolicy.export.saved_model import signature_text
from tfpolicy.graph.inputs import ActingInputs
from tfpolicy.serving.errors import SignatureError
from tfpolicy.serving.transport import Endpoint, ModelMetadata, Transport, Version
from tfpolicy.spaces import leaf_spaces, unflatten


class RemoteModel:
    """One version of a model.

    Attributes:
        metadata: What the server says of it.
        version: Its number.
        observation_space: The environment's own.
        action_space: The environment's own.
        inputs: Turns what a caller gives into arrays.

    Args:
        metadata: What the server says of it.
        requested: The version that the user asks for, which may mean another one later.
        signature: Specs [B, ...] of what it takes and gives when it acts.
        observation_space: The environment's own.
        action_space: The environment's own.
        initial_state: The recurrent state before the first step, [S] each.
    """

    def __init__(
        self,
        metadata: ModelMetadata,
        requested: Version,
        signature: Signature,
        observation_space: gym.Space,
        action_space: gym.Space,
        initial_state: Sequence[np.ndarray],
    ):
        self.metadata = metadata
        self.version = version = metadata.version
        self.observation_space = observation_space
        self.action_space = action_space
        columns = _columns(signature, observation_space, action_space)
        specs = tf.nest.map_structure(
            lambda name: tf.TensorSpec(
                signature.inputs[name].shape[1:], signature.inputs[name].dtype
            ),
            columns,
        )
        self.inputs = ActingInputs(observation_space, specs, initial_state)
        self._input_names = [
            *leaf_spaces(observation_space, "obs"),
            *tf.nest.flatten(list(columns.values())),
        ]
        self._action_names = list(leaf_spaces(action_space, "actions"))
        self._endpoints = {
            (explore, pinned): Endpoint(
                version if pinned else requested, SAMPLE if explore else SERVING, signature
            )
            for explore in (False, True)
            for pinned in (False, True)
        }

    def endpoint(self, explore: bool, pinned: bool) -> Endpoint:
        """What to ask for.

        Args:
            explore: Whether actions are drawn; otherwise they are the distribution's mode.
            pinned: Whether this version must answer; otherwise the one that the user asks for.
        """
        return self._endpoints[explore, pinned]

    def named(self, feeds: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of `inputs` by the names under which the server wants them."""
        return dict(zip(self._input_names, feeds, strict=True))

    def unpack(
        self, outputs: Mapping[str, np.ndarray]
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """What the server gave, as actions, states and further columns."""
        extras = dict(outputs)
        actions = [extras.pop(name) for name in self._action_names]
        states = [
            extras.pop(f"state_out_{index}") for index in range(len(self.inputs.initial_state))
        ]
        extras["action_prob"] = np.exp(extras["action_logp"])
        return unflatten(self.action_space, actions), states, extras


def remote_model(
    transport: Transport,
    metadata: ModelMetadata,
    requested: Version,
    observation_space: gym.Space | None,
    action_space: gym.Space | None,
) -> RemoteModel:
    """Checks that a version is a policy's and fits the spaces, and asks for its initial state.

    Args:
        transport: Asks the server.
        metadata: What the server says of the version.
        requested: The version that the user asks for.
        observation_space: The environment's own. If it is not known, a `Box` stands for each leaf.
        action_space: The environment's own. If it is not known, a `Box` stands for each leaf.

    Raises:
        SignatureError: It is no policy's, or the spaces are not those of the policy.
    """
    where = f"version {metadata.version} of model {transport.model!r}"
    missing = {SERVING, SAMPLE} - metadata.signatures.keys()
    if missing:
        raise SignatureError(
            f"{where} must be a policy's, with the signatures {SERVING} and {SAMPLE}, but it has "
            f"{', '.join(metadata.signatures)}."
        )
    signatures = {
        name: _signature(metadata.signatures[name], where)
        for name in (SERVING, SAMPLE, INITIAL_STATE)
        if name in metadata.signatures
    }
    signature = _acting_signature(signatures, where)
    if observation_space is None:
        observation_space = _space(signature.inputs, "obs")
    if action_space is None:
        action_space = _space(signature.outputs, "actions")
    _check_space("observation_space", observation_space, "obs", signature.inputs, where)
    _check_space("action_space", action_space, "actions", signature.outputs, where)
    initial_state: list[np.ndarray] = []
    if INITIAL_STATE in signatures:
        endpoint = Endpoint(metadata.version, INITIAL_STATE, signatures[INITIAL_STATE])
        states = transport.predict(endpoint, {"batch_size": np.zeros(1, np.int32)})
        initial_state = [states[f"state_in_{index}"][0] for index in range(len(states))]
    return RemoteModel(
        metadata, requested, signature, observation_space, action_space, initial_state
    )


def _signature(definition: meta_graph_pb2.SignatureDef, where: str) -> Signature:
    sides = (
        {
            name: tf.TensorSpec(tf.TensorShape(info.tensor_shape), tf.as_dtype(info.dtype))
            for name, info in sorted(side.items())
        }
        for side in (definition.inputs, definition.outputs)
    )
    signature = Signature(*sides)
    for name, spec in itertools.chain(signature.inputs.items(), signature.outputs.items()):
        if not spec.shape.rank or spec.shape[0] is not None:
            raise SignatureError(
                f"{where}: `{name}` must lead with a free batch dimension, got {spec.shape}."
            )
    return signature


def _acting_signature(signatures: Mapping[str, Signature], where: str) -> Signature:
    """The one signature that acts, greedily and exploring."""
    serving, sample = signatures[SERVING], signatures[SAMPLE]
    text = signature_text(serving)
    states = [name for name in serving.inputs if name.startswith("state_in_")]
    initial = list(signatures[INITIAL_STATE].outputs) if INITIAL_STATE in signatures else []
    if (
        signature_text(sample) != text
        or "action_logp" not in serving.outputs
        or states != initial
        or any(name.replace("_in_", "_out_") not in serving.outputs for name in states)
    ):
        raise SignatureError(f"{where} must act as a policy does, but {SERVING} is {text}.")
    return serving


def _space(specs: Mapping[str, tf.TensorSpec], prefix: str) -> gym.Space:
    """A space whose leaves have these names, as far as dtypes and shapes tell."""
    if prefix in specs:
        return _box(specs[prefix])
    prefix += "_"
    return gym.spaces.Dict(
        {
            name.removeprefix(prefix): _box(spec)
            for name, spec in specs.items()
            if name.startswith(prefix)
        }
    )


def _box(spec: tf.TensorSpec) -> gym.spaces.Box:
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    low: float
    high: float
    low, high = -np.inf, np.inf
    if dtype.kind == "b":
        low, high = 0, 1
    elif dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return gym.spaces.Box(low, high, tuple(spec.shape[1:]), dtype.type)


def _check_space(
    name: str, space: gym.Space, prefix: str, specs: Mapping[str, tf.TensorSpec], where: str
) -> None:
    expected = {
        leaf_name: tf.TensorSpec(leaf.shape, leaf.dtype)
        for leaf_name, leaf in leaf_spaces(space, prefix).items()
    }
    found = {
        leaf_name: tf.TensorSpec(spec.shape[1:], spec.dtype)
        for leaf_name, spec in specs.items()
        if leaf_name == prefix or leaf_name.startswith(f"{prefix}_")
    }
    wanted, has = (signature_text(Signature(side, {}))["inputs"] for side in (expected, found))
    if not has or wanted != has:
        raise SignatureError(f"`{name}` does not fit {where}: expected {wanted}, it has {has}.")


def _columns(
    signature: Signature, observation_space: gym.Space, action_space: gym.Space
) -> dict[str, Any]:
    """The columns beside the observation: in the structure of each, the names of its inputs."""
    observations = leaf_spaces(observation_space, "obs")
    names = [name for name in signature.inputs if name not in observations]
    prev_actions = list(leaf_spaces(action_space, "prev_actions"))
    if not set(prev_actions) <= set(names):
        return {name: name for name in names}
    others = {name: name for name in names if name not in prev_actions}
    return {"prev_actions": unflatten(action_space, prev_actions), **others}
