"""LSTM and GRU networks over fully connected or convolutional ones."""

from __future__ import annotations

from typing import Any

import tf_keras

from tfpolicy.models.cells import GRU, LSTM, Cell
from tfpolicy.models.layers import keras_log_std
from tfpolicy.models.previous import PreviousStep
from tfpolicy.models.stateful import StatefulModel


class Recurrent(StatefulModel):
    """Has a recurrent cell `lstm` or `gru` for a core, and `lstm_value` or `gru_value` for values.

    With `lstm_use_prev_action` and `lstm_use_prev_reward` the cell also sees what the policy did
    and got at the step before.
    """

    cores: list[Cell]

    def keras_model(self) -> tf_keras.Model:
        """The network on whole sequences [B, T, ...], from the initial state on.

        Outputs are those of each step, and the states after the last. There are no states as
        inputs: Keras 3 cannot read a model with them from a file.
        """
        self.layers.over_time = True
        inputs = self.encoder.inputs()
        previous = []
        if self.previous.width:
            previous = [tf_keras.Input((None, self.previous.width), name="previous")]
        hidden: list[Any] = []
        states: list[Any] = []
        for value, cell in zip(self.kinds, self.cores, strict=True):
            features = self.encoder.features(inputs, value)
            if previous:
                features = self.layers.join(f"{cell.layer.name}_in")([features, *previous])
            outputs, *after = cell.layer(features)
            hidden.append(outputs)
            states += after
        outputs = self.logits(hidden[0])
        if self.log_std is not None:
            outputs = keras_log_std(outputs)
        return tf_keras.Model(
            [*inputs, *previous], [outputs, self.values(hidden[-1]), *states], name="recurrent"
        )

    def _make_previous(self) -> PreviousStep:
        config = self.config
        return PreviousStep(
            self.action_space, config.lstm_use_prev_action, config.lstm_use_prev_reward
        )

    def _make_core(self, num_inputs: int, value: bool) -> Cell:
        cell_class, name = (GRU, "gru") if self.config.use_gru else (LSTM, "lstm")
        name = f"{name}_value" if value else name
        return cell_class(name, num_inputs, self.config.lstm_cell_size, self.layer_seed)
