"""Acting with what a policy left behind: a SavedModel or a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tfpolicy.checkpoint import HEADER_FILE, read_checkpoint
from tfpolicy.description import PolicyDescription
from tfpolicy.export.inference import SAMPLE, SERVING, InferenceGraph, build_inference
from tfpolicy.export.saved_model import load_saved_model, version_folder
from tfpolicy.graph.placeholders import unknown_column
from tfpolicy.spaces import blank_action, first_action, leaf_spaces, unflatten
from tfpolicy.view_requirement import ViewRequirement


class ServedPolicy:
    """Acts and does nothing else; may be called from several threads at once.

    Actions are those of the environment: unsquashed, clipped, in the dtype of its space. So are
    previous actions, if the model reads them: what was returned can be given back.

    Args:
        graph: Acts; closed by `close`.
        description: What the policy was built from.
    """

    def __init__(self, graph: InferenceGraph, description: PolicyDescription):
        self.observation_space: gym.Space = description.observation_space
        self.action_space: gym.Space = description.action_space
        self._graph = graph
        self._inputs = graph.acting_inputs()
        self._functions = {False: graph.function(SERVING), True: graph.function(SAMPLE)}
        self._action_names = list(leaf_spaces(self.action_space, "actions"))
        self._is_normalized: bool = description.config["normalize_actions"]

    @property
    def view_requirements(self) -> dict[str, ViewRequirement]:
        """The columns that acting reads, by name; of actions, those of the environment."""
        return {"obs": ViewRequirement(space=self.observation_space), **self._graph.views}

    @property
    def blanks(self) -> dict[str, Any]:
        """What columns are before the first step of an episode, if that is not zero; see `History`.

        The policy was trained with zeros in its own space, so that previous actions are to be what
        these are in the environment's.
        """
        return {"actions": blank_action(self.action_space, self._is_normalized)}

    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = False,
        timestep: int | None = None,
        **kwargs: Any,
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """Acts on a batch of observations.

        Args:
            obs_batch: Array or list [B, ...], for nested spaces also a structure of arrays or a
                list of structures.
            state_batches: Recurrent state, arrays [B, S]; missing means the initial one.
            prev_action_batch: The environment's previous actions [B, ...], if the model reads them.
            prev_reward_batch: Previous rewards [B], if the model reads them.
            info_batch: Ignored.
            episodes: Ignored.
            explore: Whether actions are drawn from the distribution; otherwise they are its mode.
            timestep: Ignored: schedules of exploration are a matter of training.
            **kwargs: Further columns that the model reads, by name.

        Returns:
            The environment's actions [B, ...]; the states after them [B, S]; a dict with
            `action_dist_inputs`, `action_logp`, `action_prob` and, with a value head, `vf_preds`.

        Raises:
            KeyError: The model reads a column that is missing, or none has a name in `kwargs`.
            ValueError: An observation has the wrong shape or dtype.
        """
        self._check_known(kwargs)
        feeds = self._inputs.feeds(
            obs_batch, state_batches, prev_action_batch, prev_reward_batch, kwargs
        )
        return self._act(feeds, explore)

    def compute_actions_from_input_dict(
        self,
        input_dict: Mapping[str, Any],
        explore: bool | None = False,
        timestep: int | None = None,
        episodes: Any = None,
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """Like `compute_actions`, with columns by name as in `view_requirements`.

        Raises:
            KeyError: A column is unknown or missing.
        """
        self._check_known(input_dict)
        return self._act(self._inputs.arrays(input_dict), explore)

    def compute_single_action(
        self,
        obs: Any,
        state: Sequence[Any] | None = None,
        prev_action: Any = None,
        prev_reward: Any = None,
        info: Any = None,
        episode: Any = None,
        explore: bool | None = False,
        timestep: int | None = None,
        **kwargs: Any,
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """Like `compute_actions` for one observation; nothing has a batch dimension."""
        self._check_known(kwargs)
        feeds = self._inputs.single_feeds(obs, state, prev_action, prev_reward, kwargs)
        actions, states, extras = self._act(feeds, explore)
        return (
            first_action(self.action_space, actions),
            [state[0] for state in states],
            {name: value[0] for name, value in extras.items()},
        )

    def get_initial_state(self) -> list[np.ndarray]:
        """The recurrent state before the first step, [S] each."""
        return [np.array(state) for state in self._inputs.initial_state]

    def is_recurrent(self) -> bool:
        """Whether there is a state to carry from step to step."""
        return bool(self._inputs.initial_state)

    def close(self) -> None:
        """Frees session and graph; later calls raise."""
        self._graph.close()

    def __enter__(self) -> ServedPolicy:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _check_known(self, columns: Mapping[str, Any]) -> None:
        known = ["obs", *self._inputs.specs]
        for name in columns:
            if name not in known:
                raise KeyError(unknown_column(name, known))

    def _act(
        self, feeds: list[np.ndarray], explore: bool | None
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        outputs = self._functions[bool(explore)](*feeds)
        actions = [outputs.pop(name) for name in self._action_names]
        states = [
            outputs.pop(f"state_out_{index}") for index in range(len(self._inputs.initial_state))
        ]
        outputs["action_prob"] = np.exp(outputs["action_logp"])
        return unflatten(self.action_space, actions), states, outputs


def load_policy(
    path: str | os.PathLike[str], config: Mapping[str, Any] | None = None
) -> ServedPolicy:
    """Loads what acts, from whatever a policy wrote.

    Args:
        path: A SavedModel: one version, or the folder of all versions, of which the newest is
            taken. Or a checkpoint.
        config: Settings for a checkpoint in place of the stored ones. A custom model is never
            loaded from a file: it has to be given here. A SavedModel needs none.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The folder holds neither, or something damaged or not written by this package,
            or a custom model is missing.
    """
    path = Path(path)
    if (path / HEADER_FILE).exists():
        return _from_checkpoint(path, config)
    if config is not None:
        raise ValueError(f"`config` is for checkpoints, but `{path}` is none.")
    while True:
        folder = version_folder(path)
        try:
            return ServedPolicy(*load_saved_model(folder))
        except (OSError, ValueError):
            # A publisher that keeps few versions may remove one that was the newest just now.
            if folder == path or folder.exists():
                raise


def _from_checkpoint(path: Path, config: Mapping[str, Any] | None) -> ServedPolicy:
    stored, state = read_checkpoint(path)
    description = PolicyDescription.from_json(stored, path)
    graph = build_inference(
        description.observation_space,
        description.action_space,
        description.acting_config(config),
        state["weights"],
    )
    return ServedPolicy(graph, description)
