"""A model that sees normalized observations, around a model that knows nothing of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.models.base import Model
from tfpolicy.models.wrapper import ObservationWrapper
from tfpolicy.ops.stats import normalize
from tfpolicy.preprocessing import is_bytes
from tfpolicy.spaces import flatten, leaf_spaces, unflatten
from tfpolicy.spaces.base import walk

# Of the variables' names.
SCOPE = "observation_filter"


class Filtered(ObservationWrapper):
    """Normalizes observations by running moments, which are variables and not trained.

    Whoever learns sets the moments. All leaves have the same number of rows.

    Attributes:
        leaves: Names of the leaves that are normalized, with their indices in the space.
        moments: The variables by name: "count" [] int64, and for each leaf "<leaf>/mean" and
            "<leaf>/variance", float64 in the shape of the leaf.

    Args:
        inner: Sees the leaves `leaves` as float32, all others as they are.
        leaves: See above.
        clip: How many standard deviations a value may be away from 0; `None`: any number.
    """

    def __init__(self, inner: Model, leaves: Mapping[str, int], clip: float | None):
        super().__init__(inner, inner.observation_space)
        self.leaves = dict(leaves)
        self._clip = clip
        self.moments = {"count": _variable("count", np.int64(0))}
        spaces = list(leaf_spaces(self.observation_space, "obs").values())
        for leaf, index in self.leaves.items():
            for moment in (f"{leaf}/mean", f"{leaf}/variance"):
                self.moments[moment] = _variable(moment, np.zeros(spaces[index].shape))

    @property
    def variables(self) -> list[tf.Variable]:
        """The moments, in the order of their names."""
        return list(self.moments.values())

    def inner_observation(self, observation: Any) -> Any:
        """The observation with its leaves normalized."""
        values = flatten(self.observation_space, observation)
        for leaf, index in self.leaves.items():
            mean, variance = self.moments[f"{leaf}/mean"], self.moments[f"{leaf}/variance"]
            values[index] = normalize(
                values[index], self.moments["count"], mean, variance, self._clip
            )
        return unflatten(self.observation_space, values)


def leaves_to_filter(space: gym.Space, without: str | None = None) -> dict[str, int]:
    """The leaves of an observation space that a filter normalizes, with their indices.

    These are Boxes of floats and integers. Choices and bits are encoded as 0 and 1, and bytes over
    their whole range, which are those of images, are scaled to [0, 1]: these stay as they are.

    Args:
        space: The environment's own.
        without: A key of a Dict below which nothing is normalized.

    Raises:
        ValueError: There is no such leaf.
    """
    named = enumerate(zip(leaf_spaces(space, "obs"), walk(space), strict=True))
    leaves = {
        name: index
        for index, (name, (path, leaf)) in named
        if _is_filtered(leaf) and path[:1] != (without,)
    }
    if not leaves:
        raise ValueError(
            f"`observation_filter`: there is nothing to normalize in observations of {space}: it "
            f"takes Boxes of numbers, but no images of bytes. Set it to 'NoFilter'."
        )
    return leaves


def _is_filtered(space: gym.Space) -> bool:
    return (
        isinstance(space, gym.spaces.Box)
        and space.dtype.kind in "iuf"
        and 0 not in space.shape
        and not is_bytes(space)
    )


def _variable(name: str, value: Any) -> tf.Variable:
    return tf.compat.v1.get_variable(
        f"{SCOPE}/{name}", initializer=value, trainable=False, use_resource=True
    )
