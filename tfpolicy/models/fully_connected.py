"""Fully connected networks for the policy and its value function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf
import tf_keras

from tfpolicy.config import ModelConfig
from tfpolicy.models.base import Model, ModelOutput
from tfpolicy.preprocessing import flatten_observation, num_features


class FullyConnected(Model):
    """Hidden layers `fc_1..n`, heads `fc_out` and `value_out`; values have layers of their own.

    With `vf_share_layers` the value head reads the policy's last hidden layer, else it has its own
    hidden layers `fc_value_1..n`. With `free_log_std` the second half of the outputs is one learned
    number per action dimension, whatever the observation. Weights start orthogonal, the policy's
    head small, so that the first actions are spread evenly (Andrychowicz et al. 2021,
    arXiv:2006.05990).
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        num_outputs: int,
        config: ModelConfig,
        seed: int,
    ):
        super().__init__(observation_space, action_space, num_outputs, config, seed)
        self.log_std = None
        num_heads = num_outputs
        if config.free_log_std:
            num_heads = num_outputs // 2
            self.log_std = tf.compat.v1.get_variable(
                "log_std", initializer=np.zeros(num_heads, np.float32), use_resource=True
            )
        features = tf_keras.Input((num_features(observation_space),), name="observations")
        hidden = self._hidden_layers(features, "fc")
        outputs = self._dense("fc_out", num_heads, None, 0.01)(hidden)
        if not config.vf_share_layers:
            hidden = self._hidden_layers(features, "fc_value")
        values = self._dense("value_out", 1, None, 1.0)(hidden)
        self.network = tf_keras.Model(features, [outputs, values], name="fully_connected")

    def __call__(self, columns: Mapping[str, Any]) -> ModelOutput:
        """Builds the forward pass on `columns["obs"]`."""
        features = flatten_observation(self.observation_space, columns["obs"])
        outputs, values = self.network(features)
        if self.log_std is not None:
            outputs = tf.concat([outputs, tf.zeros_like(outputs) + self.log_std], axis=1)
        return ModelOutput(outputs, tf.squeeze(values, axis=1))

    def keras_model(self) -> tf_keras.Model:
        """The network; its first output is always the whole of `dist_inputs`."""
        if self.log_std is None:
            return self.network
        means, values = self.network.outputs
        # The only layer of both Keras versions with one vector, the offset of what is all zeros.
        zeros = tf_keras.layers.Subtract(name="zeros")([means, means])
        log_std = tf_keras.layers.LayerNormalization(scale=False, name="log_std")(zeros)
        outputs = tf_keras.layers.Concatenate(name="dist_inputs")([means, log_std])
        return tf_keras.Model(self.network.inputs, [outputs, values], name="fully_connected")

    def _hidden_layers(self, features: Any, prefix: str) -> Any:
        hidden = features
        for index, width in enumerate(self.config.fcnet_hiddens, start=1):
            layer = self._dense(f"{prefix}_{index}", width, self.config.fcnet_activation, 2**0.5)
            hidden = layer(hidden)
        return hidden

    def _dense(self, name: str, width: int, activation: str | None, gain: float) -> Any:
        initializer = tf_keras.initializers.Orthogonal(gain, seed=self.layer_seed(name))
        return tf_keras.layers.Dense(
            width, activation=activation, kernel_initializer=initializer, name=name
        )
