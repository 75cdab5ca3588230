"""Recipes: how the outputs of a model become a distribution over one action space."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import gymnasium as gym
import tensorflow as tf

from tfpolicy.distributions.base import Distribution, Family
from tfpolicy.spaces import flatten, leaf_spaces


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

    def check_actions(self, actions: Any, name: str) -> None:
        """Checks actions that are to be learned from.

        Args:
            actions: [B, *leaf.shape] arrays, nested as `space`.
            name: What messages call them.

        Raises:
            ValueError: One is outside of the space; the first such row is named.
        """
        if self.parts == (self,):
            self.parts[0].family.check_actions(self.space, actions, name)
            return
        names, values = leaf_spaces(self.space, name), flatten(self.space, actions, name)
        for part, leaf_name, leaf in zip(self.parts, names, values, strict=True):
            part.family.check_actions(part.space, leaf, leaf_name)

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
