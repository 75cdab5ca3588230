"""Losses of policy-gradient methods, one value per row: a mean over the valid rows is the loss."""

from __future__ import annotations

import tensorflow as tf

from tfpolicy.ops.base import check_rows

# e^20 is far outside of any trust region, yet its product with an advantage does not overflow.
MAX_LOG_RATIO = 20.0


def policy_gradient_loss(logp: tf.Tensor, advantages: tf.Tensor) -> tf.Tensor:
    """Policy-gradient loss of REINFORCE and advantage actor-critic: L = -log π(a|s) A.

    Williams (1992), https://doi.org/10.1007/BF00992696, with a return in the place of A;
    Mnih et al. (2016), https://arxiv.org/abs/1602.01783.

    Args:
        logp: [B] float32, log-probabilities of the taken actions.
        advantages: [B] float32; no gradient flows into them.

    Returns:
        [B] float32.
    """
    check_rows(logp=logp, advantages=advantages)
    return -logp * tf.stop_gradient(advantages)


def probability_ratio(logp: tf.Tensor, logp_old: tf.Tensor) -> tf.Tensor:
    """Ratio r = π(a|s) / π_old(a|s) = exp(log π - log π_old), with the difference clamped to ±20.

    Args:
        logp: [B] float32, log-probabilities of the taken actions now.
        logp_old: [B] float32, those when they were taken; no gradient flows into them.

    Returns:
        [B] float32; the gradient is 0 where the clamp acts.
    """
    check_rows(logp=logp, logp_old=logp_old)
    difference = logp - tf.stop_gradient(logp_old)
    return tf.exp(tf.clip_by_value(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def clipped_surrogate_loss(
    logp: tf.Tensor,
    logp_old: tf.Tensor,
    advantages: tf.Tensor,
    clip_param: float | tf.Tensor,
    dual_clip: float | None = None,
) -> tf.Tensor:
    """Clipped surrogate loss of PPO: L = -min(r A, clip(r, 1 - ε, 1 + ε) A).

    Schulman et al. (2017), https://arxiv.org/abs/1707.06347, equation 7; r is `probability_ratio`.
    Where A < 0 the loss grows with r without bound. The dual clip of Ye et al. (2020),
    https://arxiv.org/abs/1912.09729, bounds it: L = -max(min(r A, …), c A) if A < 0.

    Args:
        logp: [B] float32, log-probabilities of the taken actions now.
        logp_old: [B] float32, those when they were taken; no gradient flows into them.
        advantages: [B] float32; no gradient flows into them.
        clip_param: ε > 0.
        dual_clip: c > 1, or None for none.

    Returns:
        [B] float32.

    Raises:
        ValueError: If ε or c is out of range.
    """
    check_rows(logp=logp, logp_old=logp_old, advantages=advantages)
    if isinstance(clip_param, (int, float)) and not clip_param > 0:
        raise ValueError(f"`clip_param` must be positive, got {clip_param}.")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"`dual_clip` must be greater than 1, got {dual_clip}.")
    advantages = tf.stop_gradient(advantages)
    ratio = probability_ratio(logp, logp_old)
    clipped_ratio = tf.clip_by_value(ratio, 1.0 - clip_param, 1.0 + clip_param)
    objective = tf.minimum(ratio * advantages, clipped_ratio * advantages)
    if dual_clip is not None:
        bounded = tf.maximum(objective, dual_clip * advantages)
        objective = tf.where(advantages < 0.0, bounded, objective)
    return -objective
