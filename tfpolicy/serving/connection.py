"""Makes the transport to a server, of whichever protocol."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tfpolicy.export.publish import MAX_VERSION
from tfpolicy.serving.transport import Transport, Version

PROTOCOLS = ("grpc", "rest")


def connect(
    protocol: str,
    address: str,
    model: str,
    *,
    timeout: float,
    retry_for: float,
    credentials: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Transport:
    """Makes a transport that asks again while the server is unavailable; asks nothing yet.

    Args:
        protocol: "grpc" or "rest".
        address: "host:port", or for REST a URL.
        model: The name under which the server has the model.
        timeout: Seconds that one try may take.
        retry_for: Seconds for which an unavailable server is asked again.
        credentials: With gRPC, `grpc.ChannelCredentials`.
        headers: Of every request.

    Raises:
        ImportError: The extra "serving" is not installed.
        ValueError: An argument is out of its range.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"`protocol` must be one of {', '.join(PROTOCOLS)}, got {protocol!r}.")
    if protocol == "rest" and credentials is not None:
        raise ValueError('`credentials` are for gRPC; with "rest" give an "https://" address.')
    if timeout <= 0:
        raise ValueError(f"`timeout` must be positive, got {timeout}.")
    if retry_for < 0:
        raise ValueError(f"`retry_for` must be at least 0, got {retry_for}.")
    try:
        from tfpolicy.serving.retries import RetryingTransport

        if protocol == "grpc":
            from tfpolicy.serving.grpc_transport import GrpcTransport

            transport: Transport = GrpcTransport(address, model, timeout, credentials, headers)
        else:
            from tfpolicy.serving.rest_transport import RestTransport

            transport = RestTransport(address, model, timeout, headers)
    except ImportError as error:
        raise ImportError(
            f"Acting through a server needs the package {error.name}: "
            "pip install tfpolicy[serving]."
        ) from error
    return RetryingTransport(transport, retry_for)


def check_version(version: Version) -> None:
    """Refuses what no server can have.

    Raises:
        TypeError: It is no number, no label and not `None`.
        ValueError: It is a number or a label that cannot be.
    """
    if isinstance(version, bool) or not isinstance(version, int | str | None):
        raise TypeError(f"`version` must be a number, a label or None, got {version!r}.")
    if isinstance(version, str) and not re.fullmatch(r"\w*[A-Za-z_]\w*", version, re.ASCII):
        raise ValueError(
            f"`version`: expected a number as an int, or a label of letters, digits and "
            f"underscores, got {version!r}."
        )
    if isinstance(version, int) and not 0 <= version <= MAX_VERSION:
        raise ValueError(f"`version` must be an integer of 0 to {MAX_VERSION}, got {version}.")
