"""Keras layers with fixed names and seeds, and what several models make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

HIDDEN_GAIN = 2**0.5
# A small head spreads the first actions evenly (Andrychowicz et al. 2021, arXiv:2006.05990).
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


class LayerMaker:
    """Makes the layers of one model, each name once; weights start orthogonal.

    Args:
        seed_of: Gives the seed of a layer by its name.

    Attributes:
        over_time: Whether layers are now asked for to be called on [B, T, ...].
    """

    def __init__(self, seed_of: Callable[[str], int]):
        self.over_time = False
        self._seed_of = seed_of
        self._made: dict[str, Any] = {}

    def dense(self, name: str, width: int, activation: str | None, gain: float) -> Any:
        """A fully connected layer on the last axis."""
        return self._layer(
            tf_keras.layers.Dense,
            name,
            units=width,
            activation=activation,
            kernel_initializer=self._initializer(name, gain),
        )

    def built_dense(
        self, name: str, num_inputs: int, width: int, activation: str | None, gain: float
    ) -> Any:
        """A fully connected layer that has its variables, to be called on tensors."""
        layer = self.dense(name, width, activation, gain)
        # With the slash the scope is not made unique.
        with tf.name_scope(f"{name}/"):
            layer.build((None, num_inputs))
        return layer

    def conv(
        self,
        name: str,
        channels: int,
        kernel: Any,
        stride: Any,
        padding: str,
        activation: str | None,
        gain: float,
    ) -> Any:
        """A convolution over [B, H, W, C]."""
        convolution = self._layer(
            tf_keras.layers.Conv2D,
            name,
            filters=channels,
            kernel_size=kernel,
            strides=stride,
            padding=padding,
            data_format="channels_last",
            activation=activation,
            kernel_initializer=self._initializer(name, gain),
        )
        return self._each_step(convolution)

    def flatten(self, name: str) -> Any:
        """Makes one vector of [B, H, W, C]."""
        return self._each_step(self._layer(tf_keras.layers.Flatten, name))

    def join(self, name: str) -> Any:
        """Concatenates vectors."""
        return self._layer(tf_keras.layers.Concatenate, name)

    def hidden(self, features: Any, prefix: str, widths: Sequence[int], activation: str) -> Any:
        """Fully connected layers `<prefix>_1..n` on `features`."""
        for index, width in enumerate(widths, start=1):
            features = self.dense(f"{prefix}_{index}", width, activation, HIDDEN_GAIN)(features)
        return features

    def _initializer(self, name: str, gain: float) -> Any:
        return tf_keras.initializers.Orthogonal(gain, seed=self._seed_of(name))

    def _layer(self, layer_class: Any, name: str, **options: Any) -> Any:
        if name not in self._made:
            # Whatever the user has set for the Keras networks of their own.
            self._made[name] = layer_class(name=name, dtype="float32", **options)
        return self._made[name]

    def _each_step(self, layer: Any) -> Any:
        if not self.over_time:
            return layer
        return tf_keras.layers.TimeDistributed(layer, name=layer.name)


def free_log_std(num_outputs: int) -> tf.Variable:
    """The second half of `num_outputs` distribution inputs as a variable: one per action dimension.

    It starts at 0, a standard deviation of 1.
    """
    zeros = np.zeros(num_outputs // 2, np.float32)
    return tf.compat.v1.get_variable("log_std", initializer=zeros, use_resource=True)


def append_log_std(means: tf.Tensor, log_std: tf.Variable | None) -> tf.Tensor:
    """Distribution inputs [B, 2 D] of `means` [B, D]; without a `log_std` they are complete."""
    if log_std is None:
        return means
    return tf.concat([means, tf.zeros_like(means) + log_std], axis=-1)


def keras_log_std(means: Any) -> Any:
    """What `append_log_std` does as Keras layers, on a Keras tensor."""
    # The only layer of both Keras versions with one vector, the offset of what is all zeros.
    zeros = tf_keras.layers.Subtract(name="zeros")([means, means])
    log_std = tf_keras.layers.LayerNormalization(scale=False, name="log_std")(zeros)
    return tf_keras.layers.Concatenate(name="dist_inputs")([means, log_std])
