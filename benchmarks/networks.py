"""The two networks that are timed, and batches for them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

NETWORKS = {
    "small": (gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2), [64, 64]),
    "large": (
        gym.spaces.Box(-1, 1, (17,), np.float32),
        gym.spaces.Box(-1, 1, (6,), np.float32),
        [256, 256],
    ),
}


def train_batch(
    observation_space: gym.Space, action_space: gym.Space, rows: int
) -> dict[str, np.ndarray]:
    """What PPO learns from, drawn at random."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    if isinstance(action_space, gym.spaces.Discrete):
        actions = rng.integers(0, action_space.n, rows)
        num_inputs = int(action_space.n)
    else:
        actions = normal(rows, *action_space.shape)
        num_inputs = 2 * int(np.prod(action_space.shape))
    return {
        "obs": normal(rows, *observation_space.shape),
        "actions": actions,
        "action_dist_inputs": 0.1 * normal(rows, num_inputs),
        "action_logp": -np.abs(normal(rows)),
        "advantages": normal(rows),
        "value_targets": normal(rows),
    }
