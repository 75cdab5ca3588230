"""Exploration by noise around a deterministic action."""

from __future__ import annotations

import functools
import math
from typing import Any

import gymnasium as gym
import tensorflow as tf

from tfpolicy.distributions import ActionDistribution, Distribution, SimplexFamily
from tfpolicy.exploration.base import by_parts, check_count, sampled_actions
from tfpolicy.exploration.random_start import RandomStart
from tfpolicy.schedules import Piecewise
from tfpolicy.spaces import is_float_box


class GaussianNoise(RandomStart):
    """The most likely action plus normal noise of standard deviation scale · `stddev`.

    After `random_timesteps` of uniform actions, the scale goes linearly from `initial_scale` to
    `final_scale` in `scale_timesteps`, and stays there. Actions are not clipped to the bounds here,
    so that their log-probability is true; what goes to the environment is clipped later. At scale 0
    the log-probability is 0. In a nested space all float boxes get noise, and other leaves are
    sampled from their distribution.

    Args:
        action_space: The policy's own action space, with a float `Box` in it.
        action_dist: Makes the distribution over it from the outputs of the model.
        random_timesteps: At this timestep, uniform actions end.
        stddev: Standard deviation at scale 1, positive.
        initial_scale: Scale of the noise at first, not negative.
        final_scale: Scale of the noise in the end, not negative.
        scale_timesteps: How long it takes the scale to reach its end.

    Raises:
        ValueError: The space has no float `Box` (one that stands for a simplex is none), or an
            option is out of range.
    """

    def __init__(
        self,
        action_space: gym.Space,
        action_dist: ActionDistribution,
        random_timesteps: int = 0,
        stddev: float = 0.1,
        initial_scale: float = 1.0,
        final_scale: float = 0.02,
        scale_timesteps: int = 10000,
    ) -> None:
        super().__init__(action_space, action_dist, random_timesteps)
        if not any(_takes_noise(part.space, part.family) for part in action_dist.parts):
            raise ValueError(f"GaussianNoise: expected a float Box of actions, got {action_space}.")
        if not 0 < stddev < math.inf:
            raise ValueError(f"`stddev`: expected a positive number, got {stddev!r}.")
        for name, scale in (("initial_scale", initial_scale), ("final_scale", final_scale)):
            if not 0 <= scale < math.inf:
                raise ValueError(f"`{name}`: expected a number >= 0, got {scale!r}.")
        end = self.random_timesteps + check_count("scale_timesteps", scale_timesteps, at_least=1)
        self.stddev = float(stddev)
        self.scale_schedule = Piecewise(
            ((self.random_timesteps, initial_scale), (end, final_scale))
        )

    def scalars(self, timestep: int) -> dict[str, float]:
        """`scale` of the noise at the timestep, and what a random start needs."""
        return {**super().scalars(timestep), "scale": self.scale_schedule.value(timestep)}

    def later_actions(
        self, distribution: Distribution, scalars: dict[str, tf.Tensor], seed: tf.Tensor
    ) -> tuple[Any, tf.Tensor]:
        """Builds the ops for a = mode + σ ε with log π(a) = -Σ_i (ε_i² / 2 + log σ + ½ log 2π)."""
        std = self.stddev * scalars["scale"]
        return by_parts(distribution, seed, functools.partial(_noisy_actions, std))


def _takes_noise(space: gym.Space, family: type[Distribution]) -> bool:
    # Noise would carry an action out of a simplex.
    return is_float_box(space) and not issubclass(family, SimplexFamily)


def _noisy_actions(
    std: tf.Tensor, part: Distribution, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    if not _takes_noise(part.space, type(part)):
        return sampled_actions(part, seed)
    mode = part.mode()
    noise = tf.random.stateless_normal(tf.shape(mode), seed)
    log_densities = -0.5 * tf.square(noise) - tf.math.log(std) - 0.5 * math.log(2 * math.pi)
    logp = tf.reduce_sum(log_densities, axis=list(range(1, mode.shape.rank)))
    return mode + std * noise, tf.where(std > 0.0, logp, 0.0)
