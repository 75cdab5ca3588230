"""A2C: advantage actor-critic."""

from __future__ import annotations

import dataclasses

from tfpolicy.config import PolicyConfig, setting
from tfpolicy.distributions import ActionDistribution
from tfpolicy.graph.towers import LossOutput, TrainBatch
from tfpolicy.models import Model
from tfpolicy.ops.policy_gradients import policy_gradient_loss
from tfpolicy.ops.values import squared_value_loss
from tfpolicy.policies.base import ActorCriticPolicy, value_moments
from tfpolicy.schedules import Schedule, check_not_negative, make_schedule


@dataclasses.dataclass(frozen=True)
class A2CConfig(PolicyConfig):
    """Settings of A2C."""

    lr: float = setting(7e-4, low=0.0, finite=True)
    train_batch_size: int = setting(160, low=1)
    grad_clip: float | None = setting(0.5, above=0.0)
    lambda_: float = setting(1.0, low=0.0, high=1.0)
    use_critic: bool = True
    vf_loss_coeff: float = setting(0.5, low=0.0, finite=True)
    entropy_coeff: float = setting(0.01, low=0.0, finite=True)
    entropy_coeff_schedule: list | dict | None = None

    def validate(self) -> None:
        """Checks the schedule of the entropy bonus, too."""
        super().validate()
        check_not_negative("entropy_coeff_schedule", self.entropy_coeff_schedule)


class A2CPolicy(ActorCriticPolicy):
    """Advantage actor-critic (Mnih et al. 2016, https://arxiv.org/abs/1602.01783), synchronous."""

    config_class = A2CConfig
    config: A2CConfig

    def loss(
        self, model: Model, dist_class: ActionDistribution, train_batch: TrainBatch
    ) -> LossOutput:
        """−E[A log π(a|s)] + c_v E[(V(s) − V_target)²] − c_e E[H(π(·|s))]."""
        output = model(train_batch)
        dist = dist_class(output.dist_inputs)
        targets = train_batch["value_targets"]
        logp = dist.log_prob(train_batch["actions"])
        policy_loss = policy_gradient_loss(logp, train_batch["advantages"])
        vf_loss = squared_value_loss(output.vf_preds, targets)
        entropy = dist.entropy()
        loss = (
            policy_loss
            + self.config.vf_loss_coeff * vf_loss
            - train_batch.coefficients["entropy_coeff"] * entropy
        )
        stats = {"policy_loss": policy_loss, "vf_loss": vf_loss, "entropy": entropy}
        moments = value_moments(output.vf_preds, targets)
        return LossOutput(train_batch.mean(loss), {**stats, **moments})

    def coefficient_sources(self) -> dict[str, Schedule | float]:
        """The entropy bonus follows its schedule."""
        config = self.config
        spec = config.entropy_coeff_schedule
        return {"entropy_coeff": make_schedule(config.entropy_coeff if spec is None else spec)}
