"""Environments of envpool, which step in threads of C++, as a vector environment of gymnasium."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import NameNotFound, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

# Observations of earlier ones, which run on Python 3.10, are garbage with NumPy 2.
OLDEST = (1, 2)

_OWN_OPTIONS = ("num_envs", "batch_size", "seed", "env_seed", "gym_reset_return_info")

Array = np.ndarray


class EnvPoolVectorEnv(VectorEnv):
    """N sub-environments of envpool (https://envpool.readthedocs.io).

    The step after the end of an episode is its reset (`AutoresetMode.NEXT_STEP`). envpool takes
    seeds when a pool is made and at no other time, so a reset with a seed makes another pool, and
    the episodes after the first follow from the seed and all actions since.

    Args:
        env_id: A task of envpool, for example "CartPole-v1".
        num_envs: N.
        env_config: Keyword arguments of the task, for example `max_episode_steps`.

    Raises:
        gymnasium.error.NameNotFound: envpool has no such task.
        ImportError: envpool is not installed, or too old.
        TypeError: The task does not take `env_config`.
        ValueError: `env_config` has what is ours to say, or the task has several players.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}

    def __init__(self, env_id: str, num_envs: int = 1, env_config: Mapping[str, Any] | None = None):
        self._envpool = _import_envpool()
        self._env_id = env_id
        self._options = {**(env_config or {}), "num_envs": num_envs}
        _check_task(self._envpool, env_id)
        if owned := sorted(set(env_config or {}).intersection(_OWN_OPTIONS)):
            raise ValueError(f"`env_config` must not have {', '.join(owned)} for envpool.")
        try:
            task = self._envpool.make_spec(env_id, **self._options)
        except TypeError as error:
            raise TypeError(
                f"{env_id} of envpool does not take `env_config` {dict(env_config or {})}: {error}"
            ) from error
        if task.config.max_num_players != 1:
            raise ValueError(
                f"{env_id} of envpool must have one player, got {task.config.max_num_players}."
            )
        self.num_envs = num_envs
        self.single_observation_space = _unbounded(task.gymnasium_observation_space)
        self.single_action_space = task.gymnasium_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._pool: Any = None

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Starts a new episode everywhere.

        Args:
            seed: Of each sub-environment; of a number, sub-environment i gets the i-th from it on.
                Without one, episodes go on as after an end, and the first are drawn at random.
            options: There are none.

        Returns:
            Observations [N, ...] and infos.
        """
        if options:
            raise ValueError(f"`options` must be empty for envpool, got {options}.")
        if seed is None and self._pool is None:
            seed = np.random.SeedSequence().generate_state(self.num_envs).tolist()
        if seed is not None:
            seeds = seed if isinstance(seed, Sequence) else range(seed, seed + self.num_envs)
            # It takes numbers of 32 bits with a sign.
            numbers = [number % 2**31 for number in seeds]
            self._pool = self._envpool.make_gymnasium(self._env_id, seed=numbers, **self._options)
        return self._pool.reset()

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Steps every sub-environment with the actions [N, ...]."""
        if self._pool is None:
            raise ResetNeeded("Call `reset` before the first `step`.")
        return self._pool.step(np.asarray(actions))

    def close_extras(self, **kwargs: Any) -> None:
        """Lets the pool and its threads go."""
        self._pool = None


def _import_envpool() -> ModuleType:
    try:
        import envpool
    except ImportError as error:
        raise ImportError(
            'Vectorization "envpool" needs the package envpool, which is for Python 3.11 or later: '
            "pip install tfpolicy[envpool]."
        ) from error
    if tuple(int(part) for part in envpool.__version__.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(f"envpool must be {oldest} or later, got {envpool.__version__}.")
    return envpool


def _check_task(envpool: ModuleType, env_id: str) -> None:
    known = envpool.list_all_envs()
    if env_id not in known:
        close = difflib.get_close_matches(env_id, known)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise NameNotFound(f"envpool has no environment {env_id!r}.{hint}")


def _unbounded(space: gym.Space) -> gym.Space:
    """The space with infinite bounds where envpool has the ends of what its dtype can hold."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({name: _unbounded(part) for name, part in space.items()})
    if not isinstance(space, gym.spaces.Box) or space.dtype.kind != "f":
        return space
    ends = np.finfo(space.dtype)
    # It takes the smallest positive number (`numeric_limits::min` of C++) for the lowest.
    low = np.where(np.isin(space.low, (ends.min, ends.tiny)), -np.inf, space.low)
    high = np.where(space.high == ends.max, np.inf, space.high)
    return gym.spaces.Box(low, high, dtype=space.dtype.type)
