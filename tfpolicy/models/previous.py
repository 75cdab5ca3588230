"""Previous actions and rewards as inputs of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.preprocessing import flatten_observation, num_features
from tfpolicy.spaces import Leaf, is_float_box, map_leaves
from tfpolicy.view_requirement import ViewRequirement

_REWARD = gym.spaces.Box(-np.inf, np.inf, (), np.float32)


class PreviousStep:
    """Encodes `prev_actions` and `prev_rewards`; both are zeros before the first step.

    Args:
        action_space: The policy's own.
        action: Whether the action is an input: discrete parts one-hot, floats as they are.
        reward: Whether the reward is one.
    """

    def __init__(self, action_space: gym.Space, action: bool, reward: bool):
        self._spaces = {"prev_actions": action_space} if action else {}
        if reward:
            self._spaces["prev_rewards"] = _REWARD
        self.width = sum(map(num_features, self._spaces.values()))

    def views(self) -> dict[str, ViewRequirement]:
        """What every policy offers needs no view."""
        return {}

    def tensors(self, columns: Mapping[str, Any]) -> list[tf.Tensor]:
        """What is used of them, [B, ...] each, `width` features in all."""
        return [_features(space, columns[name]) for name, space in self._spaces.items()]


class PreviousSteps:
    """Encodes windows of several steps, `prev_n_actions` and `prev_n_rewards`.

    Args:
        action_space: The policy's own.
        num_actions: How many actions back; 0 for none.
        num_rewards: How many rewards back; 0 for none.
    """

    def __init__(self, action_space: gym.Space, num_actions: int, num_rewards: int):
        sizes = {
            "prev_n_actions": ("actions", action_space, num_actions),
            "prev_n_rewards": ("rewards", _REWARD, num_rewards),
        }
        self._sizes = {name: size for name, size in sizes.items() if size[2] > 0}
        self.width = sum(num_features(space) * size for _, space, size in self._sizes.values())

    def views(self) -> dict[str, ViewRequirement]:
        """The windows."""
        return {
            name: ViewRequirement(data_col, space, f"-{size}:-1")
            for name, (data_col, space, size) in self._sizes.items()
        }

    def tensors(self, columns: Mapping[str, Any]) -> list[tf.Tensor]:
        """The windows, each as one vector [B, ...]."""
        tensors = []
        for name, (_, space, size) in self._sizes.items():
            # Each step of a window is a row of its own.
            steps = tf.nest.map_structure(
                lambda leaf: tf.reshape(leaf, [-1, *leaf.shape[2:]]), columns[name]
            )
            width = size * num_features(space)
            tensors.append(tf.reshape(_features(space, steps), [-1, width]))
        return tensors


def _features(space: gym.Space, rows: Any) -> tf.Tensor:
    """Encodes rows as one vector each; floats count as what the environment makes of them.

    It clips actions, so that whoever serves a policy knows no other.
    """

    def clipped(leaf: Leaf, value: tf.Tensor) -> tf.Tensor:
        if not is_float_box(leaf):
            return value
        value = tf.cast(value, tf.float32)
        return tf.clip_by_value(value, leaf.low.astype(np.float32), leaf.high.astype(np.float32))

    return flatten_observation(space, map_leaves(clipped, space, rows))
