"""The previous action and reward as inputs of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import tensorflow as tf

from tfpolicy.preprocessing import flatten_observation, num_features


class PreviousStep:
    """Encodes `prev_actions` and `prev_rewards`; both are zeros before the first step.

    Args:
        action_space: The policy's own.
        action: Whether the action is an input: discrete parts one-hot, floats as they are.
        reward: Whether the reward is one.
    """

    def __init__(self, action_space: gym.Space, action: bool, reward: bool):
        self._action_space = action_space
        self._action, self._reward = action, reward
        self.width = (num_features(action_space) if action else 0) + (1 if reward else 0)

    def tensors(self, columns: Mapping[str, Any]) -> list[tf.Tensor]:
        """What is used of them, [B, ...] each, `width` features in all."""
        tensors = []
        if self._action:
            tensors.append(flatten_observation(self._action_space, columns["prev_actions"]))
        if self._reward:
            tensors.append(columns["prev_rewards"][:, None])
        return tensors
