"""Which devices the towers of a policy are on."""

from __future__ import annotations

import tensorflow as tf


def tower_devices(num_gpus: int, fake_gpus: bool) -> list[str | None]:
    """The device of each tower; a single tower without a GPU is left to TensorFlow.

    Args:
        num_gpus: How many towers are asked for; 0 and 1 both mean one tower.
        fake_gpus: Whether CPU devices stand in for GPUs.

    Raises:
        ValueError: There are fewer GPUs than asked for.
    """
    if num_gpus == 0:
        return [None]
    if fake_gpus:
        return [None] if num_gpus == 1 else [f"/CPU:{index}" for index in range(num_gpus)]
    present = num_gpus_present()
    if present < num_gpus:
        raise ValueError(
            f"`num_gpus` is {num_gpus}, but TensorFlow sees {present} on this machine. Ask for "
            f"fewer, or set `fake_gpus=True` to put the towers on the CPU."
        )
    return [f"/GPU:{index}" for index in range(num_gpus)]


def num_gpus_present() -> int:
    """How many GPUs TensorFlow sees on this machine."""
    return len(tf.config.list_physical_devices("GPU"))
