"""Distributions over actions: one family a file, and the choice of a family for a space."""

from __future__ import annotations

from tfpolicy.distributions.action_distribution import ActionDistribution, BoundFamily
from tfpolicy.distributions.base import Distribution, Family
from tfpolicy.distributions.bernoulli import Bernoulli
from tfpolicy.distributions.beta import Beta
from tfpolicy.distributions.categorical import Categorical, MultiCategorical
from tfpolicy.distributions.choice import FAMILIES, distribution_for
from tfpolicy.distributions.deterministic import Deterministic
from tfpolicy.distributions.gaussian import DiagGaussian, SquashedGaussian
from tfpolicy.distributions.joint import Joint, JointActionDistribution, split_seed
from tfpolicy.distributions.simplex import Dirichlet, GumbelSoftmax, SimplexFamily

__all__ = [
    "ActionDistribution",
    "Bernoulli",
    "Beta",
    "BoundFamily",
    "Categorical",
    "Deterministic",
    "DiagGaussian",
    "Dirichlet",
    "Distribution",
    "FAMILIES",
    "Family",
    "GumbelSoftmax",
    "Joint",
    "JointActionDistribution",
    "MultiCategorical",
    "SimplexFamily",
    "SquashedGaussian",
    "distribution_for",
    "split_seed",
]
