"""Networks without memory: an encoder, and a head each for the policy and its value function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import tensorflow as tf
import tf_keras

from tfpolicy.config import ModelConfig
from tfpolicy.models.base import Model, ModelOutput
from tfpolicy.models.encoder import Encoder
from tfpolicy.models.layers import (
    POLICY_GAIN,
    VALUE_GAIN,
    LayerMaker,
    append_log_std,
    free_log_std,
    keras_log_std,
)


class FeedForward(Model):
    """An encoder with two heads.

    With `vf_share_layers` the value head reads the policy's features, else it has an encoder of its
    own. With `free_log_std` the second half of the outputs is one learned number per action
    dimension, whatever the observation.
    """

    encoder_class: ClassVar[type[Encoder]]
    # Of the Keras network.
    name: ClassVar[str]

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        num_outputs: int,
        config: ModelConfig,
        seed: int,
    ):
        super().__init__(observation_space, action_space, num_outputs, config, seed)
        self.log_std = free_log_std(num_outputs) if config.free_log_std else None
        num_heads = num_outputs if self.log_std is None else num_outputs // 2
        encoder = self.encoder_class(observation_space, config, LayerMaker(self.layer_seed))
        policy_head, value_head, shared_value_head = encoder.head_names
        inputs = encoder.inputs()
        features = encoder.features(inputs)
        outputs = encoder.head(policy_head, features, num_heads, POLICY_GAIN)
        if config.vf_share_layers:
            value_head = shared_value_head
        else:
            features = encoder.features(inputs, value=True)
        values = encoder.head(value_head, features, 1, VALUE_GAIN)
        self._tensors = encoder.tensors
        self.network = tf_keras.Model(inputs, [outputs, values], name=self.name)

    def __call__(self, columns: Mapping[str, Any]) -> ModelOutput:
        """Builds the forward pass on `columns["obs"]`."""
        outputs, values = self.network(self._tensors(columns["obs"]))
        return ModelOutput(append_log_std(outputs, self.log_std), tf.squeeze(values, axis=1))

    def keras_model(self) -> tf_keras.Model:
        """The network; its first output is always the whole of `dist_inputs`."""
        if self.log_std is None:
            return self.network
        means, values = self.network.outputs
        return tf_keras.Model(self.network.inputs, [keras_log_std(means), values], name=self.name)

    def named_networks(self) -> dict[str, list[tf.Variable]]:
        """The "policy" and the "value" network; shared layers are in both."""
        outputs, values = self.network.outputs
        log_std = [] if self.log_std is None else [self.log_std]
        return {
            "policy": [*tf_keras.Model(self.network.inputs, outputs).variables, *log_std],
            "value": list(tf_keras.Model(self.network.inputs, values).variables),
        }
