"""Exploration that does not ask the policy."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfpolicy.distributions import Distribution
from tfpolicy.exploration.base import Exploration
from tfpolicy.exploration.uniform import uniform_actions


class Random(Exploration):
    """Uniform actions at all times: the baseline, or data that no policy has biased.

    Masked choices are left out. Float boxes are sampled as by Gymnasium: uniformly between two
    bounds, from an exponential distribution beyond one, from a standard normal one without any.
    """

    def actions(
        self, distribution: Distribution, scalars: dict[str, tf.Tensor], seed: tf.Tensor
    ) -> tuple[Any, tf.Tensor]:
        """See base class."""
        return uniform_actions(distribution, self.action_space, seed)
