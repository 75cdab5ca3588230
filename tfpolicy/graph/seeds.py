"""Seeds for stateless random operations: a base and a counter, both part of a policy's state."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

_LIMIT = 2**31
_BLOCK = 256


class SeedStream:
    """Hands out seeds, each once; where it stands can be saved and restored.

    Random operations of TensorFlow that keep their own state cannot be restored, and draw other
    numbers when an operation is added elsewhere in the graph. Stateless ones that are given a seed
    per call have neither fault.

    Args:
        seed: The policy's seed.
        purpose: Streams of one seed but different purposes are independent.
    """

    def __init__(self, seed: int, purpose: str):
        self._base = (seed + zlib.crc32(purpose.encode())) % _LIMIT
        self._count = 0
        # The next seeds, the very next last: making one takes as long as a matrix product.
        self._ahead: list[np.ndarray] = []
        self._lock = threading.Lock()

    def next(self) -> np.ndarray:
        """The next seed: [2] int32. Safe to call from several threads."""
        with self._lock:
            if not self._ahead:
                self._ahead = self._block_from(self._count)
            self._count += 1
            return self._ahead.pop()

    def give_back(self, seed: np.ndarray) -> None:
        """Takes back a seed whose draw came to nothing; only the latest can still be used."""
        with self._lock:
            if int(seed[1]) == (self._count - 1) % _LIMIT:
                self._count -= 1
                self._ahead.append(seed)

    def get_state(self) -> dict[str, int]:
        """The base and how many seeds were handed out."""
        return {"base": self._base, "count": self._count % _LIMIT}

    def set_state(self, state: dict[str, int]) -> None:
        """Continues where another stream stood."""
        with self._lock:
            self._base, self._count = int(state["base"]), int(state["count"])
            self._ahead = []

    def _block_from(self, count: int) -> list[np.ndarray]:
        counts = np.arange(count + _BLOCK - 1, count - 1, -1, dtype=np.int64) % _LIMIT
        return list(np.stack([np.full(_BLOCK, self._base), counts], axis=1).astype(np.int32))


def check_seed_states(states: Any, names: Collection[str]) -> None:
    """Checks what several streams are to be set to, by name.

    Raises:
        ValueError: A name is missing or unknown, or a state has not just a base and a count.
    """
    if not isinstance(states, Mapping) or set(states) != set(names):
        raise ValueError(f"The random state must be that of {', '.join(names)}, got {states!r}.")
    for name, state in states.items():
        if not isinstance(state, Mapping) or set(state) != {"base", "count"}:
            raise ValueError(f"The random state of {name}: expected base and count, got {state!r}.")
        for key, number in state.items():
            if not is_count(number) or number >= _LIMIT:
                raise ValueError(
                    f"The random state of {name}: `{key}` must be in 0 to 2**31 - 1, "
                    f"got {number!r}."
                )


def is_count(value: Any) -> bool:
    """Whether a value out of a stored state is an integer from 0 on, and no truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 0)
