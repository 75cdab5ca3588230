"""PPO: proximal policy optimisation with a clipped surrogate and an adaptive KL penalty."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tfpolicy.config import PolicyConfig, setting
from tfpolicy.distributions import ActionDistribution
from tfpolicy.graph.towers import LossOutput, TrainBatch
from tfpolicy.models import Model
from tfpolicy.ops.policy_gradients import clipped_surrogate_loss
from tfpolicy.ops.stats import standardize
from tfpolicy.ops.values import clipped_value_loss, squared_value_loss
from tfpolicy.policies.base import ActorCriticPolicy, value_moments
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.schedules import Schedule, check_not_negative, make_schedule

_KL_COEFF_RANGE = (1e-4, 1e4)


@dataclasses.dataclass(frozen=True)
class PPOConfig(PolicyConfig):
    """Settings of PPO; the defaults are those of the paper for continuous control.

    Attributes:
        clip_param: ε of the surrogate.
        dual_clip: c > 1 bounds the surrogate of negative advantages (Ye et al. 2020,
            https://arxiv.org/abs/1912.09729); `None` is plain PPO.
        vf_clip_param: How far the value may usefully move from the one when sampling, in units of
            return; `None` for any distance. It tends to slow learning (Andrychowicz et al. 2021).
        kl_coeff: Where the coefficient of the KL penalty starts; 0 turns the penalty off.
        kl_target: The KL that the coefficient is adapted towards.
        standardize_advantages: Whether the train batch's advantages get mean 0 and deviation 1.
    """

    lr: float = setting(3e-4, low=0.0, finite=True)
    train_batch_size: int = setting(2048, low=1)
    sgd_minibatch_size: int | None = setting(128, low=1)
    num_sgd_iter: int = setting(10, low=1)
    grad_clip: float | None = setting(0.5, above=0.0)
    lambda_: float = setting(0.95, low=0.0, high=1.0)
    use_gae: bool = True
    use_critic: bool = True
    clip_param: float = setting(0.2, above=0.0)
    dual_clip: float | None = setting(None, above=1.0)
    vf_clip_param: float | None = setting(None, above=0.0)
    vf_loss_coeff: float = setting(0.5, low=0.0, finite=True)
    entropy_coeff: float = setting(0.0, low=0.0, finite=True)
    entropy_coeff_schedule: list | dict | None = None
    kl_coeff: float = setting(0.2, low=0.0, finite=True)
    kl_target: float = setting(0.01, above=0.0)
    standardize_advantages: bool = True

    def validate(self) -> None:
        """Checks the schedule of the entropy bonus, too."""
        super().validate()
        check_not_negative("entropy_coeff_schedule", self.entropy_coeff_schedule)


class PPOPolicy(ActorCriticPolicy):
    """Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347)."""

    config_class = PPOConfig
    config: PPOConfig

    def loss(
        self, model: Model, dist_class: ActionDistribution, train_batch: TrainBatch
    ) -> LossOutput:
        """L_clip + c_v L_vf + β KL(π_old ‖ π) − c_e H(π)."""
        config = self.config
        output = model(train_batch)
        dist = dist_class(output.dist_inputs)
        old_dist = dist_class(train_batch["action_dist_inputs"])
        targets = train_batch["value_targets"]
        surrogate = clipped_surrogate_loss(
            dist.log_prob(train_batch["actions"]),
            train_batch["action_logp"],
            train_batch["advantages"],
            config.clip_param,
            config.dual_clip,
        )
        if config.vf_clip_param is None:
            value_loss = squared_value_loss(output.vf_preds, targets)
        else:
            value_loss = clipped_value_loss(
                output.vf_preds, train_batch["vf_preds"], targets, config.vf_clip_param
            )
        kl, entropy = old_dist.kl(dist), dist.entropy()
        loss = surrogate + config.vf_loss_coeff * value_loss
        loss -= train_batch.coefficients["entropy_coeff"] * entropy
        if config.kl_coeff > 0.0:
            loss += train_batch.coefficients["kl_coeff"] * kl
        stats = {"policy_loss": surrogate, "vf_loss": value_loss, "kl": kl, "entropy": entropy}
        moments = value_moments(output.vf_preds, targets)
        return LossOutput(train_batch.mean(loss), {**stats, **moments})

    def gae_lambda(self) -> float:
        """1 without generalised advantage estimation: returns minus values."""
        return self.config.lambda_ if self.config.use_gae else 1.0

    def prepare_train_batch(self, batch: SampleBatch) -> SampleBatch:
        """Standardises the advantages over the whole batch."""
        if not self.config.standardize_advantages or "advantages" not in batch:
            return batch
        prepared = SampleBatch(batch)
        prepared["advantages"] = standardize(batch["advantages"])
        return prepared

    def coefficient_sources(self) -> dict[str, Schedule | float]:
        """The entropy bonus follows its schedule, the KL penalty is adapted."""
        config = self.config
        spec = config.entropy_coeff_schedule
        entropy_coeff = make_schedule(config.entropy_coeff if spec is None else spec)
        return {"entropy_coeff": entropy_coeff, "kl_coeff": config.kl_coeff}

    def update_kl(self, sampled_kl: float) -> float:
        """Raises the KL coefficient by half above twice the target, halves it below half of it.

        It stays within 1e-4 and 1e4.

        Args:
            sampled_kl: Mean KL(π_old ‖ π) in nats over the last epoch.

        Returns:
            The coefficient now.
        """
        coefficient = self.coefficients.current["kl_coeff"]
        if self.config.kl_coeff == 0.0:
            return coefficient
        if sampled_kl > 2.0 * self.config.kl_target:
            coefficient *= 1.5
        elif sampled_kl < 0.5 * self.config.kl_target:
            coefficient *= 0.5
        # Halved again and again it would reach 0, from where nothing brings it back.
        coefficient = min(max(coefficient, _KL_COEFF_RANGE[0]), _KL_COEFF_RANGE[1])
        self.set_coefficient("kl_coeff", coefficient)
        return coefficient

    def on_train_batch_end(self, learner_stats: Mapping[str, float]) -> None:
        """Adapts the KL coefficient, once per train batch."""
        self.update_kl(learner_stats["kl"])
