"""How many steps PPO needs to solve classic control tasks, seed by seed.

Prints a Markdown table and writes it to `benchmarks/learning_curves.md`, which the README quotes.
Each run ends when the mean return of the last 100 episodes reaches the task's, or at its limit.

    python benchmarks/learning_curves.py
    python benchmarks/learning_curves.py --only cartpole --seeds 0 1
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfpolicy.train.run import Run, RunSpec, Stop

TABLE = Path(__file__).with_name("learning_curves.md")


@dataclasses.dataclass(frozen=True)
class Task:
    """What is to be learned, how well, and with which settings."""

    env: str
    target: float
    limit: int
    config: Mapping[str, Any]
    num_envs: int = 8


_SMALL = {
    "train_batch_size": 8 * 256,
    "rollout_fragment_length": 256,
    "sgd_minibatch_size": 128,
    "num_sgd_iter": 10,
    "lr": 3e-4,
    "gamma": 0.99,
    "lambda": 0.95,
    "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
}

TASKS = {
    "cartpole": Task("CartPole-v1", 475.0, 150_000, _SMALL),
    "acrobot": Task("Acrobot-v1", -100.0, 400_000, {**_SMALL, "entropy_coeff": 0.01}),
    "pendulum": Task("Pendulum-v1", -250.0, 400_000, {**_SMALL, "lr": 1e-3, "gamma": 0.9}),
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    seed: int
    timesteps: int
    mean: float
    seconds: float
    solved: bool


def run(task: Task, seed: int) -> Outcome:
    spec = RunSpec(task.env, num_envs=task.num_envs, seed=seed, config=task.config)
    stop = Stop(task.limit, task.target)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        training = Run.start(spec, Path(directory, "run"), stop)
        try:
            if training.train() is None:
                sys.exit("Interrupted.")
            mean = training.trainer.statistics.summary()["episode_return_mean"]
            timesteps = training.trainer.timesteps_total
        finally:
            training.close()
    return Outcome(seed, timesteps, mean, time.perf_counter() - begin, mean >= task.target)


def row(task: Task, outcomes: Sequence[Outcome]) -> str:
    steps = [outcome.timesteps if outcome.solved else float("inf") for outcome in outcomes]
    shown = ", ".join(f"{s:,.0f}" if s < float("inf") else "not solved" for s in steps)
    seconds = statistics.median(outcome.seconds for outcome in outcomes)
    seeds = ", ".join(str(outcome.seed) for outcome in outcomes)
    return (
        f"| {task.env} | {task.target:g} | {seeds} | {shown} "
        f"| {statistics.median(steps):,.0f} | {seconds:.0f} s |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    lines = [
        "| Environment | Mean return | Seeds | Steps needed | Median | Time, median |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in arguments.only:
        outcomes = [run(TASKS[name], seed) for seed in arguments.seeds]
        lines.append(row(TASKS[name], outcomes))
        print("\n".join(lines), flush=True)
    TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
