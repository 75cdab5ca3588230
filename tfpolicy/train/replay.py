"""The actions of running episodes, from which a deterministic environment can be brought back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from tfpolicy import spaces
from tfpolicy.columns import Column

Array = np.ndarray


class ActionLog:
    """Keeps what the environment was told since its running episodes began, for N sub-environments.

    It grows with the length of an episode: an environment whose episodes never end keeps 8 bytes a
    step for a discrete action.

    Args:
        action_space: The environment's, of one sub-environment.
        num_envs: N.
    """

    def __init__(self, action_space: Space, num_envs: int):
        self._space = action_space
        leaves = spaces.leaf_spaces(action_space, "actions").values()
        self._empty = [np.zeros((0, *(leaf.shape or ())), leaf.dtype) for leaf in leaves]
        self._chunks: list[list[list[Array]]] = [[self._empty] for _ in range(num_envs)]

    def extend(self, actions: Column, t: Array) -> None:
        """Adds the actions of a block.

        Args:
            actions: The environment's actions [T, N, ...].
            t: How many steps the running episode of each sub-environment has now [N].
        """
        leaves = spaces.flatten(self._space, actions)
        num_steps = len(leaves[0])
        for i, chunks in enumerate(self._chunks):
            if t[i] <= num_steps:
                # It began in this block.
                chunks[:] = [self._empty]
            begin = max(num_steps - int(t[i]), 0)
            chunks.append([leaf[begin:, i].copy() for leaf in leaves])

    def running(self) -> list[list[Array]]:
        """For each sub-environment the leaves [L_i, ...] of its running episode's actions."""
        return [
            [np.concatenate(parts) for parts in zip(*chunks, strict=True)]
            for chunks in self._chunks
        ]

    def clear(self) -> None:
        """Forgets everything: new episodes begin everywhere."""
        self._chunks = [[self._empty] for _ in self._chunks]

    def get_state(self) -> dict[str, Any]:
        """`lengths` [N] and for each leaf the actions of all sub-environments [ΣL_i, ...]."""
        running = self.running()
        return {
            "lengths": np.array([len(leaves[0]) for leaves in running], np.int64),
            "leaves": [np.concatenate(column) for column in zip(*running, strict=True)],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `get_state`."""
        cuts = np.cumsum(state["lengths"])[:-1]
        parts: Sequence[Sequence[Array]] = [np.split(leaf, cuts) for leaf in state["leaves"]]
        self._chunks = [[self._empty, list(leaves)] for leaves in zip(*parts, strict=True)]
