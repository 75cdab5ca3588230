"""The versions of a model that a client has met."""

from __future__ import annotations

import threading

import gymnasium as gym

from tfpolicy.serving.remote_model import RemoteModel, remote_model
from tfpolicy.serving.transport import Transport, Version


class Versions:
    """Knows what each version takes and gives, and which one is meant now.

    Args:
        transport: Asks the server.
        requested: What the user asks for; what it means may change while the server runs.
        observation_space: The environment's own, if it is known.
        action_space: The environment's own, if it is known.
    """

    def __init__(
        self,
        transport: Transport,
        requested: Version,
        observation_space: gym.Space | None,
        action_space: gym.Space | None,
    ):
        self._transport = transport
        self._requested = requested
        self._spaces = observation_space, action_space
        self._models: dict[int, RemoteModel] = {}
        self._lock = threading.Lock()
        self.newest = self.ask()

    def __getitem__(self, version: int) -> RemoteModel:
        """A version that `ask` has found before."""
        return self._models[version]

    def ask(self) -> RemoteModel:
        """Asks the server which version is meant now; from then on it is `newest`."""
        metadata = self._transport.metadata(self._requested)
        with self._lock:
            model = self._models.get(metadata.version)
            # A number may come to mean another model, where somebody cleared the folder.
            if model is None or model.metadata != metadata:
                model = remote_model(self._transport, metadata, self._requested, *self._spaces)
                self._models[metadata.version] = model
            self.newest = model
        return model
