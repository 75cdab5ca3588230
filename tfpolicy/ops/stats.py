"""Statistics of batches and gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# Below it differences between advantages are rounding errors, which must not be blown up to size 1.
MIN_STD = 1e-4
# Below it a dimension is a constant, with the dust of some simulator's arithmetic on it.
MIN_VARYING_STD = 1e-8


def explained_variance(
    residual_mean: float, residual_sq_mean: float, target_mean: float, target_sq_mean: float
) -> float:
    """Share of the variance of the targets that the values explain: 1 - Var(y - v) / Var(y).

    It takes moments, because moments averaged over towers are the moments of all rows, whereas
    variances averaged over towers are not the variance of all rows.

    Args:
        residual_mean: Mean of y - v.
        residual_sq_mean: Mean of (y - v)².
        target_mean: Mean of y.
        target_sq_mean: Mean of y².

    Returns:
        At most 1. If all y are alike: 1 if the residuals are alike, too, else 0.
    """
    residual_variance = _variance(residual_mean, residual_sq_mean)
    target_variance = _variance(target_mean, target_sq_mean)
    if target_variance == 0.0:
        return 1.0 if residual_variance == 0.0 else 0.0
    return 1.0 - residual_variance / target_variance


def standardize(x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Shifts and scales to mean 0 and standard deviation 1: (x - mean) / max(std, 1e-4).

    Args:
        x: [B] float.
        mask: [B] bool, False on padding, which counts in neither moment; None: nothing is padded.

    Returns:
        [B] float32, or float64 if `x` is; 0 on padding. A single valid row, which has no deviation,
        stays as it is.
    """
    x = np.asarray(x)
    valid = np.ones(x.shape, bool) if mask is None else np.asarray(mask, bool)
    rows = x[valid].astype(np.float64)
    result = np.zeros(x.shape, np.result_type(x, np.float32))
    if rows.size > 1:
        rows = (rows - rows.mean()) / max(rows.std(), MIN_STD)
    result[valid] = rows
    return result


def normalize(
    x: tf.Tensor, count: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, clip: float | None
) -> tf.Tensor:
    """(x − μ) / σ, clipped to ±`clip`; without moments, when `count` is 0, x as it is.

    A dimension that does not vary (σ ≤ 1e-8) is only shifted. It is computed in float64 where
    float32 cannot tell the values of x from one another.

    Args:
        x: [B, ..., *D], numbers of any dtype.
        count: [] int64, of how many rows the moments are.
        mean: [*D] float64, μ.
        variance: [*D] float64, σ².
        clip: A positive number; None clips nothing.

    Returns:
        [B, ..., *D] float32; NaN where x is.
    """
    wide = np.result_type(x.dtype.as_numpy_dtype, np.float32) == np.float64
    dtype = tf.float64 if wide else tf.float32
    std = tf.sqrt(variance)
    std = tf.where(std > MIN_VARYING_STD, std, tf.ones_like(std))
    y = (tf.cast(x, dtype) - tf.cast(mean, dtype)) / tf.cast(std, dtype)
    y = tf.cast(y, tf.float32)
    if clip is not None:
        y = tf.clip_by_value(y, -clip, clip)
    return tf.where(count > 0, y, tf.cast(x, tf.float32))


def global_norm_clip(
    grads: Sequence[tf.Tensor | None], max_norm: float | None
) -> tuple[list[tf.Tensor | None], tf.Tensor]:
    """Scales all gradients by min(1, max_norm / ‖g‖), ‖g‖ being the norm over all of them together.

    Pascanu et al. (2013), https://arxiv.org/abs/1211.5063.

    Args:
        grads: One gradient per variable; None where the loss does not depend on the variable.
        max_norm: A positive number; None clips nothing.

    Returns:
        The gradients, with None in the same places, and their norm before clipping, [] float32.

    Raises:
        ValueError: If `max_norm` is not positive.
    """
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"`max_norm` must be positive or None, got {max_norm}.")
    norm = tf.linalg.global_norm(grads)
    if max_norm is None:
        return list(grads), norm
    clipped, _ = tf.clip_by_global_norm(grads, max_norm, use_norm=norm)
    return list(clipped), norm


def _variance(mean: float, sq_mean: float) -> float:
    """Variance E[x²] - E[x]², 0 where it is less than the rounding error of float32 moments."""
    variance = float(sq_mean) - float(mean) ** 2
    return 0.0 if variance <= 1e-6 * float(sq_mean) else variance
