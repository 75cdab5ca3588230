"""What the actor-critic algorithms share: their postprocessing and a measure of the critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfpolicy.advantages import add_advantages, advantages_of
from tfpolicy.ops.stats import explained_variance
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.tf_policy import TFPolicy

_MOMENTS = ("residual_mean", "residual_sq_mean", "target_mean", "target_sq_mean")


class ActorCriticPolicy(TFPolicy):
    """A policy that learns from advantages; its config has `lambda_` and `use_critic`.

    A subclass that overrides `postprocess_trajectory` is handed fragments of episodes. Otherwise
    blocks of many steps and sub-environments are postprocessed at once.
    """

    def gae_lambda(self) -> float:
        """λ of generalised advantage estimation."""
        return self.config["lambda"]

    def postprocess_trajectory(
        self, sample_batch: SampleBatch, other_agent_batches: Any = None, episode: Any = None
    ) -> SampleBatch:
        """Adds `advantages` and `value_targets`."""
        return add_advantages(
            self,
            sample_batch,
            gamma=self.config.gamma,
            lambda_=self.gae_lambda(),
            use_critic=self.config["use_critic"],
        )

    @property
    def block_columns(self) -> tuple[str, ...]:
        """The values, if those of many rows are worth a call of their own."""
        inherited = (
            self._postprocesses_blocks
            and type(self).postprocess_block is ActorCriticPolicy.postprocess_block
        )
        return (SampleBatch.VF_PREDS,) if inherited and self.values_apart else ()

    def postprocess_block(self, columns: Mapping[str, Any]) -> dict[str, Any] | None:
        """As `postprocess_trajectory`, see there; `None` if a subclass has its own."""
        if not self._postprocesses_blocks:
            return None
        return advantages_of(
            self,
            columns,
            gamma=self.config.gamma,
            lambda_=self.gae_lambda(),
            use_critic=self.config["use_critic"],
        )

    @property
    def _postprocesses_blocks(self) -> bool:
        """Whether no subclass wants to see fragments."""
        own = type(self).postprocess_trajectory
        return own is ActorCriticPolicy.postprocess_trajectory

    def stats(self, means: Mapping[str, float]) -> dict[str, float]:
        """Adds how much of the returns' variance the critic explains."""
        return with_explained_variance(means)


def value_moments(values: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
    """[B] each: means of them can be averaged, and give `with_explained_variance` the variances."""
    residuals = targets - values
    moments = (residuals, tf.square(residuals), targets, tf.square(targets))
    return dict(zip(_MOMENTS, moments, strict=True))


def with_explained_variance(means: Mapping[str, float]) -> dict[str, float]:
    """Replaces the moments by `vf_explained_var`: 1 is a perfect critic, 0 a blind one."""
    stats = {name: value for name, value in means.items() if name not in _MOMENTS}
    return {**stats, "vf_explained_var": explained_variance(*(means[name] for name in _MOMENTS))}
