"""Independent distributions over the leaves of a nested action space, as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import tensorflow as tf

from tfpolicy.distributions.action_distribution import ActionDistribution, BoundFamily
from tfpolicy.distributions.base import Distribution, checked_inputs
from tfpolicy.spaces import flatten, unflatten


class Joint(Distribution):
    """p(a) = Π_k p_k(a_k) over the leaves a_k of a Dict or Tuple space, nested to any depth.

    Actions keep the structure of the space. Log-probabilities, entropies and divergences are the
    sums of those of the leaves.

    Args:
        inputs: [B, D], the inputs of all parts side by side.
        space: The nested space.
        parts: One distribution for each leaf, in the order of the leaves.
    """

    def __init__(self, inputs: tf.Tensor, space: gym.Space, parts: Sequence[Distribution]) -> None:
        self.inputs = inputs
        self.space = space
        self._parts = tuple(parts)

    @property
    def parts(self) -> tuple[Distribution, ...]:
        """The distributions over the leaves."""
        return self._parts

    def sample(self, seed: tf.Tensor) -> Any:
        """One action per row; every leaf is drawn with a seed of its own."""
        seeds = split_seed(seed, len(self._parts))
        draws = zip(self._parts, seeds, strict=True)
        return unflatten(self.space, [part.sample(part_seed) for part, part_seed in draws])

    def mode(self) -> Any:
        """The most likely action of each row, which is that of every leaf."""
        return unflatten(self.space, [part.mode() for part in self._parts])

    def log_prob(self, actions: Any) -> tf.Tensor:
        """Σ_k log p_k(a_k)."""
        leaves = flatten(self.space, actions, "actions")
        pairs = zip(self._parts, leaves, strict=True)
        return _total(part.log_prob(leaf) for part, leaf in pairs)

    def entropy(self) -> tf.Tensor:
        """Σ_k H(p_k)."""
        return _total(part.entropy() for part in self._parts)

    def _kl(self, other: Joint) -> tf.Tensor:
        return _total(p.kl(q) for p, q in zip(self._parts, other.parts, strict=True))


@dataclasses.dataclass(frozen=True)
class JointActionDistribution(ActionDistribution):
    """Makes a `Joint`.

    Attributes:
        space: The nested space.
        members: What makes the distribution over each leaf, in the order of the leaves.
    """

    space: gym.Space
    members: tuple[BoundFamily, ...]

    @property
    def num_inputs(self) -> int:
        """The sum over the leaves."""
        return sum(member.num_inputs for member in self.members)

    @property
    def parts(self) -> tuple[BoundFamily, ...]:
        """The members."""
        return self.members

    def __call__(self, inputs: tf.Tensor) -> Joint:
        """The distribution with parameters `inputs` [B, num_inputs], leaf after leaf."""
        inputs = checked_inputs(inputs, self.num_inputs, self.space)
        parts, start = [], 0
        # One slice each, as tf2onnx takes the first output of a split for any of them.
        for member in self.members:
            parts.append(member(inputs[:, start : start + member.num_inputs]))
            start += member.num_inputs
        return Joint(inputs, self.space, parts)


def split_seed(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Makes `count` independent seeds [2] of one; of a single part it is the seed itself."""
    if count == 1:
        return [seed]
    return tf.unstack(tf.random.experimental.stateless_split(seed, count))


def _total(values: Iterable[tf.Tensor]) -> tf.Tensor:
    return tf.add_n(list(values))
