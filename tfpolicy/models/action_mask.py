"""Masks among the observations: which choices they allow, and where these lie in the outputs.

An observation `{"action_mask": ..., "observations": ...}` tells which actions are legal. The mask
of a Discrete(n) action has n elements, 1 where the choice is legal. That of a MultiDiscrete action
has the masks of its choices side by side, or, for choices of equal number, one row each, or it is a
Tuple of one mask each. That of a nested action has the structure of the action, without the leaves
that are neither Discrete nor MultiDiscrete.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tfpolicy.config import ModelConfig
from tfpolicy.distributions import ActionDistribution, Categorical, MultiCategorical
from tfpolicy.spaces import flatten, leaf_spaces
from tfpolicy.spaces.base import children, walk

Path = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class MaskedPart:
    """How one part of a distribution is masked.

    Attributes:
        num_inputs: How many inputs it has.
        counts: Numbers of values of its choices, which sum to `num_inputs`; empty if it is not
            masked.
        leaves: The leaves of the observation that hold its mask, by their indices.
    """

    num_inputs: int
    counts: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class ActionMask:
    """Reads masks out of observations.

    Attributes:
        observation_space: The environment's own, a Dict.
        observations_key: Where the observation proper is.
        parts: How each part of the distribution is masked.
    """

    observation_space: Dict
    observations_key: str
    parts: tuple[MaskedPart, ...]

    @property
    def inner_space(self) -> gym.Space:
        """The space of the observation proper."""
        return self.observation_space[self.observations_key]

    def allowed(self, observation: Any) -> tf.Tensor:
        """Which distribution inputs count, [B, num_inputs] bool.

        Args:
            observation: Tensors [B, ...] in the structure of the space.
        """
        leaves = flatten(self.observation_space, observation)
        num_rows = tf.shape(leaves[0])[0]
        blocks = []
        for part in self.parts:
            for index in part.leaves:
                mask = tf.cast(leaves[index], tf.bool)
                if mask.shape.rank != 2:
                    mask = tf.reshape(mask, [num_rows, part.num_inputs])
                blocks.append(mask)
            if not part.leaves:
                blocks.append(tf.fill([num_rows, part.num_inputs], True))
        return blocks[0] if len(blocks) == 1 else tf.concat(blocks, axis=1)

    def check(self, leaves: Sequence[np.ndarray]) -> None:
        """Refuses rows without a legal action.

        Args:
            leaves: The leaves [B, ...] of a batch of observations, in the order of the space.

        Raises:
            ValueError: A choice has no legal value in some row; the rows are named.
        """
        for part in self.parts:
            blocks = [leaves[index].reshape(len(leaves[index]), -1) for index in part.leaves]
            if len(blocks) < len(part.counts):
                blocks = np.split(blocks[0], np.cumsum(part.counts)[:-1], axis=1)
            for choice, block in enumerate(blocks):
                legal = block.any(axis=1)
                if not legal.all():
                    raise ValueError(self._no_action_text(part, choice, np.flatnonzero(~legal)))

    def _no_action_text(self, part: MaskedPart, choice: int, rows: np.ndarray) -> str:
        index = part.leaves[choice if len(part.leaves) > 1 else 0]
        name = list(leaf_spaces(self.observation_space, "obs"))[index]
        which = f" of choice {choice}" if len(part.counts) > 1 else ""
        listed = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        return (
            f"`{name}`: at least one of the {part.counts[choice]} actions{which} must be allowed "
            f"in every row, none is in {'row' if len(rows) == 1 else 'rows'} {listed}."
        )


def action_mask_for(
    observation_space: gym.Space, dist_class: ActionDistribution, config: ModelConfig
) -> ActionMask | None:
    """Finds the masks in an observation space.

    Args:
        observation_space: The environment's own.
        dist_class: Whose inputs are masked.
        config: Names the keys; `action_mask_key=None` takes every observation as it is.

    Returns:
        `None` if the space is no Dict with a key of that name.

    Raises:
        ValueError: There is no observation beside the mask, or the mask does not fit the actions.
    """
    key, observations_key = config.action_mask_key, config.observations_key
    if not isinstance(observation_space, Dict) or key not in observation_space.spaces:
        return None
    if set(observation_space.spaces) != {key, observations_key}:
        raise ValueError(
            f"`observation_space`: an action mask in {key!r} stands beside {observations_key!r} "
            f"alone, got {list(observation_space.spaces)}. The names are those in "
            f"`action_mask_key` and `observations_key`; `action_mask_key=None` masks nothing."
        )
    if _is_nested(dist_class.space) and dist_class.parts == (dist_class,):
        families = ", ".join(part.family.__name__ for part in dist_class.parts)
        raise ValueError(
            f"{families} takes the whole of {dist_class.space}, so that nobody knows which of its "
            f"inputs a mask is for. Mask them in a model of your own, with `action_mask_key=None`."
        )
    order = {path: index for index, (path, _) in enumerate(walk(observation_space))}
    masks = _leaf_masks(dist_class.space, observation_space[key], (key,))
    parts = []
    for part, (counts, paths) in zip(dist_class.parts, masks, strict=True):
        if paths and not issubclass(part.family, Categorical | MultiCategorical):
            raise ValueError(
                f"Actions are masked by their logits, which {part.family.__name__} has none of."
            )
        leaves = tuple(order[path] for path in paths)
        parts.append(MaskedPart(part.num_inputs, counts, leaves))
    return ActionMask(observation_space, observations_key, tuple(parts))


def _leaf_masks(
    space: gym.Space, mask: gym.Space | None, path: Path
) -> Iterator[tuple[tuple[int, ...], tuple[Path, ...]]]:
    """Yields the counts of the choices and the paths of the masks of each leaf of `space`."""
    if isinstance(space, Dict | Tuple):
        inner = {} if mask is None else _inner_masks(space, mask, path)
        for key, child in children(space):
            yield from _leaf_masks(child, *inner.get(key, (None, path)))
    elif mask is None:
        yield (), ()
    else:
        yield _choice_masks(space, mask, path)


def _inner_masks(
    space: Dict | Tuple, mask: gym.Space, path: Path
) -> dict[Any, tuple[gym.Space, Path]]:
    """The masks of what is directly below a nested space, and their paths, by its keys."""
    keys = [key for key, child in children(space) if _has_choices(child)]
    if isinstance(space, Dict):
        if isinstance(mask, Dict) and set(mask.spaces) <= set(keys):
            return {key: (child, (*path, key)) for key, child in children(mask)}
        raise ValueError(f"`{_name(path)}`: expected a Dict with keys out of {keys}, got {mask}.")
    if isinstance(mask, Tuple) and len(mask.spaces) == len(keys):
        items = zip(keys, children(mask), strict=True)
        return {key: (child, (*path, index)) for key, (index, child) in items}
    raise ValueError(f"`{_name(path)}`: expected a Tuple for the items {keys}, got {mask}.")


def _choice_masks(
    space: gym.Space, mask: gym.Space, path: Path
) -> tuple[tuple[int, ...], tuple[Path, ...]]:
    """The counts of the choices of a leaf, and the paths of their masks."""
    counts, shapes = _counts_and_shapes(space)
    if isinstance(mask, Tuple):
        paths = tuple((*path, index) for index in range(len(mask.spaces)))
        if [_binary_shape(child) for child in mask.spaces] == [(n,) for n in counts]:
            return counts, paths
    elif _binary_shape(mask) in shapes:
        return counts, (path,)
    listed = " or ".join(map(str, shapes))
    raise ValueError(f"`{_name(path)}`: expected 0 and 1 of shape {listed}, got {mask}.")


def _counts_and_shapes(space: gym.Space) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    if isinstance(space, Discrete):
        return (int(space.n),), [(int(space.n),)]
    if isinstance(space, MultiDiscrete):
        counts = tuple(int(n) for n in space.nvec.flat)
        rows = [(*space.nvec.shape, counts[0])] if len(set(counts)) == 1 else []
        return counts, [(sum(counts),), *rows]
    raise ValueError(f"Only Discrete and MultiDiscrete actions can be masked, got {space}.")


def _binary_shape(space: gym.Space) -> tuple[int, ...] | None:
    """The shape of a leaf that holds nothing but 0 and 1; `None` for all other spaces."""
    if isinstance(space, MultiBinary):
        return space.shape
    if isinstance(space, MultiDiscrete):
        return space.shape if (space.nvec == 2).all() and not space.start.any() else None
    if isinstance(space, Box):
        return space.shape if (space.low == 0).all() and (space.high == 1).all() else None
    return None


def _has_choices(space: gym.Space) -> bool:
    return any(isinstance(leaf, Discrete | MultiDiscrete) for _, leaf in walk(space))


def _is_nested(space: gym.Space) -> bool:
    return isinstance(space, Dict | Tuple)


def _name(path: Path) -> str:
    return "observation_space" + "".join(f"[{key!r}]" for key in path)
