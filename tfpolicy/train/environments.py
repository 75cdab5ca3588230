"""Vector environments as one endless stream of steps, whatever their autoreset mode."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from tfpolicy import spaces
from tfpolicy.train.envpool_env import EnvPoolVectorEnv

VECTORIZATIONS = ("sync", "async", "vector_entry_point", "envpool")

_SEEDS_PER_BLOCK = 64

Array = np.ndarray


class FinalObservations(NamedTuple):
    """What the K sub-environments whose episode ended saw last: `leaves`, each [K, ...]."""

    env_indices: Array
    leaves: list[Array]


class Step(NamedTuple):
    """One step of N sub-environments; rows are sub-environments.

    Attributes:
        obs: What to act on next [N, ...], a structure of arrays for Dict and Tuple spaces.
        rewards: [N].
        terminateds: [N] bool.
        truncateds: [N] bool.
        infos: The vector environment's dict of infos.
        valid: [N] bool, False where the step was a reset and no transition; `None` if none was.
        ended: [N] bool, where it was the last of an episode; `None` if nowhere.
        started: [N] bool, where `obs` is the first of a new episode; `None` if nowhere.
        final: What ended episodes saw last where `obs` does not say so already; else `None`.
    """

    obs: Any
    rewards: Array
    terminateds: Array
    truncateds: Array
    infos: Mapping[str, Any]
    valid: Array | None
    ended: Array | None
    started: Array | None
    final: FinalObservations | None

    def info_rows(self) -> Array:
        """The info of each sub-environment, [N] of dicts; that of the last step where one ended."""
        rows = _info_rows(self.infos, len(self.rewards))
        for i, row in enumerate(rows):
            # Where an episode ended and began in one step, what is beside these two is the reset's.
            if row.pop("final_obs", None) is not None:
                rows[i] = row["final_info"]
        return rows


def make_vector_env(
    env_id: str,
    num_envs: int,
    vectorization: str = "sync",
    env_config: Mapping[str, Any] | None = None,
) -> VectorEnv:
    """Makes `num_envs` copies of a registered environment.

    Sub-environments of "sync" and "async" are never reset behind our back
    (`AutoresetMode.DISABLED`): `Environments` gives each episode its own seed. The environment's
    own vector entry point and envpool reset as they like.

    Args:
        env_id: As for `gymnasium.make`, for example "CartPole-v1" or "module:Env-v0"; for
            "envpool" the name of one of its tasks.
        num_envs: How many.
        vectorization: "sync", "async" (a process each), "vector_entry_point" or "envpool".
        env_config: Keyword arguments of the environment.

    Raises:
        ValueError: `vectorization` is unknown or `num_envs` is not positive.
        ImportError: envpool is not installed.
        gymnasium.error.Error: There is no such environment.
    """
    if vectorization not in VECTORIZATIONS:
        known = ", ".join(VECTORIZATIONS)
        raise ValueError(f"`vectorization` must be one of {known}, got {vectorization!r}.")
    if num_envs < 1:
        raise ValueError(f"`num_envs` must be at least 1, got {num_envs}.")
    if vectorization == "envpool":
        return EnvPoolVectorEnv(env_id, num_envs, env_config)
    if env_id.startswith("envpool:"):  # gymnasium would import envpool and make its own.
        name = env_id.removeprefix("envpool:")
        raise ValueError(f"An environment of envpool is {name!r} with vectorization 'envpool'.")
    options: dict[str, Any] = {}
    if vectorization != "vector_entry_point":
        # We copy observations into our own columns, so the environment need not.
        options["vector_kwargs"] = {"autoreset_mode": AutoresetMode.DISABLED, "copy": False}
    if vectorization == "async":
        options["wrappers"] = [functools.partial(_shield_worker, os.getpid())]
    return gym.make_vec(
        env_id, num_envs, vectorization_mode=vectorization, **options, **(env_config or {})
    )


def episode_seed(run_seed: int, env_index: int, episode: int) -> int:
    """The seed of a sub-environment's `episode`-th episode: independent streams, no state."""
    block, index = divmod(episode, _SEEDS_PER_BLOCK)
    return _seed_block(run_seed, env_index, block)[index]


@functools.lru_cache(maxsize=1024)
def _seed_block(run_seed: int, env_index: int, block: int) -> list[int]:
    # Seeds are drawn many at a time: hashing costs as much as a step of a small environment.
    sequence = np.random.SeedSequence((run_seed, env_index, block))
    return sequence.generate_state(_SEEDS_PER_BLOCK).tolist()


class Environments:
    """N sub-environments that step together and start a new episode wherever one has ended.

    Where sub-environments can be seeded one by one (gymnasium's sync and async vector environments
    with `AutoresetMode.DISABLED`), each episode's seed follows from the run's seed, the
    sub-environment and the number of the episode. The state of an episode is then a function of its
    seed and its actions, and `replay` brings it back.

    Args:
        env: A vector environment in any autoreset mode.
        seed: The run's seed.

    Raises:
        ValueError: The vector environment does not say how it resets.
    """

    def __init__(self, env: VectorEnv, seed: int):
        self.env = env
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.autoreset_mode = _autoreset_mode(env)
        self.replayable = self.autoreset_mode is AutoresetMode.DISABLED and isinstance(
            env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)
        )
        # The number of the running episode in each sub-environment, counted from 0.
        self.episodes = np.full(self.num_envs, -1, np.int64)
        self._seed = seed
        self._ended: Array | None = None

    def reset(self) -> Any:
        """Starts a new episode everywhere; returns the observations [N, ...]."""
        self._ended = None
        everywhere = np.ones(self.num_envs, np.bool_)
        if self.replayable:
            return self._start(everywhere)
        self.episodes += 1
        seed = episode_seed(self._seed, self.num_envs, int(self.episodes.sum()))
        return self.env.reset(seed=seed)[0]

    def step(self, actions: Any) -> Step:
        """Steps every sub-environment with the environment's actions [N, ...]."""
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        valid = started = final = None
        any_end = np.logical_or(terminateds, truncateds)
        ended: Array | None = any_end if np.count_nonzero(any_end) else None
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            if self._ended is not None:
                started, valid = self._ended, ~self._ended
                self.episodes += started
            self._ended = ended
        elif ended is not None:
            started = ended
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                self.episodes += started
                final = self._final_in_infos(infos, ended)
            else:
                final = self._final_in_obs(obs, ended)
                obs = self._start(ended)
        return Step(obs, rewards, terminateds, truncateds, infos, valid, ended, started, final)

    def replay(self, actions: Sequence[Sequence[Array]]) -> Any | None:
        """Brings back the running episodes, whose numbers are in `episodes`.

        All sub-environments step together, so that they are aligned at the end: an episode that
        needs fewer steps than the longest starts later. Until then its sub-environment plays the
        longest, too, by the same seed and the same actions, since other actions might not be legal.

        Args:
            actions: For each sub-environment the leaves [L_i, ...] of its episode's actions so far.

        Returns:
            The observations [N, ...] after these actions, or `None` if an episode ended too early,
            which happens where the environment is not a function of seed and actions.
        """
        lengths = np.array([len(leaves[0]) for leaves in actions])
        starts = lengths.max() - lengths
        longest = int(lengths.argmax())
        seeds = np.array([self._episode_seed(i) for i in range(self.num_envs)])
        everywhere = np.ones(self.num_envs, np.bool_)
        obs = self._reset(everywhere, np.where(starts > 0, seeds[longest], seeds).tolist())
        for step in range(lengths.max()):
            waiting = starts > step
            rows = [
                [leaf[step] for leaf in actions[longest]]
                if waiting[i]
                else [leaf[step - starts[i]] for leaf in leaves]
                for i, leaves in enumerate(actions)
            ]
            stacked = [np.stack(column) for column in zip(*rows, strict=True)]
            obs, _, terminateds, truncateds, _ = self.env.step(
                spaces.unflatten(self.action_space, stacked)
            )
            ended = np.logical_or(terminateds, truncateds)
            if (ended & ~waiting).any():
                return None
            due = starts == step + 1
            # Where one is not like the longest, it ends where that does not.
            again = due | ended
            if again.any():
                obs = self._reset(again, np.where(due, seeds, seeds[longest]).tolist())
        return obs

    def close(self) -> None:
        """Closes the vector environment."""
        self.env.close()

    def _start(self, mask: Array) -> Any:
        """Resets the sub-environments in `mask` to their next episode; returns all observations."""
        self.episodes += mask
        seeds: list[int | None] | None = None
        if self.replayable:  # A vector environment of somebody else's need not take a list.
            seeds = [None] * self.num_envs
            for i in np.flatnonzero(mask).tolist():
                seeds[i] = self._episode_seed(i)
        return self._reset(mask, seeds)

    def _reset(self, mask: Array, seeds: Any) -> Any:
        return self.env.reset(seed=seeds, options={"reset_mask": mask})[0]

    def _episode_seed(self, env_index: int) -> int:
        return episode_seed(self._seed, env_index, int(self.episodes[env_index]))

    def _final_in_obs(self, obs: Any, ended: Array) -> FinalObservations:
        # Indexing with an array copies, so the reset may reuse the environment's memory.
        indices = np.flatnonzero(ended)
        leaves = spaces.flatten(self.observation_space, obs)
        return FinalObservations(indices, [np.asarray(leaf)[indices] for leaf in leaves])

    def _final_in_infos(self, infos: Mapping[str, Any], ended: Array) -> FinalObservations:
        if "final_obs" not in infos:
            raise ValueError(
                "A vector environment with AutoresetMode.SAME_STEP must put the last observation "
                f"of an ended episode into infos['final_obs'], got infos with {sorted(infos)}."
            )
        indices = np.flatnonzero(ended)
        rows = [spaces.flatten(self.observation_space, infos["final_obs"][i]) for i in indices]
        return FinalObservations(indices, [np.stack(column) for column in zip(*rows, strict=True)])


def _autoreset_mode(env: VectorEnv) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise ValueError(
            f"`metadata['autoreset_mode']` of {env} must be a gymnasium.vector.AutoresetMode, "
            f"got {mode!r}."
        )
    return mode


def _info_rows(infos: Mapping[str, Any], num_envs: int) -> Array:
    """Takes apart gymnasium's infos: arrays [N] by key, with a mask under "_key"."""
    rows = np.empty(num_envs, object)
    rows[:] = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        if isinstance(values, Mapping):
            values = _info_rows(values, num_envs)
        for i in np.flatnonzero(infos.get(f"_{key}", np.ones(num_envs, np.bool_))):
            rows[i][key] = values[i]
    return rows


def _shield_worker(parent: int, env: gym.Env) -> gym.Env:
    """Lets a worker process ignore Ctrl-C, which a terminal sends to all processes at once."""
    if os.getpid() != parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return env
