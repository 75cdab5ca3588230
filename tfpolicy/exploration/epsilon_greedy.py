"""Exploration by a uniform choice now and then."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions import ActionDistribution, Distribution, split_seed
from tfpolicy.exploration.base import Exploration, by_parts, check_count, sampled_actions, select
from tfpolicy.exploration.uniform import CHOICE_FAMILIES, uniform_choices
from tfpolicy.schedules import Piecewise, Schedule, make_schedule


class EpsilonGreedy(Exploration):
    """The most likely action, or with probability ε a uniform one that is not masked.

    An action of several choices is greedy or uniform as a whole. In a nested space every leaf is so
    for itself, and leaves that are no choices are sampled from their distribution. ε stays at
    `initial_epsilon` for `warmup_timesteps`, goes linearly to `final_epsilon` in
    `epsilon_timesteps`, and stays there.

    Args:
        action_space: The policy's own action space.
        action_dist: Makes the distribution over it from the outputs of the model.
        initial_epsilon: ε at first, in [0, 1].
        final_epsilon: ε in the end, in [0, 1].
        warmup_timesteps: How long ε stays as it is.
        epsilon_timesteps: How long it takes ε to reach its end.
        epsilon_schedule: A schedule for ε (see `make_schedule`) instead of all this.

    Raises:
        ValueError: The actions are not choices by logits, or an option is out of range.
    """

    def __init__(
        self,
        action_space: gym.Space,
        action_dist: ActionDistribution,
        initial_epsilon: float = 1.0,
        final_epsilon: float = 0.02,
        warmup_timesteps: int = 0,
        epsilon_timesteps: int = 10000,
        epsilon_schedule: Any = None,
    ) -> None:
        super().__init__(action_space, action_dist)
        families = [part.family for part in action_dist.parts]
        if not any(issubclass(family, CHOICE_FAMILIES) for family in families):
            raise ValueError(
                f"EpsilonGreedy: expected one of the distributions {_names(CHOICE_FAMILIES)} over "
                f"choices, got {_names(families)} over {action_space}."
            )
        if epsilon_schedule is None:
            start = check_count("warmup_timesteps", warmup_timesteps)
            end = start + check_count("epsilon_timesteps", epsilon_timesteps, at_least=1)
            initial = _as_probability("initial_epsilon", initial_epsilon)
            final = _as_probability("final_epsilon", final_epsilon)
            self.epsilon_schedule: Schedule = Piecewise(((start, initial), (end, final)))
        else:
            self.epsilon_schedule = make_schedule(epsilon_schedule)

    def scalars(self, timestep: int) -> dict[str, float]:
        """`epsilon` at the timestep.

        Raises:
            ValueError: The schedule left [0, 1].
        """
        epsilon = self.epsilon_schedule.value(timestep)
        return {"epsilon": _as_probability("epsilon_schedule", epsilon)}

    def actions(
        self, distribution: Distribution, scalars: dict[str, tf.Tensor], seed: tf.Tensor
    ) -> tuple[Any, tf.Tensor]:
        """Builds the ops that choose actions: π(a) = (1 - ε) [a is greedy] + ε u(a)."""
        epsilon = scalars["epsilon"]
        return by_parts(distribution, seed, functools.partial(_mixed_actions, epsilon))


def _mixed_actions(
    epsilon: tf.Tensor, part: Distribution, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    if not isinstance(part, CHOICE_FAMILIES):
        return sampled_actions(part, seed)
    coin_seed, action_seed = split_seed(seed, 2)
    greedy, uniform = part.mode(), uniform_choices(part)
    coin = tf.random.stateless_uniform(tf.shape(part.inputs)[:1], coin_seed)
    actions = select(coin < epsilon, uniform.sample(action_seed), greedy)

    axes = list(range(1, actions.shape.rank))
    is_greedy = tf.reduce_all(tf.equal(actions, greedy), axis=axes)
    log_greedy = tf.where(is_greedy, tf.math.log1p(-epsilon), -np.inf)
    # In logarithms: u(a) of many choices is too small for a float.
    log_uniform = tf.math.log(epsilon) + uniform.log_prob(actions)
    return actions, tf.reduce_logsumexp(tf.stack([log_greedy, log_uniform]), axis=0)


def _names(families: Iterable[type]) -> str:
    return ", ".join(family.__name__ for family in families)


def _as_probability(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"`{name}`: expected values in [0, 1], got {value!r}.")
    return float(value)
