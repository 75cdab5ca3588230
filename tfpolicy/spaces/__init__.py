"""Leaves of a space, batches of observations, maps of actions, and spaces as JSON."""

from tfpolicy.spaces.actions import (
    action_scaling,
    blank_action,
    clip_action,
    environment_transform,
    first_action,
    is_float_box,
    normalize_action,
    normalized_space,
    own_space,
    unbatch,
    unsquash_action,
)
from tfpolicy.spaces.base import Leaf, check_supported, flatten, leaf_spaces, map_leaves, unflatten
from tfpolicy.spaces.observations import batch_observations
from tfpolicy.spaces.ranges import check_in_bounds, check_in_range
from tfpolicy.spaces.serialization import space_from_json, space_to_json

__all__ = [
    "Leaf",
    "action_scaling",
    "batch_observations",
    "blank_action",
    "check_in_bounds",
    "check_in_range",
    "check_supported",
    "clip_action",
    "environment_transform",
    "first_action",
    "flatten",
    "is_float_box",
    "leaf_spaces",
    "map_leaves",
    "normalize_action",
    "normalized_space",
    "own_space",
    "space_from_json",
    "space_to_json",
    "unbatch",
    "unflatten",
    "unsquash_action",
]
