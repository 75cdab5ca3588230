"""Acting through a server; needs the extra "serving"."""

from __future__ import annotations

from tfpolicy.serving.client import PolicyClient
from tfpolicy.serving.errors import (
    ModelNotFoundError,
    ServerError,
    ServerUnavailableError,
    SessionLostError,
    SignatureError,
)

__all__ = [
    "ModelNotFoundError",
    "PolicyClient",
    "ServerError",
    "ServerUnavailableError",
    "SessionLostError",
    "SignatureError",
]
