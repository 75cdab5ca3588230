"""The policy interface: what acts, learns and keeps its state, whatever it is made of."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

# Under this key the result of learning holds the statistics of the loss, for any number of towers.
LEARNER_STATS_KEY = "learner_stats"
# What acting gives beside actions and states.
ACTED_COLUMNS = ("action_dist_inputs", "action_logp", "action_prob", "vf_preds")

Array = np.ndarray
Weights = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class PolicySpec:
    """What is needed to build a policy; whatever is `None` is filled in by whoever builds it."""

    policy_class: type[Policy] | None = None
    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    config: Mapping[str, Any] | None = None

    def build(self) -> Policy:
        """Builds the policy.

        Raises:
            ValueError: The class or a space is still missing.
        """
        for name in ("policy_class", "observation_space", "action_space"):
            if vars(self)[name] is None:
                raise ValueError(f"`PolicySpec.{name}` must be set before `build`, got None.")
        make: Any = self.policy_class
        return make(self.observation_space, self.action_space, self.config)


class Policy(abc.ABC):
    """Maps observations to actions and learns from batches of them.

    Shapes: [B] rows; structures of arrays for Dict and Tuple spaces.
    """

    observation_space: gym.Space
    action_space: gym.Space
    config: Mapping[str, Any]
    view_requirements: dict[str, Any]
    global_timestep: int = 0

    @abc.abstractmethod
    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Sequence[Array] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
        extra_fetches: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, list[Array], dict[str, Array]]:
        """Acts on a batch of observations.

        Args:
            obs_batch: [B, ...].
            state_batches: Recurrent states [B, S]; `None` for the initial ones.
            prev_action_batch: Previous actions [B, ...].
            prev_reward_batch: Previous rewards [B].
            info_batch: Infos [B].
            episodes: Episodes [B].
            explore: Whether to explore; `None` leaves it to the config.
            timestep: What schedules go by; `None` for `global_timestep`.
            extra_fetches: Which of the further columns the caller reads; `None` for all of them.
            **kwargs: Columns that the model reads beside these.

        Returns:
            The policy's own actions [B, ...], the states after it [B, S], further columns [B, ...].
        """

    def compute_single_action(
        self, obs: Any, state: Sequence[Array] | None = None, **kwargs: Any
    ) -> tuple[Any, list[Array], dict[str, Any]]:
        """Acts on one observation; returns the environment's action, the state and the columns."""
        raise NotImplementedError(f"{type(self).__name__} does not act on single observations.")

    def get_initial_state(self) -> list[Array]:
        """The recurrent state before the first step, each [S]; empty if there is none."""
        return []

    def is_recurrent(self) -> bool:
        """Whether the policy carries a state from step to step."""
        return bool(self.get_initial_state())

    def num_state_tensors(self) -> int:
        """How many arrays the recurrent state has."""
        return len(self.get_initial_state())

    def postprocess_trajectory(
        self, sample_batch: Any, other_agent_batches: Any = None, episode: Any = None
    ) -> Any:
        """Adds what the loss needs to one fragment of one episode; returns the batch."""
        return sample_batch

    @property
    def block_columns(self) -> tuple[str, ...]:
        """Columns of acting that `postprocess_block` adds by itself where they are missing.

        Whoever samples blocks need not ask for them at every step.
        """
        return ()

    def postprocess_block(self, columns: Mapping[str, Any]) -> dict[str, Any] | None:
        """What `postprocess_trajectory` adds to fragments, for a whole block of steps at once.

        Faster than fragment by fragment, but it must come to the same.

        Args:
            columns: Columns [T, N, ...] of T steps in N sub-environments; where an episode ends,
                the next begins one row below.

        Returns:
            Further columns [T, N, ...]; `None`, the default, to be handed the fragments.
        """
        return None

    @abc.abstractmethod
    def learn_on_batch(self, samples: Mapping[str, Any]) -> dict[str, Any]:
        """Takes one optimizer step on all rows of `samples`; returns `{"learner_stats": ...}`."""

    @abc.abstractmethod
    def get_weights(self) -> Weights:
        """All weights by name."""

    @abc.abstractmethod
    def set_weights(self, weights: Weights) -> None:
        """Assigns all weights or, if they do not fit, none."""

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Everything needed to continue as if never stopped: arrays and plain values only."""

    @abc.abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `get_state`; assigns everything or, if it does not fit, nothing."""

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        """Tells the policy how many timesteps were sampled in all."""
        timestep = int(global_vars["timestep"])
        if timestep < 0:
            raise ValueError(f"`timestep` must be at least 0, got {timestep}.")
        self.global_timestep = timestep

    def on_train_batch_end(self, learner_stats: Mapping[str, float]) -> None:
        """Called by the training loop when a train batch is used up; adapts coefficients."""

    def close(self) -> None:
        """Frees what the policy holds."""
