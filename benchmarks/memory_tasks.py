"""Two tasks that need memory, with networks that have one and one that has none.

Cart-pole without velocities can be balanced only by who remembers where the pole was. In the other
task a symbol is shown at each step, and the one of some steps ago is to be named: without memory
that is guessing.

Prints a Markdown table and writes it to `benchmarks/memory_tasks.md`. A
task is solved when the mean return of the last 100 episodes is at least 90 % of what is possible.

    python benchmarks/memory_tasks.py
    python benchmarks/memory_tasks.py --tasks repeat --networks lstm --seeds 0 1
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tfpolicy.train.run import Run, RunSpec, Stop

TABLE = Path(__file__).with_name("memory_tasks.md")
SOLVED = 0.9


class PositionsOnly(gym.ObservationWrapper):
    """Cart-pole that shows where cart and pole are, but not how fast they move.

    Both in units of where an episode ends.
    """

    def __init__(self):
        env = gym.make("CartPole-v1").unwrapped
        super().__init__(env)
        self._limits = np.float32([env.x_threshold, env.theta_threshold_radians])
        self.observation_space = gym.spaces.Box(-2.0, 2.0, (2,))

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Leaves out the velocities."""
        return observation[::2] / self._limits


class RepeatEarlier(gym.Env):
    """Shows a random symbol at each step; naming the one of `delay` steps ago is worth 1."""

    def __init__(self, num_symbols: int, delay: int, length: int):
        self.observation_space = gym.spaces.Discrete(num_symbols)
        self.action_space = gym.spaces.Discrete(num_symbols)
        self._delay, self._length = delay, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Draws the symbols of an episode."""
        super().reset(seed=seed)
        self._symbols = self.np_random.integers(self.observation_space.n, size=self._length + 1)
        self._step = 0
        return self._symbols[0], {}

    def step(self, action: int):
        """Compares the action with the symbol that is asked for."""
        asked = self._step - self._delay
        reward = float(asked >= 0 and action == self._symbols[asked])
        self._step += 1
        return self._symbols[self._step], reward, self._step == self._length, False, {}


@dataclasses.dataclass(frozen=True)
class Task:
    """What is to be learned, within how many steps, and what return is possible."""

    env: str
    best: float
    limit: int
    config: Mapping[str, Any]


SYMBOLS, DELAY, LENGTH = 3, 4, 40
gym.register("PositionsOnly-v0", PositionsOnly, max_episode_steps=500)
gym.register(
    "RepeatEarlier-v0",
    RepeatEarlier,
    kwargs={"num_symbols": SYMBOLS, "delay": DELAY, "length": LENGTH},
)

TASKS = {
    "cartpole": Task(
        "PositionsOnly-v0",
        500.0,
        600_000,
        {
            "train_batch_size": 4096,
            "rollout_fragment_length": 256,
            "sgd_minibatch_size": 512,
            "num_sgd_iter": 10,
            "lr_schedule": [[0, 1e-3], [400_000, 1e-4]],
            "gamma": 0.99,
            "lambda": 0.9,
            # Values are near 100: they would take the greater part of the clipped gradient.
            "vf_loss_coeff": 0.01,
        },
    ),
    "repeat": Task(
        "RepeatEarlier-v0",
        float(LENGTH - DELAY),
        200_000,
        {
            "train_batch_size": 2048,
            "rollout_fragment_length": 128,
            "sgd_minibatch_size": 256,
            "num_sgd_iter": 6,
            "lr": 1e-3,
            # Only the action of the present step matters to its reward.
            "gamma": 0.5,
            "lambda": 0.5,
        },
    ),
}
_SMALL_NETWORK = {"fcnet_hiddens": [64], "max_seq_len": 20}
NETWORKS = {
    "fully connected": {"fcnet_hiddens": [64, 64]},
    "lstm": {**_SMALL_NETWORK, "use_lstm": True, "lstm_cell_size": 64},
    "gru": {**_SMALL_NETWORK, "use_gru": True, "lstm_cell_size": 64},
    "attention": {
        **_SMALL_NETWORK,
        "use_attention": True,
        "attention_dim": 32,
        "attention_num_heads": 2,
        "attention_head_dim": 16,
        "attention_memory_inference": 10,
        "attention_init_gru_gate_bias": 0.0,
    },
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    timesteps: int
    mean: float


def run(task: Task, network: Mapping[str, Any], seed: int, limit: int) -> Outcome:
    config = {**task.config, "model": network}
    spec = RunSpec(task.env, num_envs=16, seed=seed, config=config)
    with tempfile.TemporaryDirectory() as directory:
        training = Run.start(spec, Path(directory, "run"), Stop(limit, SOLVED * task.best))
        try:
            if training.train() is None:
                sys.exit("Interrupted.")
            mean = training.trainer.statistics.summary()["episode_return_mean"]
            timesteps = training.trainer.timesteps_total
        finally:
            training.close()
    return Outcome(timesteps, mean)


def row(task: Task, network: str, outcomes: Sequence[Outcome]) -> str:
    solved = [outcome.mean >= SOLVED * task.best for outcome in outcomes]
    returns = ", ".join(f"{outcome.mean:.1f}" for outcome in outcomes)
    steps = ", ".join(f"{outcome.timesteps:,}" for outcome in outcomes)
    return (
        f"| {task.env} | {network} | {task.best:g} | {returns} | {steps} "
        f"| {sum(solved)} of {len(solved)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--limit", type=int, help="steps of each run, if not the task's")
    arguments = parser.parse_args()
    lines = [
        "| Task | Network | Possible return | Mean return | Steps | Solved |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in arguments.tasks:
        task = TASKS[name]
        for network in arguments.networks:
            limit = arguments.limit or task.limit
            outcomes = [run(task, NETWORKS[network], seed, limit) for seed in arguments.seeds]
            lines.append(row(task, network, outcomes))
            print("\n".join(lines), flush=True)
    TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
