"""Exploration by sampling from the policy itself."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfpolicy.distributions import Distribution
from tfpolicy.exploration.base import sampled_actions
from tfpolicy.exploration.random_start import RandomStart


class StochasticSampling(RandomStart):
    """Samples from the policy's own distribution, after `random_timesteps` of uniform actions."""

    def later_actions(
        self, distribution: Distribution, scalars: dict[str, tf.Tensor], seed: tf.Tensor
    ) -> tuple[Any, tf.Tensor]:
        """See base class."""
        return sampled_actions(distribution, seed)
