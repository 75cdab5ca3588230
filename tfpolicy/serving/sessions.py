"""The recurrent state of each session between its steps."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Hashable, Iterator, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class SessionState:
    """What a version of a model left for the next step.

    Attributes:
        version: The version; to another one the arrays mean nothing.
        arrays: The state, [S] each.
    """

    version: int
    arrays: tuple[np.ndarray, ...]


class Sessions:
    """States by the keys that callers give; from any number of threads."""

    def __init__(self) -> None:
        self._states: dict[Hashable, SessionState] = {}
        self._stepping: set[Hashable] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def stepping(self, keys: Sequence[Hashable]) -> Iterator[list[SessionState | None]]:
        """Holds sessions for one step: yields the state of each, `None` for a new one.

        Raises:
            ValueError: A key is there twice.
            RuntimeError: A session is in a step already; its states would depend on who is faster.
        """
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"`sessions`: expected each session once, got {twice!r} twice.")
        with self._lock:
            for key in keys:
                if key in self._stepping:
                    raise RuntimeError(f"Session {key!r} is in a step already, in another thread.")
            self._stepping.update(keys)
            states = [self._states.get(key) for key in keys]
        try:
            yield states
        finally:
            with self._lock:
                self._stepping.difference_update(keys)

    def keep(self, key: Hashable, state: SessionState) -> None:
        """Keeps the state for the next step."""
        with self._lock:
            self._states[key] = state

    def drop(self, key: Hashable) -> None:
        """Forgets a session, if there is one."""
        with self._lock:
            self._states.pop(key, None)

    def keys(self) -> list[Hashable]:
        """The sessions that have a state."""
        with self._lock:
            return list(self._states)
