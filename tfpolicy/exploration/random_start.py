"""A random start, before the exploration proper."""

from __future__ import annotations

import abc
from typing import Any

import gymnasium as gym
import tensorflow as tf

from tfpolicy.distributions import ActionDistribution, Distribution
from tfpolicy.exploration.base import Exploration, check_count, select
from tfpolicy.exploration.uniform import uniform_actions


class RandomStart(Exploration):
    """Uniform actions for the first timesteps, then what `later_actions` of a subclass chooses.

    Args:
        action_space: The policy's own action space.
        action_dist: Makes the distribution over it from the outputs of the model.
        random_timesteps: At this timestep, uniform actions end.
    """

    def __init__(
        self,
        action_space: gym.Space,
        action_dist: ActionDistribution,
        random_timesteps: int = 0,
    ) -> None:
        super().__init__(action_space, action_dist)
        self.random_timesteps = check_count("random_timesteps", random_timesteps)

    def scalars(self, timestep: int) -> dict[str, float]:
        """`starting` is 1 as long as actions are random; without a random start there is none."""
        if self.random_timesteps == 0:
            return {}
        return {"starting": float(timestep < self.random_timesteps)}

    def actions(
        self, distribution: Distribution, scalars: dict[str, tf.Tensor], seed: tf.Tensor
    ) -> tuple[Any, tf.Tensor]:
        """See base class."""
        if self.random_timesteps == 0:
            return self.later_actions(distribution, scalars, seed)
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        later = self.later_actions(distribution, scalars, seeds[0])
        uniform = uniform_actions(distribution, self.action_space, seeds[1])
        return select(scalars["starting"] > 0.5, uniform, later)

    @abc.abstractmethod
    def later_actions(
        self, distribution: Distribution, scalars: dict[str, tf.Tensor], seed: tf.Tensor
    ) -> tuple[Any, tf.Tensor]:
        """Builds the ops that choose actions after the start; otherwise like `actions`."""
