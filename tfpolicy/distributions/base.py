"""What every distribution over actions can do."""

from __future__ import annotations

import abc
import math
from typing import Any, Generic, TypeVar

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.spaces import check_in_range, flatten, leaf_spaces

SpaceT = TypeVar("SpaceT", bound=gym.Space)
Self = TypeVar("Self", bound="Distribution")


class Distribution(abc.ABC):
    """A batch of independent distributions over actions, one a row.

    All methods build graph ops and hold no variables. Log-probabilities, entropies and divergences
    are summed over the dimensions of an action: they are [B] whatever the space.

    Attributes:
        inputs: [B, num_inputs] float32, the output of the model.
        space: The policy's own action space, with float boxes already normalized where that
            applies. Actions have its structure.
    """

    inputs: tf.Tensor
    space: gym.Space

    @property
    def parts(self) -> tuple[Distribution, ...]:
        """The independent distributions that it consists of, in the order of the space's leaves."""
        return (self,)

    @abc.abstractmethod
    def sample(self, seed: tf.Tensor) -> Any:
        """One action per row, [B, *leaf.shape]; `seed` [2] int32 alone decides the draw."""

    @abc.abstractmethod
    def mode(self) -> Any:
        """The most likely action of each row, [B, *leaf.shape], in the dtype of `sample`."""

    @abc.abstractmethod
    def log_prob(self, actions: Any) -> tf.Tensor:
        """Log-probability (density) of `actions`, [B] float32.

        Args:
            actions: [B, *leaf.shape] of any integer or float dtype.

        Raises:
            ValueError: If `actions` has another shape or structure.
        """

    @abc.abstractmethod
    def entropy(self) -> tf.Tensor:
        """Entropy in nats, [B] float32."""

    def kl(self: Self, other: Self) -> tf.Tensor:
        """KL(self ‖ other), [B] float32.

        Args:
            other: A distribution of the same family over the same space.

        Raises:
            TypeError: If `other` is of another family.
        """
        if type(other) is not type(self):
            raise TypeError(
                f"`other` must be a {type(self).__name__}, as KL is defined within one family, "
                f"got {type(other).__name__}."
            )
        return self._kl(other)

    @abc.abstractmethod
    def _kl(self: Self, other: Self) -> tf.Tensor:
        """KL(self ‖ other), [B] float32, for `other` of the same class."""


class Family(Distribution, Generic[SpaceT]):
    """A distribution that a space and the outputs of a model determine.

    A family implements what is abstract here and in `Distribution`, and overrides `check_space` if
    it does not fit every space. Further arguments of its constructor are options, which
    `custom_action_dist_config` sets by name.

    Args:
        inputs: [B, num_inputs(space)], the output of the model; used as float32.
        space: The policy's own leaf space; for a family of yours that says so, any action space.

    Raises:
        ValueError: If the family does not fit `space`, or `inputs` has another shape.
    """

    space: SpaceT

    def __init__(self, inputs: tf.Tensor, space: SpaceT) -> None:
        self.check_space(space)
        self.space = space
        self._shape: tuple[int, ...] = tuple(space.shape or ())
        self.inputs = checked_inputs(inputs, self.num_inputs(space), space)

    @classmethod
    def check_space(cls, space: gym.Space) -> None:
        """Raises `ValueError` if this family cannot describe actions of `space`."""

    @staticmethod
    @abc.abstractmethod
    def num_inputs(space: SpaceT) -> int:
        """Number of values per row that the model must produce for `space`."""

    @classmethod
    def check_actions(cls, space: gym.Space, actions: Any, name: str) -> None:
        """Checks actions on their way to `log_prob`, where one outside has no probability.

        Args:
            space: What the family describes the actions of.
            actions: [B, *leaf.shape] arrays, nested as `space`.
            name: What messages call them.

        Raises:
            ValueError: A discrete value is outside of its space.
        """
        leaves = leaf_spaces(space, name).items()
        for (leaf_name, leaf), values in zip(leaves, flatten(space, actions, name), strict=True):
            check_in_range(leaf, np.asarray(values), leaf_name)

    def _checked_actions(self, actions: tf.Tensor | np.ndarray, dtype: tf.DType) -> tf.Tensor:
        """`actions` as a [B, *space.shape] tensor of `dtype`; floats are rounded to integers."""
        actions = tf.convert_to_tensor(actions)
        expected = [self.inputs.shape[0], *self._shape]
        if not actions.shape.is_compatible_with(expected):
            raise ValueError(
                f"`actions`: expected {_shape_text(expected)} for {self.space}, "
                f"got {_shape_text(actions.shape)}."
            )
        if actions.dtype.is_floating and dtype.is_integer:
            actions = tf.round(actions)
        return tf.cast(actions, dtype)

    # Each op counts when acting on one row: these two reshape nothing that has its shape already.

    def _flat(self, actions: tf.Tensor) -> tf.Tensor:
        """[B, *space.shape] as [B, prod(space.shape)]."""
        if len(self._shape) == 1:
            return actions
        return tf.reshape(actions, [-1, math.prod(self._shape)])

    def _shaped(self, flat: tf.Tensor) -> tf.Tensor:
        """[B, prod(space.shape)] as [B, *space.shape]."""
        if len(self._shape) == 1:
            return flat
        return tf.reshape(flat, [-1, *self._shape])


def checked_inputs(inputs: tf.Tensor, size: int, space: gym.Space) -> tf.Tensor:
    """`inputs` as [B, size] float32, checked when it is run if its width is unknown before.

    Raises:
        ValueError: If `inputs` has another shape.
    """
    inputs = tf.cast(inputs, tf.float32)
    if not inputs.shape.is_compatible_with([None, size]):
        raise ValueError(
            f"`inputs`: expected (B, {size}) for {space}, got {_shape_text(inputs.shape)}."
        )
    if inputs.shape.rank is None or inputs.shape[1] is None:
        return tf.ensure_shape(inputs, [None, size])
    return inputs


def check_float_box(family: type[Family], space: gym.Space) -> gym.spaces.Box:
    """`space` itself; raises `ValueError` unless it is a Box of a float dtype."""
    if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ValueError(f"{family.__name__} expects a float Box, got {space}.")
    return space


def check_bounded_box(family: type[Family], space: gym.Space) -> gym.spaces.Box:
    """`space` itself; raises `ValueError` unless it is a float Box with bounds low < high."""
    box = check_float_box(family, space)
    largest = np.finfo(np.float32).max
    bounded = (np.abs(box.low) <= largest) & (np.abs(box.high) <= largest)
    refused = np.flatnonzero(~(bounded & (box.low < box.high)))
    if refused.size:
        raise ValueError(
            f"{family.__name__} expects finite bounds low < high in every dimension, got {box}, "
            f"which has none in dimension {', '.join(map(str, refused))}. "
            f"A diag_gaussian needs no bounds."
        )
    return box


class Bounds:
    """Affine map from [-1, 1] to the bounds of a float Box; no ops if they are the same."""

    def __init__(self, space: gym.spaces.Box) -> None:
        low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
        self._low, self._high = low.astype(np.float32), high.astype(np.float32)
        self._centre = ((high + low) / 2).astype(np.float32)
        self._half_width = ((high - low) / 2).astype(np.float32)
        self._is_unit = bool(np.all(low == -1.0) and np.all(high == 1.0))
        # Σ_i log da_i/dt_i, the logarithm of the Jacobian of the map.
        self.log_det = float(np.sum(np.log((high - low) / 2)))

    def from_unit(self, t: tf.Tensor) -> tf.Tensor:
        """[B, D] within [-1, 1] to [B, D] within the bounds."""
        if self._is_unit:
            return t
        # Rounding may carry the end of a narrow interval past its bound.
        return tf.clip_by_value(self._centre + self._half_width * t, self._low, self._high)

    def to_unit(self, actions: tf.Tensor) -> tf.Tensor:
        """[B, D] within the bounds to [B, D] within [-1, 1]."""
        return actions if self._is_unit else (actions - self._centre) / self._half_width


def _shape_text(shape: tf.TensorShape | list[int | None]) -> str:
    sizes = ["B" if size is None else str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
