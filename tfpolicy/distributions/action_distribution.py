"""Recipes: how the outputs of a model become a distribution over one action space."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import gymnasium as gym
import tensorflow as tf

from tfpolicy.distributions.base import Distribution, Family


class ActionDistribution(abc.ABC):
    """Called with the outputs of a model, it gives the distribution over a space.

    Attributes:
        space: The policy's own action space.
    """

    space: gym.Space

    @property
    @abc.abstractmethod
    def num_inputs(self) -> int:
        """Number of values per row that the model must produce."""

    @property
    @abc.abstractmethod
    def parts(self) -> tuple[BoundFamily, ...]:
        """What makes each of `Distribution.parts`."""

    @abc.abstractmethod
    def __call__(self, inputs: tf.Tensor) -> Distribution:
        """The distribution with parameters `inputs` [B, num_inputs]."""


@dataclasses.dataclass(frozen=True)
class BoundFamily(ActionDistribution):
    """A family with its options, bound to a space.

    Attributes:
        family: The class of the distribution.
        space: What the family describes the actions of.
        options: Arguments of the family's constructor beside inputs and space, by name.
    """

    family: type[Family[Any]]
    space: gym.Space
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def num_inputs(self) -> int:
        """See base class."""
        return self.family.num_inputs(self.space)

    @property
    def parts(self) -> tuple[BoundFamily, ...]:
        """This one alone."""
        return (self,)

    def __call__(self, inputs: tf.Tensor) -> Distribution:
        """See base class."""
        return self.family(inputs, self.space, **dict(self.options))
