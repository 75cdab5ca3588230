"""Losses of value functions, one value per row: a mean over the valid rows is the loss."""

from __future__ import annotations

import tensorflow as tf

from tfpolicy.ops.base import check_rows


def squared_value_loss(values: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Squared error L = (V(s) - V_target)², without a factor ½, as in the papers on A2C and PPO.

    Mnih et al. (2016), https://arxiv.org/abs/1602.01783; Schulman et al. (2017),
    https://arxiv.org/abs/1707.06347, equation 9.

    Args:
        values: [B] float32, V(s).
        targets: [B] float32; no gradient flows into them.

    Returns:
        [B] float32.
    """
    check_rows(values=values, targets=targets)
    return tf.square(values - tf.stop_gradient(targets))


def clipped_value_loss(
    values: tf.Tensor, old_values: tf.Tensor, targets: tf.Tensor, clip: float | tf.Tensor
) -> tf.Tensor:
    """Value loss of the PPO2 code: the change of V is clipped, and the worse of both errors counts.

    L = max((V - V_target)², (V_clip - V_target)²) with V_clip = V_old + clip(V - V_old, -ε, ε).

    Not in the paper on PPO but in its code (https://github.com/openai/baselines, `ppo2/model.py`);
    Engstrom et al. (2020), https://arxiv.org/abs/2005.12729, study it. ε bounds how far it pays to
    move V towards its target, neither the loss nor its gradient: the gradient is 0 where V is
    outside of V_old ± ε and nearer to the target than V_clip, and the plain one everywhere else.

    Args:
        values: [B] float32, V(s) now.
        old_values: [B] float32, V_old(s) when the batch was collected; no gradient flows into them.
        targets: [B] float32; no gradient flows into them.
        clip: ε > 0, in the unit of the values.

    Returns:
        [B] float32.

    Raises:
        ValueError: If ε is not positive.
    """
    check_rows(values=values, old_values=old_values, targets=targets)
    if isinstance(clip, (int, float)) and not clip > 0:
        raise ValueError(f"`clip` must be positive, got {clip}.")
    targets = tf.stop_gradient(targets)
    old_values = tf.stop_gradient(old_values)
    clipped_values = old_values + tf.clip_by_value(values - old_values, -clip, clip)
    return tf.maximum(tf.square(values - targets), tf.square(clipped_values - targets))
