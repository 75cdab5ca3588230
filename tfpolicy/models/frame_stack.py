"""A model that sees the last observations as one, around a model that sees one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, cast

import gymnasium as gym
import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tfpolicy.models.base import Model
from tfpolicy.models.wrapper import ObservationWrapper
from tfpolicy.spaces import Leaf, map_leaves
from tfpolicy.view_requirement import ViewRequirement

FRAMES = "prev_n_obs"


class FrameStack(ObservationWrapper):
    """Stacks the last `num_frames` observations, which it sees as the window `prev_n_obs`.

    The newest comes last. Images [H, W, C] are stacked along their channels, bytes [H, W] become
    channels of an image, all else is put side by side along its last axis. Before the first step
    of an episode there are zeros.

    Args:
        inner: A model of stacked observations, see `stacked_space`.
        observation_space: The environment's own.
        num_frames: At least 2.

    Raises:
        ValueError: The inner model has windows of its own over observations.
    """

    def __init__(self, inner: Model, observation_space: gym.Space, num_frames: int):
        super().__init__(inner, observation_space)
        if self.observation_views():
            raise ValueError(
                f"`num_framestacks` is for models without views of observations, but "
                f"{type(inner).__name__} has {', '.join(self.observation_views())}."
            )
        self._num_frames = num_frames

    def view_requirements(self) -> dict[str, ViewRequirement]:
        """Those of the inner model, and the window."""
        window = ViewRequirement("obs", self.observation_space, f"-{self._num_frames - 1}:0")
        return {**super().view_requirements(), FRAMES: window}

    def inner_observation(self, observation: Any) -> Any:
        """The steps of windows [B, K, ...] as one observation each."""
        return map_leaves(_stack, self.observation_space, observation)

    def made_columns(self) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
        """Observations made of the window, the next one with what comes after it."""

        def after(columns: Mapping[str, Any]) -> Any:
            return map_leaves(
                lambda _, window, row: tf.concat([window[:, 1:], row[:, None]], axis=1),
                self.observation_space,
                columns[FRAMES],
                columns["new_obs"],
            )

        return {
            "obs": lambda columns: self.inner_observation(columns[FRAMES]),
            "new_obs": lambda columns: self.inner_observation(after(columns)),
        }


def stacked_space(space: gym.Space, num_frames: int) -> gym.Space:
    """The space of `num_frames` observations as one; of fewer than 2, `space` itself."""
    if num_frames < 2:
        return space
    if isinstance(space, Dict):
        # An `OrderedDict`, for Gymnasium sorts the keys of any other.
        items = space.spaces.items()
        return Dict(OrderedDict((key, stacked_space(child, num_frames)) for key, child in items))
    if isinstance(space, Tuple):
        return Tuple([stacked_space(child, num_frames) for child in space.spaces])
    return _stacked_leaf(cast(Leaf, space), num_frames)


def _stacked_leaf(space: Leaf, num_frames: int) -> Leaf:
    def stacked(row: Any) -> np.ndarray:
        rows = [np.asarray(row)] * num_frames
        return np.stack(rows, axis=-1) if _gets_axis(space) else np.concatenate(rows, axis=-1)

    if isinstance(space, Box):
        return Box(stacked(space.low), stacked(space.high), dtype=space.dtype)
    if isinstance(space, MultiBinary):
        shape = stacked(np.zeros(space.shape)).shape
        return MultiBinary(shape if len(shape) > 1 else shape[0])
    counts = space.n if isinstance(space, Discrete) else space.nvec
    starts = stacked(space.start).astype(space.dtype)
    return MultiDiscrete(stacked(counts), dtype=space.dtype.type, start=starts)


def _gets_axis(space: gym.Space) -> bool:
    """Whether steps are stacked along a new axis: scalars, and gray images without one."""
    return not space.shape or (
        isinstance(space, Box) and len(space.shape) == 2 and space.dtype == np.uint8
    )


def _stack(space: gym.Space, window: tf.Tensor) -> tf.Tensor:
    """Moves the steps of a window [B, K, *shape] to the end, or into its last axis."""
    rank = window.shape.rank
    if _gets_axis(space):
        return tf.transpose(window, [0, *range(2, rank), 1])
    *lead, last = window.shape[2:]
    if lead:
        window = tf.transpose(window, [0, *range(2, rank - 1), 1, rank - 1])
    # -1 would be ambiguous for a space without elements.
    return tf.reshape(window, [tf.shape(window)[0], *lead, window.shape[rank - 2] * last])
