"""What every way of exploring can do."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import tensorflow as tf

from tfpolicy.distributions import ActionDistribution, Distribution, split_seed
from tfpolicy.spaces import unflatten

# Builds the actions [B, ...] of one part of a distribution and their log-probabilities [B].
PartActions = Callable[[Distribution, tf.Tensor], tuple[Any, tf.Tensor]]


class Exploration(abc.ABC):
    """How actions are chosen when a policy explores.

    Whether it explores is not asked here: the ops of `actions` are only fetched when it does. What
    changes in the course of training depends on the timestep alone and is fed as scalars, so that
    there is nothing to restore but the policy's timestep.

    Args:
        action_space: The policy's own action space.
        action_dist: Makes the distribution over it from the outputs of the model.
    """

    def __init__(self, action_space: gym.Space, action_dist: ActionDistribution) -> None:
        self.action_space = action_space
        self.action_dist = action_dist

    def scalars(self, timestep: int) -> dict[str, float]:
        """Values that `actions` needs at a timestep; always the same names, none by default."""
        return {}

    @abc.abstractmethod
    def actions(
        self, distribution: Distribution, scalars: dict[str, tf.Tensor], seed: tf.Tensor
    ) -> tuple[Any, tf.Tensor]:
        """Builds the ops that choose actions.

        Args:
            distribution: The policy's distribution for [B] observations.
            scalars: [] float32 tensors, named as in `scalars(timestep)`.
            seed: [2] int32, which alone decides all draws.

        Returns:
            Actions [B, ...] in the structure and dtypes of `distribution.sample`, and the
            log-probability [B] float32 with which this exploration chose them.
        """

    def get_state(self, timestep: int) -> dict[str, Any]:
        """Plain values that tell how the policy explores at a timestep."""
        return {"timestep": timestep, **self.scalars(timestep)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes back what `get_state` returned.

        There is nothing to do unless a subclass holds more than its options: scalars follow from
        the timestep, which the policy restores.
        """


def check_count(name: str, value: int, at_least: int = 0) -> int:
    """Returns a number of timesteps as an integer.

    Raises:
        ValueError: It is not whole, or less than `at_least`.
    """
    # 1e6 is how people write a million timesteps.
    if isinstance(value, bool) or int(value) != value or value < at_least:
        raise ValueError(f"`{name}`: expected a whole number >= {at_least}, got {value!r}.")
    return int(value)


def by_parts(
    distribution: Distribution, seed: tf.Tensor, part_actions: PartActions
) -> tuple[Any, tf.Tensor]:
    """Chooses the actions of every part of a distribution for itself.

    Args:
        distribution: The policy's distribution for [B] observations.
        seed: [2] int32; every part gets a seed of its own, made of it.
        part_actions: Called with each part and its seed.

    Returns:
        Actions in the structure of `distribution.sample`, and their log-probabilities [B].
    """
    parts = distribution.parts
    if parts == (distribution,):
        return part_actions(distribution, seed)
    chosen = map(part_actions, parts, split_seed(seed, len(parts)))
    actions, logps = zip(*chosen, strict=True)
    return unflatten(distribution.space, actions), tf.add_n(list(logps))


def sampled_actions(part: Distribution, seed: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Samples actions from a distribution itself."""
    actions = part.sample(seed)
    return actions, part.log_prob(actions)


def select(condition: tf.Tensor, actions: Any, otherwise: Any) -> Any:
    """Returns nested `actions` where a [] or [B] condition holds, and `otherwise` elsewhere."""

    def select_leaf(action: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        if condition.shape.rank == 0:
            return tf.where(condition, action, other)
        return tf.where(tf.reshape(condition, [-1] + [1] * (action.shape.rank - 1)), action, other)

    return tf.nest.map_structure(select_leaf, actions, otherwise)
