"""Episodes as callbacks see them, and the statistics of those that ended."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tfpolicy.callbacks import DefaultCallbacks

# Episode statistics are over this many episodes, the last that ended.
WINDOW = 100

Array = np.ndarray


@dataclasses.dataclass
class Episode:
    """One episode, running or ended.

    Attributes:
        episode_id: Unique within a run; the column `eps_id`.
        env_index: The sub-environment it runs in.
        length: Steps so far.
        total_reward: Undiscounted sum of rewards so far.
        user_data: Room for what callbacks want to keep with the episode; not in checkpoints.
    """

    episode_id: int
    env_index: int
    length: int = 0
    total_reward: float = 0.0
    user_data: dict[str, Any] = dataclasses.field(default_factory=dict)


class EpisodeTracker:
    """Counts steps and rewards of the running episodes of N sub-environments.

    The counters are arrays, because every step adds to all of them; `Episode` objects are brought
    up to date when somebody looks at them.

    Args:
        num_envs: N.
        callbacks: Told of starts, steps and ends.

    Attributes:
        eps_id: Number of the running episode [N] int64.
        t: Steps of the running episode so far [N] int64.
    """

    def __init__(self, num_envs: int, callbacks: DefaultCallbacks):
        self.eps_id = np.zeros(num_envs, np.int64)
        self.t = np.zeros(num_envs, np.int64)
        self._returns = np.zeros(num_envs, np.float64)
        self._next_id = 0
        self._running = [Episode(-1, i) for i in range(num_envs)]
        self._ended: list[Episode] = []
        self._callbacks = callbacks
        # Asked once: calling an event that does nothing, at every step, is not free.
        self._follows_steps = (
            type(callbacks).on_episode_step is not DefaultCallbacks.on_episode_step
        )

    def begin(self, started: Array) -> None:
        """Begins new episodes where `started` [N] bool."""
        for i in np.flatnonzero(started).tolist():
            self._running[i] = episode = Episode(self._next_id, i)
            self.eps_id[i] = self._next_id
            self._next_id += 1
            self._callbacks.on_episode_start(episode=episode, env_index=i)
        self.t[started] = 0
        self._returns[started] = 0.0

    def count(self, rewards: Array, ended: Array | None, valid: Array | None) -> None:
        """Counts one step of each sub-environment.

        Args:
            rewards: [N].
            ended: [N] bool, where it was the last of the episode; `None` if nowhere.
            valid: [N] bool, where it was a step at all; `None` if everywhere.
        """
        if valid is None:
            self.t += 1
            self._returns += rewards
        else:
            self.t += valid
            self._returns[valid] += rewards[valid]
        if self._follows_steps:
            for episode in self.running():
                if valid is None or valid[episode.env_index]:
                    self._callbacks.on_episode_step(episode=episode, env_index=episode.env_index)
        for i in () if ended is None else np.flatnonzero(ended).tolist():
            episode = self._updated(i)
            self._ended.append(episode)
            self._callbacks.on_episode_end(episode=episode, env_index=i)

    def running(self) -> list[Episode]:
        """The episode of each sub-environment, up to date."""
        return [self._updated(i) for i in range(len(self._running))]

    def known(self) -> dict[int, Episode]:
        """Running episodes, and ended ones not popped yet, by their number."""
        return {episode.episode_id: episode for episode in self._ended + self.running()}

    def pop_ended(self) -> list[Episode]:
        """The episodes that ended since the last call, in the order of their ends."""
        ended, self._ended = self._ended, []
        return ended

    def get_state(self) -> dict[str, Any]:
        """Arrays and plain values; ended episodes must have been popped."""
        return {
            "eps_id": self.eps_id.copy(),
            "t": self.t.copy(),
            "returns": self._returns.copy(),
            "next_id": self._next_id,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `get_state`."""
        self.eps_id[:], self.t[:] = state["eps_id"], state["t"]
        self._returns[:] = state["returns"]
        self._next_id = state["next_id"]
        self._running = [Episode(int(eps_id), i) for i, eps_id in enumerate(self.eps_id)]
        self._ended = []

    def _updated(self, i: int) -> Episode:
        episode = self._running[i]
        episode.length, episode.total_reward = int(self.t[i]), float(self._returns[i])
        return episode


class EpisodeStatistics:
    """Returns and lengths of the last episodes that ended, and how many ended in all."""

    def __init__(self) -> None:
        self.total = 0
        self._returns: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._lengths: collections.deque[int] = collections.deque(maxlen=WINDOW)

    def add(self, episodes: Iterable[Episode]) -> None:
        """Counts episodes that ended, oldest first."""
        for episode in episodes:
            self.total += 1
            self._returns.append(episode.total_reward)
            self._lengths.append(episode.length)

    def summary(self) -> dict[str, float]:
        """Statistics of the window; NaN before the first episode has ended."""
        returns = np.array(self._returns or [np.nan])
        return {
            "episode_return_mean": float(returns.mean()),
            "episode_return_min": float(returns.min()),
            "episode_return_max": float(returns.max()),
            "episode_len_mean": float(np.mean(self._lengths or [np.nan])),
        }

    def get_state(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "total": self.total,
            "returns": list(self._returns),
            "lengths": list(self._lengths),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `get_state`."""
        self.total = state["total"]
        self._returns = collections.deque(state["returns"], maxlen=WINDOW)
        self._lengths = collections.deque(state["lengths"], maxlen=WINDOW)
