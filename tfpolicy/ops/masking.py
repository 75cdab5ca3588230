"""Rows and choices that do not count: padding of sequences, and actions that are not allowed."""

from __future__ import annotations

import tensorflow as tf

# Finite, so that its product with a probability of 0 is 0 and not NaN.
MASKED_LOGIT = -1e9


def fill_padding(x: tf.Tensor, mask: tf.Tensor | None, value: float = 0.0) -> tf.Tensor:
    """Replaces the padded rows of an input by `value`.

    Applied to what enters a nonlinear formula, not to what comes out: the gradient of a masked
    output is 0 times the derivative there, which is NaN where padding makes that infinite.

    Args:
        x: [B, ...].
        mask: [B] bool, False on padding; None: nothing is padded.
        value: Where the formula is harmless.

    Returns:
        [B, ...] in the dtype of `x`; no gradient flows into padded rows.
    """
    if mask is None:
        return x
    mask = tf.reshape(mask, [-1] + [1] * (x.shape.rank - 1)) if x.shape.rank > 1 else mask
    return tf.where(mask, x, tf.cast(value, x.dtype))


def masked_mean(x: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """Mean of `x` over its valid rows; 0 if none is valid.

    Args:
        x: [B] float32. Padded rows may hold anything, NaN too: their gradient is 0, and so is what
            flows further back unless a derivative there is infinite (see `fill_padding`).
        mask: [B] bool, False on padding; None: all rows are valid.

    Returns:
        [] float32.

    Raises:
        ValueError: If `x` and `mask` have different shapes.
    """
    if mask is None:
        return tf.reduce_mean(x)
    if not x.shape.is_compatible_with(mask.shape):
        raise ValueError(f"`mask` must have the shape of `x`, {x.shape}, got {mask.shape}.")
    return _mean_of_valid(x, mask)


def masked_column_means(x: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """What `masked_mean` is of each column of `x`, all at once.

    Args:
        x: [B, K] float32.
        mask: [B] bool, False on padding; None: all rows are valid.

    Returns:
        [K] float32.

    Raises:
        ValueError: If `x` and `mask` have different numbers of rows.
    """
    if mask is None:
        return tf.reduce_mean(x, axis=0)
    if not x.shape[:1].is_compatible_with(mask.shape):
        raise ValueError(f"`mask` must have the rows of `x`, {x.shape}, got {mask.shape}.")
    return _mean_of_valid(x, mask)


def _mean_of_valid(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    count = tf.reduce_sum(tf.cast(mask, x.dtype))
    return tf.reduce_sum(fill_padding(x, mask), axis=0) / tf.maximum(count, 1.0)


def mask_logits(logits: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Gives the choices that are not allowed a logit of -1e9, hence a probability of exactly 0.

    The mask belongs among the observations, so that it is applied alike when acting, in the loss
    and in exports. A row that allows nothing becomes uniform.

    Args:
        logits: [B, n] float32.
        mask: [B, n]; True or nonzero where the choice is allowed.

    Returns:
        [B, n] float32; no gradient flows into masked logits.

    Raises:
        ValueError: If the shapes differ.
    """
    if not logits.shape.is_compatible_with(mask.shape):
        raise ValueError(
            f"`mask` must have the shape of `logits`, {logits.shape}, got {mask.shape}."
        )
    return tf.where(tf.cast(mask, tf.bool), logits, MASKED_LOGIT)
