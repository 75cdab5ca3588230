"""Checks shared by all formulas."""

from __future__ import annotations

import tensorflow as tf


def check_rows(**tensors: tf.Tensor) -> None:
    """Refuses tensors that would broadcast where every one of them should be [B].

    Raises:
        ValueError: If one is known not to be of rank 1, or two are known to differ in length.
    """
    shape = tf.TensorShape([None])
    for name, tensor in tensors.items():
        if not tensor.shape.is_compatible_with(shape):
            shapes = ", ".join(f"`{name}` {t.shape}" for name, t in tensors.items())
            raise ValueError(f"`{name}` must be [B], with the same B in all of them, got {shapes}.")
        shape = shape.merge_with(tensor.shape)
