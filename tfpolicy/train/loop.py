"""The training loop: sample a train batch, learn from it, again."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from tfpolicy.checkpoint import read_checkpoint, write_checkpoint
from tfpolicy.files import publish_folder, staged_folder
from tfpolicy.policy import LEARNER_STATS_KEY
from tfpolicy.sample_batch import SampleBatch, concat_samples
from tfpolicy.tf_policy import TFPolicy
from tfpolicy.train.checkpoints import POLICY_FOLDER, TRAINING_FOLDER
from tfpolicy.train.environments import Environments
from tfpolicy.train.episodes import EpisodeStatistics
from tfpolicy.train.rollout import Rollout


class Trainer:
    """Trains a policy in vector environments, one train batch per iteration.

    There is one set of weights, also where environments run in processes of their own: what
    `policy.set_weights` assigns acts from the next step on.

    Args:
        policy: What learns. Its config says how many rows make a train batch
            (`train_batch_size`), in fragments of how many steps (`rollout_fragment_length`; `None`:
            one fragment per sub-environment), and how often the batch is learned from.
        env: Where it acts; closed by `close`.
        seed: What the environments' episodes are drawn by; `None` draws one.

    Attributes:
        iteration: Iterations so far.
        timesteps_total: Transitions sampled so far.
        statistics: Of the episodes that ended.
    """

    def __init__(self, policy: TFPolicy, env: VectorEnv, seed: int | None = None):
        self.policy = policy
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self.iteration = 0
        self.timesteps_total = 0
        self._time_total = 0.0
        self.statistics = EpisodeStatistics()
        self._environments = Environments(env, self.seed)
        self._rollout = Rollout(policy, self._environments, policy.callbacks)

    def train_iteration(self) -> dict[str, Any]:
        """Samples one train batch, learns from it, and tells how it went.

        Returns:
            `training_iteration`, `timesteps_total`, `episodes_total`, `episodes_this_iter`;
            `episode_return_mean`, `_min`, `_max` and `episode_len_mean` over the last 100 episodes
            (NaN before the first has ended); `env_steps_per_second`, `sample_time_s`,
            `learn_time_s`, `time_total_s`; and what `learn_on_buffer` returns, `learner_stats`
            among it. `num_rows_dropped` counts rows that were sampled but not learned from.

        Raises:
            FloatingPointError: The loss was not finite.
        """
        begin = time.perf_counter()
        batch, num_surplus = self._sample_train_batch()
        sampled = time.perf_counter()
        self.policy.load_batch_into_buffer(batch)
        learned = self.policy.learn_on_buffer()
        self.policy.on_train_batch_end(learned[LEARNER_STATS_KEY])
        self.timesteps_total += batch.count + num_surplus
        self.policy.on_global_var_update({"timestep": self.timesteps_total})
        self.iteration += 1
        end = time.perf_counter()
        self._time_total += end - begin
        ended = self._rollout.pop_ended()
        self.statistics.add(ended)
        result = {
            "training_iteration": self.iteration,
            "timesteps_total": self.timesteps_total,
            "episodes_total": self.statistics.total,
            "episodes_this_iter": len(ended),
            **self.statistics.summary(),
            "env_steps_per_second": (batch.count + num_surplus) / (end - begin),
            "sample_time_s": sampled - begin,
            "learn_time_s": end - sampled,
            "time_total_s": self._time_total,
            **learned,
        }
        result["num_rows_dropped"] += num_surplus
        self.policy.callbacks.on_train_result(policy=self.policy, result=result)
        return result

    def save(
        self, directory: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Writes a checkpoint from which training goes on bit for bit.

        The folder appears when it is complete. It holds a checkpoint of the policy, `policy`, and
        what training needs besides, `training`.

        Args:
            directory: A folder that does not exist yet.
            metadata: Plain values that `read_metadata` gives back.

        Raises:
            FileExistsError: There is such a folder already.
        """
        description = {"kind": "trainer", "metadata": dict(metadata or {})}
        with staged_folder(directory) as staged:
            self.policy.save(staged / POLICY_FOLDER)
            write_checkpoint(staged / TRAINING_FOLDER, description, self._get_state())
            publish_folder(staged, Path(directory))

    def restore(self, directory: str | os.PathLike[str]) -> bool:
        """Goes on from a checkpoint.

        Returns:
            Whether running episodes go on, too. If the environments cannot be brought back, they
            start afresh, with a warning.

        Raises:
            FileNotFoundError: There is no such checkpoint.
            ValueError: It is damaged, or of another policy, number of environments or seed.
        """
        _, state = read_checkpoint(Path(directory) / TRAINING_FOLDER)
        self._check_fits(state)
        self.policy.restore(Path(directory) / POLICY_FOLDER)
        self.iteration = state["iteration"]
        self.timesteps_total = state["timesteps_total"]
        self._time_total = state["time_total"]
        self.statistics.set_state(state["statistics"])
        return self._rollout.set_state(state["rollout"])

    def close(self) -> None:
        """Closes the environments and the policy."""
        self._environments.close()
        self.policy.close()

    def _sample_train_batch(self) -> tuple[SampleBatch, int]:
        """Returns exactly `train_batch_size` rows, and how many more were sampled.

        Always the same number of rows, because a jit-compiled update is compiled anew for another.
        The last fragments are shorter where whole ones would give too many rows.
        """
        size = self.policy.config["train_batch_size"]
        num_envs = self._environments.num_envs
        longest = self.policy.config["rollout_fragment_length"] or size
        batches: list[SampleBatch] = []
        missing = size
        while missing > 0:
            # Where resets cost a step, there are fewer transitions than steps: then once more.
            sampled = self._rollout.sample(min(longest, -(-missing // num_envs)))
            if sampled.count:
                batches.append(sampled)
                missing -= sampled.count
        batch = batches[0] if len(batches) == 1 else concat_samples(batches)
        return batch.slice(0, size), -missing

    def _get_state(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "num_envs": self._environments.num_envs,
            "iteration": self.iteration,
            "timesteps_total": self.timesteps_total,
            "time_total": self._time_total,
            "statistics": self.statistics.get_state(),
            "rollout": self._rollout.get_state(),
        }

    def _check_fits(self, state: Mapping[str, Any]) -> None:
        for name, came in (("seed", self.seed), ("num_envs", self._environments.num_envs)):
            if state[name] != came:
                raise ValueError(f"The checkpoint was made with {name}={state[name]}, got {came}.")


def read_metadata(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """What `Trainer.save` was given as `metadata`."""
    return read_checkpoint(Path(directory) / TRAINING_FOLDER)[0]["metadata"]
