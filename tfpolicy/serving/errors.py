"""What can go wrong between a client and a server."""

from __future__ import annotations


class ServerUnavailableError(ConnectionError):
    """The server is not there, or too slow; asking again may help."""


class ModelNotFoundError(LookupError):
    """The server has no such model, or no such version of it."""


class SignatureError(ValueError):
    """What is sent or answered has other names, shapes or dtypes than was agreed."""


class ServerError(RuntimeError):
    """The server answered that it failed, or what no such server answers."""


class SessionLostError(LookupError):
    """The version that made the state of a session is served no more; the state is dropped."""
