"""How well something acts: returns of whole episodes, one after another."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tfpolicy import spaces
from tfpolicy.policy import Policy
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.served_policy import ServedPolicy
from tfpolicy.train.collection import STATE_IN, STATE_OUT, ActingHistory, collection_for
from tfpolicy.train.environments import episode_seed
from tfpolicy.train.rollout import check_spaces, env_action_transform
from tfpolicy.train.video import VideoWriter

Array = np.ndarray


# What can be evaluated: a policy, or what one left behind.
Acting = Policy | ServedPolicy


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
    player = _Player(acting, explore)
    outcomes = []
    for number in range(episodes):
        with _film(env, video if number == 0 else None) as film:
            outcomes.append(_episode(player, env, episode_seed(seed, 0, number), film))
    returns, lengths = zip(*outcomes, strict=True)
    return Evaluation(np.array(returns, np.float64), np.array(lengths, np.int64))


class _Player:
    """Acts step by step in one environment, and remembers what the views need."""

    def __init__(self, acting: Acting, explore: bool):
        self._acting, self._explore = acting, explore
        views = acting.view_requirements
        collection = collection_for({k: v for k, v in views.items() if v.used_for_compute_actions})
        self._view_names = collection.acting
        # Policies give actions of their own, and are given them back.
        self._to_env, blanks = None, {}
        if isinstance(acting, Policy):
            self._to_env = env_action_transform(acting)
        else:
            blanks = acting.blanks
        self._history = ActingHistory(collection, 1, blanks)
        self.begin()

    def begin(self) -> None:
        """Forgets the episode before."""
        self._history.clear()
        self._states = [state[None] for state in self._acting.get_initial_state()]

    def act(self, obs: Any) -> Any:
        """The environment's action."""
        space = self._acting.observation_space
        row = spaces.unflatten(space, spaces.batch_observations(space, [obs]))
        seen = self._history.before(row)
        before = {f"{STATE_IN}{k}": state for k, state in enumerate(self._states)}
        actions, self._states, extras = self._acting.compute_actions(
            row,
            self._states or None,
            explore=self._explore,
            **{name: seen[name] for name in self._view_names},
        )
        after = {f"{STATE_OUT}{k}": state for k, state in enumerate(self._states)}
        self._acted = {**before, **after, **extras, SampleBatch.ACTIONS: actions}
        env_actions = actions if self._to_env is None else self._to_env(actions)
        return spaces.first_action(self._acting.action_space, env_actions)

    def see(self, reward: float, terminated: bool, truncated: bool) -> None:
        """Takes in what came of the action."""
        ends = {SampleBatch.TERMINATEDS: terminated, SampleBatch.TRUNCATEDS: truncated}
        columns = {name: np.array([value], np.bool_) for name, value in ends.items()}
        columns[SampleBatch.REWARDS] = np.array([reward], np.float32)
        self._history.after({**self._acted, **columns}, None)


def _episode(
    player: _Player, env: gym.Env, seed: int, film: VideoWriter | None
) -> tuple[float, int]:
    """Return and length of one episode."""
    obs, _ = env.reset(seed=seed)
    player.begin()
    total, length, ended = 0.0, 0, False
    while not ended:
        if film is not None:
            film.add(np.asarray(env.render()))
        obs, reward, terminated, truncated, _ = env.step(player.act(obs))
        player.see(float(reward), terminated, truncated)
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
