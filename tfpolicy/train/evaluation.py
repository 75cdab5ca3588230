"""How well something acts: returns of whole episodes, one after another."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from tfpolicy.train.environments import episode_seed
from tfpolicy.train.rollout import check_spaces
from tfpolicy.train.video import VideoWriter

Array = np.ndarray


class Acting(Protocol):
    """What can be evaluated: a policy, or one loaded from a SavedModel."""

    observation_space: gym.Space
    action_space: gym.Space

    def compute_single_action(
        self, obs: Any, state: Any = None, *, explore: bool | None = None
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Returns the environment's action, the recurrent state and further columns."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Results of N episodes.

    Attributes:
        returns: Undiscounted sums of rewards [N] float64.
        lengths: Steps [N] int64.
    """

    returns: Array
    lengths: Array

    def __str__(self) -> str:
        low, high = self.returns.min(), self.returns.max()
        return (
            f"mean return {self.returns.mean():.2f} over {len(self.returns)} episodes "
            f"(std {self.returns.std():.2f}, lowest {low:.2f}, highest {high:.2f}), "
            f"mean length {self.lengths.mean():.1f}"
        )


def evaluate(
    acting: Acting,
    env: gym.Env,
    episodes: int = 10,
    explore: bool = False,
    seed: int = 0,
    video: Path | None = None,
) -> Evaluation:
    """Runs whole episodes in one environment.

    One environment, not several: among several, the first N episodes to end are the short ones.

    Args:
        acting: What acts.
        env: The environment; made with `render_mode="rgb_array"` for a video.
        episodes: N.
        explore: Whether actions are sampled; otherwise the mode is taken.
        seed: Episode k has the same seed whatever acts.
        video: File for a video of the first episode.

    Raises:
        ValueError: The spaces differ, or the environment cannot be filmed.
        ImportError: The package for the video's format is missing.
    """
    check_spaces(acting, env.observation_space, env.action_space)
    if episodes < 1:
        raise ValueError(f"`episodes` must be at least 1, got {episodes}.")
    outcomes = []
    for number in range(episodes):
        with _film(env, video if number == 0 else None) as film:
            outcomes.append(_episode(acting, env, explore, episode_seed(seed, 0, number), film))
    returns, lengths = zip(*outcomes, strict=True)
    return Evaluation(np.array(returns, np.float64), np.array(lengths, np.int64))


def _episode(
    acting: Acting, env: gym.Env, explore: bool, seed: int, film: VideoWriter | None
) -> tuple[float, int]:
    """Return and length of one episode."""
    obs, _ = env.reset(seed=seed)
    state, total, length, ended = None, 0.0, 0, False
    while not ended:
        if film is not None:
            film.add(np.asarray(env.render()))
        action, state, _ = acting.compute_single_action(obs, state, explore=explore)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, length, ended = total + float(reward), length + 1, terminated or truncated
    if film is not None:
        film.add(np.asarray(env.render()))
    return total, length


def _film(env: gym.Env, video: Path | None) -> contextlib.AbstractContextManager:
    if video is None:
        return contextlib.nullcontext()
    if env.render_mode != "rgb_array":
        raise ValueError(f'A video needs `render_mode="rgb_array"`, got {env.render_mode!r}.')
    return VideoWriter(video, env.metadata.get("render_fps", 30))
