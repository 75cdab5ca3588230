"""Distributions over actions: one family a file, and the choice of a family for a space."""

from __future__ import annotations

import dataclasses
import difflib

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.distributions.base import Distribution
from tfpolicy.distributions.bernoulli import Bernoulli
from tfpolicy.distributions.beta import Beta
from tfpolicy.distributions.categorical import Categorical, MultiCategorical
from tfpolicy.distributions.deterministic import Deterministic
from tfpolicy.distributions.gaussian import DiagGaussian, SquashedGaussian

__all__ = [
    "ActionDistribution",
    "Bernoulli",
    "Beta",
    "Categorical",
    "Deterministic",
    "DiagGaussian",
    "Distribution",
    "FAMILIES",
    "MultiCategorical",
    "SquashedGaussian",
    "distribution_for",
]

FAMILIES: dict[str, type[Distribution]] = {
    "bernoulli": Bernoulli,
    "beta": Beta,
    "categorical": Categorical,
    "deterministic": Deterministic,
    "diag_gaussian": DiagGaussian,
    "multi_categorical": MultiCategorical,
    "squashed_gaussian": SquashedGaussian,
}


@dataclasses.dataclass(frozen=True)
class ActionDistribution:
    """A family bound to a space; called with the outputs of a model, it gives the distribution.

    Attributes:
        family: The class of the distribution.
        space: The policy's own leaf space.
    """

    family: type[Distribution]
    space: gym.Space

    @property
    def num_inputs(self) -> int:
        """Number of values per row that the model must produce."""
        return self.family.num_inputs(self.space)

    def __call__(self, inputs: tf.Tensor) -> Distribution:
        """The distribution with parameters `inputs` [B, num_inputs]."""
        return self.family(inputs, self.space)


def distribution_for(
    space: gym.Space, custom_action_dist: str | type[Distribution] | None = None
) -> ActionDistribution:
    """Chooses the family of distributions for a leaf space.

    Args:
        space: The policy's own leaf space.
        custom_action_dist: Overrules the choice: a name out of `FAMILIES`, or a subclass of
            `Distribution`.

    Raises:
        ValueError: If no family fits `space`, the named one does not, or the name is unknown.
        TypeError: If `custom_action_dist` is neither a name nor a subclass of `Distribution`.
    """
    family = _default_family(space) if custom_action_dist is None else _family(custom_action_dist)
    family.check_space(space)
    return ActionDistribution(family, space)


def _default_family(space: gym.Space) -> type[Distribution]:
    if isinstance(space, gym.spaces.Discrete):
        return Categorical
    if isinstance(space, gym.spaces.MultiDiscrete):
        return MultiCategorical
    if isinstance(space, gym.spaces.MultiBinary):
        return Bernoulli
    if isinstance(space, gym.spaces.Box):
        return DiagGaussian if np.issubdtype(space.dtype, np.floating) else MultiCategorical
    raise ValueError(
        f"Actions of a leaf space must be Box, Discrete, MultiDiscrete or MultiBinary, got {space}."
    )


def _family(custom: str | type[Distribution]) -> type[Distribution]:
    if isinstance(custom, str):
        if custom in FAMILIES:
            return FAMILIES[custom]
        nearest = difflib.get_close_matches(custom, FAMILIES, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(
            f"`custom_action_dist` must be one of {', '.join(sorted(FAMILIES))} or a subclass of "
            f"Distribution, got {custom!r}.{hint}"
        )
    if isinstance(custom, type) and issubclass(custom, Distribution):
        return custom
    raise TypeError(
        f"`custom_action_dist` must be a name or a subclass of Distribution, got {custom!r}."
    )
