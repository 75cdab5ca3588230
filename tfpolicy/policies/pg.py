"""REINFORCE: the plain policy gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfpolicy.config import PolicyConfig, setting
from tfpolicy.distributions import ActionDistribution
from tfpolicy.graph.towers import LossOutput, TrainBatch
from tfpolicy.models import Model
from tfpolicy.ops.policy_gradients import policy_gradient_loss
from tfpolicy.returns import discounted_returns
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.tf_policy import TFPolicy


@dataclasses.dataclass(frozen=True)
class PGConfig(PolicyConfig):
    """Settings of REINFORCE."""

    lr: float = setting(4e-3, low=0.0, finite=True)
    train_batch_size: int = setting(2000, low=1)


class PGPolicy(TFPolicy):
    """REINFORCE (Williams 1992, https://doi.org/10.1007/BF00992696) on discounted returns.

    There is no critic, so a fragment that ends within an episode counts no rewards beyond its end:
    collect whole episodes, or use A2C.
    """

    config_class = PGConfig
    config: PGConfig

    def loss(
        self, model: Model, dist_class: ActionDistribution, train_batch: TrainBatch
    ) -> LossOutput:
        """−E[A log π(a|s)]."""
        output = model(train_batch)
        dist = dist_class(output.dist_inputs)
        logp = dist.log_prob(train_batch["actions"])
        policy_loss = policy_gradient_loss(logp, train_batch["advantages"])
        stats = {"policy_loss": policy_loss, "entropy": dist.entropy()}
        return LossOutput(train_batch.mean(policy_loss), stats)

    def postprocess_trajectory(
        self, sample_batch: SampleBatch, other_agent_batches: Any = None, episode: Any = None
    ) -> SampleBatch:
        """Adds the discounted returns as `advantages`."""
        result = SampleBatch(sample_batch)
        result["advantages"] = discounted_returns(
            sample_batch["rewards"],
            sample_batch["terminateds"],
            sample_batch["truncateds"],
            self.config.gamma,
        )
        return result

    def postprocess_block(self, columns: Mapping[str, Any]) -> dict[str, Any] | None:
        """As `postprocess_trajectory`, see there; `None` if a subclass has its own."""
        if type(self).postprocess_trajectory is not PGPolicy.postprocess_trajectory:
            return None
        ends = columns["terminateds"], columns["truncateds"]
        return {"advantages": discounted_returns(columns["rewards"], *ends, self.config.gamma)}
