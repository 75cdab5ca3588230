"""A policy's network, which training and inference graphs build alike from spaces and config."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym

from tfpolicy.config import PolicyConfig
from tfpolicy.distributions import (
    ActionDistribution,
    BoundFamily,
    DiagGaussian,
    distribution_for,
)
from tfpolicy.graph.views import offered_views, standard_views
from tfpolicy.models import Model, model_for
from tfpolicy.models.action_mask import action_mask_for
from tfpolicy.models.filtered import Filtered, leaves_to_filter
from tfpolicy.models.masked import Masked
from tfpolicy.spaces import own_space
from tfpolicy.view_requirement import ViewRequirement


class Network(NamedTuple):
    """A model and what its outputs mean.

    Attributes:
        model: Maps columns to distribution inputs.
        dist_class: Maps distribution inputs to a distribution over `own_space`.
        own_space: The policy's own action space.
        views: Everything that the model may read.
        observation_filter: The model itself, if it normalizes observations.
    """

    model: Model
    dist_class: ActionDistribution
    own_space: gym.Space
    views: dict[str, ViewRequirement]
    observation_filter: Filtered | None


def build_network(
    observation_space: gym.Space, action_space: gym.Space, config: PolicyConfig, seed: int
) -> Network:
    """Builds the network in the current default graph.

    Args:
        observation_space: The environment's own.
        action_space: The environment's own.
        config: Any policy's config.
        seed: Initial weights follow from it.

    Raises:
        ValueError: The action distribution does not fit the space or the model's settings, or the
            observation filter has nothing to normalize.
    """
    own = own_space(action_space, config.normalize_actions)
    dist_class = distribution_for(
        own, config.model.custom_action_dist, config.model.custom_action_dist_config
    )
    if config.model.free_log_std and not _is_gaussian(dist_class):
        families = ", ".join(part.family.__name__ for part in dist_class.parts)
        raise ValueError(
            f"`free_log_std` needs Gaussian actions of one Box, but these are {families} over "
            f"{own}. A model of your own can keep the log standard deviations in a variable."
        )
    mask = action_mask_for(observation_space, dist_class, config.model)
    inner_space = observation_space if mask is None else mask.inner_space
    model = model_for(inner_space, own, dist_class.num_inputs, config.model, seed)
    if mask is not None:
        model = Masked(model, mask)
    observation_filter = None
    if config.observation_filter == "MeanStdFilter":
        mask_key = None if mask is None else config.model.action_mask_key
        leaves = leaves_to_filter(observation_space, without=mask_key)
        model = observation_filter = Filtered(model, leaves, config.observation_filter_clip)
    views = {
        **standard_views(observation_space, own, model.initial_state()),
        **model.view_requirements(),
    }
    return Network(model, dist_class, own, offered_views(views), observation_filter)


def _is_gaussian(dist_class: ActionDistribution) -> bool:
    return isinstance(dist_class, BoundFamily) and issubclass(dist_class.family, DiagGaussian)
