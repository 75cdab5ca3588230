"""What the actor-critic algorithms share: bootstrapped advantages and a measure of the critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfpolicy.columns import Column, blank, map_column, select
from tfpolicy.graph.towers import TrainBatch
from tfpolicy.graph.views import AFTER_SUFFIX, leaves_out_steps
from tfpolicy.ops.stats import explained_variance
from tfpolicy.policies.blocks import block_advantages
from tfpolicy.returns import discounted_returns, gae
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.tf_policy import TFPolicy
from tfpolicy.view_requirement import ViewRequirement

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

    def postprocess_block(self, columns: Mapping[str, Any]) -> dict[str, Any] | None:
        """As `postprocess_trajectory`, see there; `None` if a subclass has its own."""
        if type(self).postprocess_trajectory is not ActorCriticPolicy.postprocess_trajectory:
            return None
        return block_advantages(
            self,
            columns,
            gamma=self.config.gamma,
            lambda_=self.gae_lambda(),
            use_critic=self.config["use_critic"],
        )

    def stats(self, means: Mapping[str, float]) -> dict[str, float]:
        """Adds how much of the returns' variance the critic explains."""
        return with_explained_variance(means)


def add_advantages(
    policy: TFPolicy,
    batch: Mapping[str, Any],
    *,
    gamma: float,
    lambda_: float,
    use_critic: bool = True,
) -> SampleBatch:
    """Adds `advantages` and `value_targets` [B] to one fragment of one episode.

    An episode that terminated has no value beyond its end. One that was truncated, or that goes on
    after the fragment, is bootstrapped from the value of the true next observation.

    Args:
        policy: Gives values of states.
        batch: The fragment, with `rewards`, `vf_preds`, `terminateds`, `truncateds`, `new_obs`.
        gamma: Discount.
        lambda_: Of generalised advantage estimation; 1 gives returns minus values.
        use_critic: Without it advantages are the discounted returns themselves.
    """
    result = SampleBatch(batch)
    ends = (np.asarray(batch["terminateds"], bool), np.asarray(batch["truncateds"], bool))
    last_value = np.float32(0.0) if ends[0][-1] else _value_after(policy, result)
    values = np.asarray(batch["vf_preds"], np.float32)
    next_values = np.append(values[1:], last_value)
    if use_critic:
        advantages, targets = gae(batch["rewards"], values, next_values, *ends, gamma, lambda_)
    else:
        advantages = targets = discounted_returns(batch["rewards"], *ends, gamma, next_values)
    result["advantages"], result["value_targets"] = advantages, targets
    return result


def value_moments(
    train_batch: TrainBatch, values: tf.Tensor, targets: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Means from which `with_explained_variance` works; unlike a variance they can be averaged."""
    residuals = targets - values
    moments = (residuals, tf.square(residuals), targets, tf.square(targets))
    return {name: train_batch.mean(moment) for name, moment in zip(_MOMENTS, moments, strict=True)}


def with_explained_variance(means: Mapping[str, float]) -> dict[str, float]:
    """Replaces the moments by `vf_explained_var`: 1 is a perfect critic, 0 a blind one."""
    stats = {name: value for name, value in means.items() if name not in _MOMENTS}
    return {**stats, "vf_explained_var": explained_variance(*(means[name] for name in _MOMENTS))}


def _value_after(policy: TFPolicy, batch: SampleBatch) -> np.float32:
    """The value of the state after the last row."""
    columns = {}
    for name, view in policy.acting_views.items():
        if name.startswith("state_in_"):
            rows = batch[name.replace("_in_", "_out_")]
            columns[name] = select(rows, slice(-1, None))
        else:
            columns[name] = map_column(lambda leaf: leaf[None], _seen_after(name, view, batch))
    return policy.compute_values(columns)[0]


def _seen_after(name: str, view: ViewRequirement, batch: SampleBatch) -> Column:
    """What a view sees one step after the last row of a fragment."""
    steps = [_step_after(name, view, offset, batch) for offset in view.offsets]
    return map_column(lambda *leaves: np.stack(leaves), *steps) if view.is_window else steps[0]


def _step_after(name: str, view: ViewRequirement, offset: int, batch: SampleBatch) -> Column:
    """What is `offset` steps away from the step after the last row."""
    data_col = view.data_col or name
    column = np.ones(batch.count, bool) if view.as_mask else batch[data_col]
    if offset == -1:
        return select(column, -1)
    if offset < -1:  # The last row saw it as one step less far away.
        if not leaves_out_steps(view):
            return select(select(batch[name], -1), view.offsets.index(offset + 1))
        earlier = [other for other in view.offsets if other < -1]
        return select(select(batch[f"{name}{AFTER_SUFFIX}"], -1), earlier.index(offset))
    if data_col == SampleBatch.OBS:
        return np.bool_(True) if view.as_mask else select(batch[SampleBatch.NEXT_OBS], -1)
    # Zeros, as while acting: nothing is known yet of an action to come.
    return map_column(lambda leaf: blank(leaf.shape[1:], leaf.dtype), column)
