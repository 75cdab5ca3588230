"""A version of a model on a server: what it takes and gives, in the words of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.export.inference import INITIAL_STATE, SAMPLE, SERVING, Signature
from tfpolicy.graph.inputs import ActingInputs
from tfpolicy.serving.errors import SignatureError
from tfpolicy.serving.signatures import (
    acting_signature,
    action_space_of,
    check_action_space,
    check_observation_space,
    columns_beside,
    observation_space_of,
    signature_specs,
)
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
        columns = columns_beside(signature, observation_space, action_space)
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
        # Of what an observation has, some may make no difference to the model.
        self._taken = list(signature.inputs)
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
        given = dict(zip(self._input_names, feeds, strict=True))
        return {name: given[name] for name in self._taken}

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
        name: signature_specs(metadata.signatures[name], where)
        for name in (SERVING, SAMPLE, INITIAL_STATE)
        if name in metadata.signatures
    }
    signature = acting_signature(signatures, where)
    if observation_space is None:
        observation_space = observation_space_of(signature, where)
    if action_space is None:
        action_space = action_space_of(signature)
    check_observation_space(observation_space, signature, where)
    check_action_space(action_space, signature, where)
    initial_state: list[np.ndarray] = []
    if INITIAL_STATE in signatures:
        endpoint = Endpoint(metadata.version, INITIAL_STATE, signatures[INITIAL_STATE])
        states = transport.predict(endpoint, {"batch_size": np.zeros(1, np.int32)})
        initial_state = [states[f"state_in_{index}"][0] for index in range(len(states))]
    return RemoteModel(
        metadata, requested, signature, observation_space, action_space, initial_state
    )
