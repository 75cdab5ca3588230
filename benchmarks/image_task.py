"""Cart-pole from what is drawn on the screen: a convolutional policy beside a random one.

The picture of cart and pole is scaled down to 42 x 42, in gray; the policy sees the last two of
them. Prints a Markdown table and writes it to `benchmarks/image_task.md`. A run ends when the mean
return of the last 100 episodes reaches the target, or after ten minutes.

    python benchmarks/image_task.py
    python benchmarks/image_task.py --seeds 0 --minutes 2
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tfpolicy.train.run import RunSpec

TABLE = Path(__file__).with_name("image_task.md")
TARGET = 100.0
SIDE = 42
CONFIG = {
    "train_batch_size": 1024,
    "rollout_fragment_length": 128,
    "sgd_minibatch_size": 128,
    "num_sgd_iter": 4,
    "lr": 1e-3,
    "gamma": 0.98,
    "lambda": 0.9,
    "vf_loss_coeff": 0.05,
    "model": {"conv_filters": [[16, 4, 2], [32, 4, 2], [64, 11, 1]], "vf_share_layers": True},
}


class PixelCartPole(gym.Wrapper):
    """Cart-pole whose observation is the last two pictures of it, [42, 42, 2] bytes."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1", render_mode="rgb_array").unwrapped)
        self.observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE, 2), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begins an episode; the picture before the first is the first."""
        _, info = super().reset(seed=seed, options=options)
        self._last = self._picture()
        return np.stack([self._last, self._last], axis=-1), info

    def step(self, action: int):
        """Takes a step and draws what came of it."""
        _, reward, terminated, truncated, info = super().step(action)
        before, self._last = self._last, self._picture()
        return np.stack([before, self._last], axis=-1), reward, terminated, truncated, info

    def _picture(self) -> np.ndarray:
        """The part of the screen with cart and pole: each pixel is the mean of 3 x 14, inverted."""
        drawn = self.env.render()[178 : 178 + 3 * SIDE, 6 : 6 + 14 * SIDE, 2]
        blocks = drawn.reshape(SIDE, 3, SIDE, 14).sum((1, 3), dtype=np.uint32)
        return (255 - blocks // (3 * 14)).astype(np.uint8)


gym.register("PixelCartPole-v0", PixelCartPole, max_episode_steps=500)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    timesteps: int
    mean: float
    seconds: float


def run(seed: int, seconds: float, num_envs: int = 8) -> Outcome:
    trainer = RunSpec(
        "PixelCartPole-v0", num_envs=num_envs, seed=seed, config=CONFIG
    ).make_trainer()
    begin = time.perf_counter()
    try:
        while True:
            result = trainer.train_iteration()
            mean, elapsed = result["episode_return_mean"], time.perf_counter() - begin
            print(f"{trainer.timesteps_total:,} steps, {elapsed:.0f} s: {mean:.1f}", flush=True)
            if mean >= TARGET or elapsed >= seconds:
                return Outcome(trainer.timesteps_total, mean, elapsed)
    finally:
        trainer.close()


def random_return(num_episodes: int = 100) -> float:
    env = gym.make("CartPole-v1")
    env.action_space.seed(0)
    returns = []
    for seed in range(num_episodes):
        env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [
        "| Policy | Mean return of the last 100 episodes | Steps | Time |",
        "| --- | --- | --- | --- |",
        f"| random | {random_return():.1f} | | |",
    ]
    for outcome in outcomes:
        lines.append(
            f"| convolutional PPO | {outcome.mean:.1f} | {outcome.timesteps:,} "
            f"| {outcome.seconds:.0f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    # Pictures are drawn without a screen.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    outcomes = [run(seed, 60 * arguments.minutes) for seed in arguments.seeds]
    print(table(outcomes))
    TABLE.write_text(table(outcomes) + "\n")


if __name__ == "__main__":
    main()
