"""LSTM and GRU networks over fully connected or convolutional ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf
import tf_keras

from tfpolicy.config import ModelConfig
from tfpolicy.models.base import Model, ModelOutput
from tfpolicy.models.cells import GRU, LSTM, Cell, States, run
from tfpolicy.models.encoders import encoder_class_for
from tfpolicy.models.layers import (
    POLICY_GAIN,
    VALUE_GAIN,
    LayerMaker,
    append_log_std,
    free_log_std,
    keras_log_std,
)
from tfpolicy.models.previous import PreviousStep


class Recurrent(Model):
    """An encoder, a recurrent cell `lstm` or `gru`, and heads `logits` and `values`.

    The encoder is that of the network without memory. With `lstm_use_prev_action` and
    `lstm_use_prev_reward` the cell also sees what the policy did and got at the step before. With
    `vf_share_layers` the value head reads the policy's cell, else it has an encoder and a cell
    `lstm_value` of its own, whose states follow those of the policy.

    A sequence starts from the state that acting stored with its first row, and gradients flow back
    to its beginning. With `burn_in` they stop where the rows begin that are learned from.
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
        layers = LayerMaker(self.layer_seed)
        encoder_class = encoder_class_for(observation_space, config)
        self._encoder = encoder_class(observation_space, config, layers)
        self._previous = PreviousStep(
            action_space, config.lstm_use_prev_action, config.lstm_use_prev_reward
        )
        self.log_std = free_log_std(num_outputs) if config.free_log_std else None
        num_heads = num_outputs if self.log_std is None else num_outputs // 2
        # The policy first; the value function too, if it has layers of its own.
        self._kinds = [False] if config.vf_share_layers else [False, True]
        self.networks = [self._encoder.network(value) for value in self._kinds]
        self.cells = [
            self._cell(network, value)
            for network, value in zip(self.networks, self._kinds, strict=True)
        ]
        self.logits = layers.dense("logits", num_heads, None, POLICY_GAIN)
        self.values = layers.dense("values", 1, None, VALUE_GAIN)
        for head in (self.logits, self.values):
            head(tf_keras.Input((config.lstm_cell_size,)))

    def __call__(self, columns: Mapping[str, Any]) -> ModelOutput:
        """Builds the forward pass on sequences of observations, from `state_in_i` on."""
        tensors = self._encoder.tensors(columns["obs"])
        previous = self._previous.tensors(columns)
        hidden, states_out = [], ()
        for network, cell in zip(self.networks, self.cells, strict=True):
            inputs = tf.concat([network(tensors), *previous], axis=1)
            first = len(states_out)
            states = [columns[f"state_in_{first + i}"] for i in range(cell.num_states)]
            outputs, after = self._run(cell, inputs, states, columns)
            hidden.append(outputs)
            states_out += after
        outputs = append_log_std(self.logits(hidden[0]), self.log_std)
        return ModelOutput(outputs, tf.squeeze(self.values(hidden[-1]), axis=1), states_out)

    def initial_state(self) -> list[np.ndarray]:
        """Zeros, [units] for each state of each cell."""
        units = self.config.lstm_cell_size
        return [np.zeros(units, np.float32) for cell in self.cells for _ in range(cell.num_states)]

    def keras_model(self) -> tf_keras.Model:
        """The network on whole sequences [B, T, ...], from the initial state on.

        Outputs are those of each step, and the states after the last. There are no states as
        inputs: Keras 3 cannot read a model with them from a file.
        """
        layers = self._encoder.layers
        layers.over_time = True
        inputs = self._encoder.inputs()
        previous = []
        if self._previous.width:
            previous = [tf_keras.Input((None, self._previous.width), name="previous")]
        hidden: list[Any] = []
        states: list[Any] = []
        for value, cell in zip(self._kinds, self.cells, strict=True):
            features = self._encoder.features(inputs, value)
            if previous:
                features = layers.join(f"{cell.layer.name}_in")([features, *previous])
            outputs, *after = cell.layer(features)
            hidden.append(outputs)
            states += after
        outputs = self.logits(hidden[0])
        if self.log_std is not None:
            outputs = keras_log_std(outputs)
        return tf_keras.Model(
            [*inputs, *previous], [outputs, self.values(hidden[-1]), *states], name="recurrent"
        )

    def _cell(self, network: tf_keras.Model, value: bool) -> Cell:
        cell_class, name = (GRU, "gru") if self.config.use_gru else (LSTM, "lstm")
        return cell_class(
            f"{name}_value" if value else name,
            network.output_shape[-1] + self._previous.width,
            self.config.lstm_cell_size,
            self.layer_seed,
        )

    def _run(
        self, cell: Cell, inputs: tf.Tensor, states: list[tf.Tensor], columns: Mapping[str, Any]
    ) -> tuple[tf.Tensor, States]:
        length = columns["max_seq_len"]
        burn_in = None
        if self.config.burn_in and length > 1:
            burn_in = tf.reshape(columns["burn_in"], [-1, length])
        return run(cell, inputs, states, columns["seq_lens"], length, burn_in)
