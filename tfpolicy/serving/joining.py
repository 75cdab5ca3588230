"""Joins what several threads ask at the same time into one request."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import numpy as np

from tfpolicy.serving.errors import (
    ModelNotFoundError,
    ServerError,
    ServerUnavailableError,
    SignatureError,
)
from tfpolicy.serving.transport import Endpoint

Arrays = Mapping[str, np.ndarray]
Predict = Callable[[Endpoint, Arrays], dict[str, np.ndarray]]


@dataclasses.dataclass
class _Part:
    """Rows of one caller, and where their outputs go."""

    inputs: Arrays
    num_rows: int
    outputs: Future[dict[str, np.ndarray]] = dataclasses.field(default_factory=Future)


class JoinedRequests:
    """Sends rows of all who ask for the same endpoint in requests of bounded size.

    Nobody waits for company: while one request is under way, the next one gathers. There is no
    thread behind it; one of those who wait sends for all.

    Args:
        predict: Sends one request.
        max_rows: A request has no more rows. Who asks for more gets them out of several.
    """

    def __init__(self, predict: Predict, max_rows: int):
        self._predict = predict
        self._max_rows = max_rows
        self._waiting: dict[Endpoint, collections.deque[_Part]] = collections.defaultdict(
            collections.deque
        )
        self._sending: dict[Endpoint, threading.Lock] = collections.defaultdict(threading.Lock)
        self._lock = threading.Lock()

    def __call__(self, endpoint: Endpoint, inputs: Arrays) -> dict[str, np.ndarray]:
        """Like `Transport.predict`."""
        parts = self._parts(inputs)
        with self._lock:
            self._waiting[endpoint].extend(parts)
            sending = self._sending[endpoint]
        while not all(part.outputs.done() for part in parts):
            with sending:
                if not all(part.outputs.done() for part in parts):
                    self._send(endpoint, self._next(endpoint))
        results = [part.outputs.result() for part in parts]
        if len(results) == 1:
            return results[0]
        return {name: np.concatenate([r[name] for r in results]) for name in results[0]}

    def _parts(self, inputs: Arrays) -> list[_Part]:
        num_rows = len(next(iter(inputs.values())))
        if num_rows <= self._max_rows:
            return [_Part(inputs, num_rows)]
        starts = range(0, num_rows, self._max_rows)
        slices = [slice(start, min(start + self._max_rows, num_rows)) for start in starts]
        return [
            _Part({name: value[rows] for name, value in inputs.items()}, rows.stop - rows.start)
            for rows in slices
        ]

    def _next(self, endpoint: Endpoint) -> list[_Part]:
        """Takes those who wait longest, as many as fit; there is one at least."""
        with self._lock:
            waiting = self._waiting[endpoint]
            parts = [waiting.popleft()]
            num_rows = parts[0].num_rows
            while waiting and num_rows + waiting[0].num_rows <= self._max_rows:
                parts.append(waiting.popleft())
                num_rows += parts[-1].num_rows
            return parts

    def _send(self, endpoint: Endpoint, parts: list[_Part]) -> None:
        try:
            outputs = self._predict(endpoint, _joined([part.inputs for part in parts]))
            _deal(outputs, parts)
        except SignatureError as error:
            # Rows of one caller must not fail those of another.
            if len(parts) == 1:
                parts[0].outputs.set_exception(error)
            else:
                for part in parts:
                    self._send(endpoint, [part])
        except (ModelNotFoundError, ServerError, ServerUnavailableError) as error:
            for part in parts:
                part.outputs.set_exception(error)
        finally:
            # Whoever is interrupted while it sends for others leaves them to the next one.
            with self._lock:
                left = [part for part in parts if not part.outputs.done()]
                self._waiting[endpoint].extendleft(reversed(left))


def _joined(inputs: list[Arrays]) -> Arrays:
    if len(inputs) == 1:
        return inputs[0]
    return {name: np.concatenate([part[name] for part in inputs]) for name in inputs[0]}


def _deal(outputs: Arrays, parts: list[_Part]) -> None:
    start = 0
    for part in parts:
        rows = slice(start, start + part.num_rows)
        part.outputs.set_result({name: value[rows] for name, value in outputs.items()})
        start = rows.stop
