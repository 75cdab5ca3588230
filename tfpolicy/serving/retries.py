"""Asks again while a server is unavailable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tenacity

from tfpolicy.serving.errors import ServerUnavailableError
from tfpolicy.serving.transport import Endpoint, ModelMetadata, Transport, Version

_LOGGER = logging.getLogger(__name__)
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0


class RetryingTransport(Transport):
    """Asks another transport, and again with exponential backoff while the server is unavailable.

    Nothing that is asked changes the server, so asking twice does no harm. The waits are drawn
    between zero and a bound that doubles from try to try: callers that failed together do not
    come back together.

    Args:
        transport: Whom to ask; closed by `close`.
        retry_for: Seconds after the first try within which the last one is made.
    """

    def __init__(self, transport: Transport, retry_for: float):
        super().__init__(transport.address, transport.model)
        self._transport = transport
        self._retry_for = retry_for
        self._closed = False
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ServerUnavailableError),
            wait=tenacity.wait_random_exponential(_FIRST_WAIT_S, _LONGEST_WAIT_S),
            stop=tenacity.stop_before_delay(retry_for),
            before_sleep=self._say_once,
            reraise=True,
        )

    def metadata(self, version: Version) -> ModelMetadata:
        """Asks until there is an answer."""
        return self._ask(self._transport.metadata, version)

    def predict(
        self, endpoint: Endpoint, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Asks until there is an answer."""
        return self._ask(self._transport.predict, endpoint, inputs)

    def close(self) -> None:
        """Closes the other transport; who waits for it in another thread, waits no longer."""
        self._closed = True
        self._transport.close()

    def _ask(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return self._retrying(self._ask_once, method, *arguments)
        except ServerUnavailableError as error:
            raise ServerUnavailableError(f"{error}; tried for {self._retry_for:g} s.") from error

    def _say_once(self, state: tenacity.RetryCallState) -> None:
        """Says why nothing happens, at the first failure of a call."""
        if state.attempt_number == 1 and state.outcome is not None:
            _LOGGER.warning(
                "%s; asking again for %g s.", state.outcome.exception(), self._retry_for
            )

    def _ask_once(self, method: Callable[..., Any], *arguments: Any) -> Any:
        if self._closed:
            raise RuntimeError("The client is closed.")
        return method(*arguments)
