"""Rollouts: a policy acts in vector environments, and fragments of episodes come out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space
from gymnasium.vector import AutoresetMode

from tfpolicy import spaces
from tfpolicy.callbacks import DefaultCallbacks
from tfpolicy.columns import Column, map_column
from tfpolicy.policy import ACTED_COLUMNS, Policy
from tfpolicy.sample_batch import SampleBatch, concat_samples
from tfpolicy.train.collection import (
    STATE_IN,
    STATE_OUT,
    ActingHistory,
    collection_for,
)
from tfpolicy.train.environments import Environments, FinalObservations, Step
from tfpolicy.train.episodes import Episode, EpisodeTracker
from tfpolicy.train.fragments import Block, Recorder, fragments_of
from tfpolicy.train.replay import ActionLog

Array = np.ndarray

# Where the environment's actions are recorded if they are not the policy's own.
_ENV_ACTIONS = "env_actions"


class Rollout:
    """Samples with a policy in N sub-environments; episodes go on from one call to the next.

    Columns: `obs`, `actions` (the policy's own), `rewards`, `terminateds`, `truncateds`, `eps_id`,
    `unroll_id`, `agent_index`, `t`, recurrent states, and of the rest (`new_obs`, `infos`, what
    `compute_actions` returns besides actions, shifted views) those the policy has view requirements
    for. No fragment crosses the border of an episode, and `new_obs` of an episode's last row is
    what the environment returned last.

    Args:
        policy: Acts and postprocesses.
        environments: Where it acts; reset here.
        callbacks: Told of episodes and fragments.

    Raises:
        ValueError: The environments' spaces are not those of the policy.
    """

    def __init__(
        self,
        policy: Policy,
        environments: Environments,
        callbacks: DefaultCallbacks | None = None,
    ):
        check_spaces(policy, environments.observation_space, environments.action_space)
        self.policy = policy
        self.environments = environments
        self._callbacks = callbacks or DefaultCallbacks()
        self._to_env = env_action_transform(policy)
        self._collection = collection_for(policy.view_requirements)
        # Fragments are only cut where somebody looks at them.
        self._takes_blocks = not self._collection.late and (
            type(self._callbacks).on_postprocess_trajectory
            is DefaultCallbacks.on_postprocess_trajectory
        )
        wanted = self._collection.columns
        # Acting knows what to act on where a step is a reset; a block does not.
        if self._takes_blocks and environments.autoreset_mode is not AutoresetMode.NEXT_STEP:
            looked_at = {view.data_col or name for name, view in self._collection.past.items()}
            wanted -= set(policy.block_columns) - looked_at
        self._extras = tuple(name for name in ACTED_COLUMNS if name in wanted)
        n = environments.num_envs
        self._history = ActingHistory(self._collection, n) if self._collection.past else None
        self._episodes = EpisodeTracker(n, self._callbacks)
        self._log = ActionLog(environments.action_space, n) if environments.replayable else None
        self._next_unroll_id = 0
        self._restart()

    def sample(self, num_steps: int) -> SampleBatch:
        """Takes `num_steps` steps in every sub-environment; returns all transitions, postprocessed.

        Rows of one sub-environment follow each other, and so do those of one episode.
        """
        block = self.sample_block(num_steps)
        added = self.policy.postprocess_block(block.columns) if self._takes_blocks else None
        if added is not None:
            block = Block({**block.columns, **added}, block.valid)
        rows = block.rows(self._next_unroll_id)
        if not rows.count:  # Every step was a reset.
            return SampleBatch()
        self._next_unroll_id = int(rows[SampleBatch.UNROLL_ID][-1]) + 1
        return self._postprocessed(rows) if added is None else rows

    def sample_block(self, num_steps: int) -> Block:
        """Takes `num_steps` steps in every sub-environment; returns them as they came, [T, N]."""
        record = Recorder(num_steps)
        valid = np.ones((num_steps, self.environments.num_envs), np.bool_)
        finals: list[tuple[int, FinalObservations]] = []
        for t in range(num_steps):
            step = self._step(t, record)
            if step.valid is not None:
                valid[t] = step.valid
            if step.final is not None:
                finals.append((t, step.final))
        columns = record.columns
        env_actions = columns.pop(_ENV_ACTIONS, columns[SampleBatch.ACTIONS])
        if self._log is not None:
            self._log.extend(env_actions, self._episodes.t)
        for name in self._collection.next_obs:
            columns[name] = self._next_obs(columns[SampleBatch.OBS], finals)
        return Block(columns, valid)

    def pop_ended(self) -> list[Episode]:
        """The episodes that ended since the last call, in the order of their ends."""
        return self._episodes.pop_ended()

    def get_state(self) -> dict[str, Any]:
        """Arrays and plain values from which `set_state` goes on with the running episodes."""
        obs_space = self.environments.observation_space
        return {
            "next_unroll_id": self._next_unroll_id,
            "episode_numbers": self.environments.episodes.copy(),
            "episodes": self._episodes.get_state(),
            "recurrent": [np.array(state) for state in self._recurrent],
            "obs": [np.array(leaf) for leaf in spaces.flatten(obs_space, self._obs)],
            "history": None if self._history is None else self._history.get_state(),
            "actions": None if self._log is None else self._log.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> bool:
        """Goes on where `get_state` was called.

        The environments are brought back by their seeds and actions. Where that is not possible,
        new episodes begin everywhere, with a warning.

        Returns:
            Whether the running episodes go on.
        """
        self._next_unroll_id = state["next_unroll_id"]
        self._episodes.set_state(state["episodes"])
        self.environments.episodes[:] = state["episode_numbers"]
        problem = self._replay(state)
        if problem:
            warnings.warn(
                f"Environments start afresh, running episodes are given up: {problem}.",
                stacklevel=2,
            )
            self.environments.episodes[:] = state["episode_numbers"]
            self._restart()
            return False
        self._recurrent = [np.array(s) for s in state["recurrent"]]
        if self._history is not None:
            self._history.set_state(state["history"])
        return True

    def _replay(self, state: Mapping[str, Any]) -> str | None:
        """Brings back the environments; returns why that did not work, or `None`."""
        if self._log is None or state["actions"] is None:
            return "their vector environment cannot be seeded episode by episode"
        self._log.set_state(state["actions"])
        obs = self.environments.replay(self._log.running())
        if obs is None:
            return "an episode ended early although it was given the same seed and actions"
        self._obs = self._checked(obs)
        leaves = spaces.flatten(self.environments.observation_space, self._obs)
        if not all(map(_equal, leaves, state["obs"])):
            return "their state is no function of seed and actions"
        return None

    def _restart(self) -> None:
        """Begins new episodes everywhere."""
        n = self.environments.num_envs
        self._obs = self._checked(self.environments.reset())
        # Where the next step is a reset: which episodes have ended, what was acted on last.
        self._before_end: tuple[Array, Column] | None = None
        self._recurrent = [np.stack([state] * n) for state in self.policy.get_initial_state()]
        if self._log is not None:
            self._log.clear()
        if self._history is not None:
            self._history.clear()
        self._episodes.begin(np.ones(n, np.bool_))

    def _step(self, t: int, record: Recorder) -> Step:
        """Acts once, records what was seen, done and returned, and moves on."""
        episodes = self._episodes
        record.put(t, SampleBatch.OBS, self._obs)
        record.put(t, SampleBatch.EPS_ID, episodes.eps_id)
        record.put(t, SampleBatch.T, episodes.t)
        actions, acted = self._act(t, record)
        env_actions = actions
        if self._to_env is not None:
            env_actions = self._to_env(actions)
            record.put(t, _ENV_ACTIONS, env_actions)
        step = self.environments.step(env_actions)
        if step.ended is not None and step.started is not step.ended:
            acted_on = map_column(lambda column: column[t].copy(), record.columns[SampleBatch.OBS])
            self._before_end = step.ended, acted_on
        acted[SampleBatch.ACTIONS] = actions
        acted[SampleBatch.REWARDS] = np.asarray(step.rewards, np.float32)
        acted[SampleBatch.TERMINATEDS] = np.asarray(step.terminateds, np.bool_)
        acted[SampleBatch.TRUNCATEDS] = np.asarray(step.truncateds, np.bool_)
        if SampleBatch.INFOS in self._collection.columns:
            acted[SampleBatch.INFOS] = step.info_rows()
        for name, rows in acted.items():
            record.put(t, name, rows)
        self._advance(step, acted)
        return step

    def _act(self, t: int, record: Recorder) -> tuple[Column, dict[str, Column]]:
        """Returns the policy's actions and the columns that acting gives and the policy wants."""
        columns = {f"{STATE_IN}{k}": state for k, state in enumerate(self._recurrent)}
        views: dict[str, Column] = {}
        if self._history is not None:
            seen = self._history.before(self._obs)
            for name in self._collection.past:
                record.put(t, name, seen[name])
            views = {name: seen[name] for name in self._collection.acting}
        actions, self._recurrent, extras = self.policy.compute_actions(
            self._obs_to_act_on(),
            self._recurrent or None,
            extra_fetches=self._extras,
            **views,
        )
        wanted = self._collection.columns
        columns.update((name, rows) for name, rows in extras.items() if name in wanted)
        for k, state in enumerate(self._recurrent):
            if f"{STATE_OUT}{k}" in wanted:
                columns[f"{STATE_OUT}{k}"] = state
        return actions, columns

    def _obs_to_act_on(self) -> Column:
        """The present observations; where an episode has ended, the one before its last.

        What is done there counts for nothing, as the next step is a reset, but a policy need not be
        able to act on the end of an episode: it may be that no action is legal.
        """
        if self._before_end is None:
            return self._obs
        ended, acted_on = self._before_end
        self._before_end = None

        def replace(now: Array, before: Array) -> Array:
            rows = now.copy()
            rows[ended] = before[ended]
            return rows

        return map_column(replace, self._obs, acted_on)

    def _advance(self, step: Step, acted: Mapping[str, Column]) -> None:
        """Makes the step's observation the present one; begins and ends episodes."""
        self._obs = self._checked(step.obs)
        self._episodes.count(step.rewards, step.ended, step.valid)
        if self._history is not None:
            self._history.after(acted, step.started)
        if step.started is not None:
            self._episodes.begin(step.started)
            for k, initial in enumerate(self.policy.get_initial_state()):
                self._recurrent[k] = np.array(self._recurrent[k])
                self._recurrent[k][step.started] = initial

    def _checked(self, obs: Any) -> Column:
        """The observations [N, ...] with the dtypes of their space, in its structure."""
        space = self.environments.observation_space
        leaves = spaces.batch_observations(space, obs)
        return leaves[0] if space.shape is not None else spaces.unflatten(space, leaves)

    def _next_obs(self, obs: Column, finals: list[tuple[int, FinalObservations]]) -> Column:
        """What followed each observation [T, N, ...]: the next, or the last of the episode."""
        space = self.environments.observation_space
        leaves = []
        present = spaces.flatten(space, self._obs)
        for k, column in enumerate(spaces.flatten(space, obs)):
            shifted = np.concatenate([column[1:], present[k][None]])
            for t, final in finals:
                shifted[t, final.env_indices] = final.leaves[k]
            leaves.append(shifted)
        return spaces.unflatten(space, leaves)

    def _postprocessed(self, rows: SampleBatch) -> SampleBatch:
        """Lets the policy postprocess fragment by fragment."""
        episodes = self._episodes.known()
        batches = []
        for fragment in fragments_of(rows, self._collection.late):
            # Postprocessing may add columns to the batch it is given.
            original = SampleBatch(fragment)
            episode = episodes[int(fragment[SampleBatch.EPS_ID][0])]
            batch = self.policy.postprocess_trajectory(fragment, None, episode)
            self._callbacks.on_postprocess_trajectory(
                policy=self.policy,
                episode=episode,
                postprocessed_batch=batch,
                original_batch=original,
            )
            batches.append(batch)
        return concat_samples(batches)


def check_spaces(policy: Any, observation_space: Space, action_space: Space) -> None:
    """Refuses to let a policy act in an environment with other spaces than its own.

    Raises:
        ValueError: A space differs.
    """
    for name, expected, came in (
        ("observation_space", policy.observation_space, observation_space),
        ("action_space", policy.action_space, action_space),
    ):
        if expected != came:
            raise ValueError(f"The policy's `{name}` is {expected}, the environment's is {came}.")


def env_action_transform(policy: Policy) -> Callable[[Column], Column] | None:
    """What makes the environment's actions of the policy's own; `None` if they are the same."""
    space = policy.action_space
    if not any(isinstance(leaf, Box) for leaf in spaces.leaf_spaces(space, "actions").values()):
        return None
    return spaces.environment_transform(
        space,
        unsquash=policy.config.get("normalize_actions", False),
        clip=policy.config.get("clip_actions", False),
    )


def _equal(left: Array, right: Array) -> bool:
    return np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
