"""Callbacks: what a user may hang into acting, learning and training."""

from __future__ import annotations

from typing import Any


class DefaultCallbacks:
    """Does nothing at every event; subclass it and name the subclass in `config["callbacks"]`.

    One instance belongs to one policy. All arguments are keywords, and `**kwargs` keeps a subclass
    working when an event gains an argument.
    """

    def on_create_policy(self, *, policy: Any, **kwargs: Any) -> None:
        """Called once the policy is built and its graph is closed."""

    def on_learn_on_batch(
        self, *, policy: Any, train_batch: Any, result: dict[str, Any], **kwargs: Any
    ) -> None:
        """Called before a batch is learned from, or loaded into a buffer to be learned from.

        Args:
            policy: The policy that learns.
            train_batch: A copy of the batch.
            result: What is put in here appears as `"custom_metrics"` in the result of learning.
            **kwargs: Room for later versions.
        """

    def on_postprocess_trajectory(
        self,
        *,
        policy: Any,
        episode: Any,
        postprocessed_batch: Any,
        original_batch: Any,
        **kwargs: Any,
    ) -> None:
        """Called after each fragment was postprocessed; may change `postprocessed_batch`."""

    def on_episode_start(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        """Called after an environment was reset."""

    def on_episode_step(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        """Called after each step of an episode."""

    def on_episode_end(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        """Called after the last step of an episode."""

    def on_train_result(self, *, policy: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """Called after each training iteration; may add to `result`."""
