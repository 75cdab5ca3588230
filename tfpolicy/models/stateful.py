"""Networks with a state: an encoder, a core that remembers, and two heads."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.config import ModelConfig
from tfpolicy.models.base import Model, ModelOutput
from tfpolicy.models.encoders import encoder_class_for
from tfpolicy.models.layers import (
    POLICY_GAIN,
    VALUE_GAIN,
    LayerMaker,
    append_log_std,
    free_log_std,
)
from tfpolicy.models.previous import PreviousStep, PreviousSteps
from tfpolicy.view_requirement import ViewRequirement

States = tuple[tf.Tensor, ...]


class Sequences(NamedTuple):
    """How rows [S * T] are sequences.

    Attributes:
        seq_lens: [S] int32, positive; padding is behind the steps of a sequence.
        max_seq_len: T; 1 while acting.
        burn_in: [S, T] bool, the steps that only bring the state up to date, or `None`: after them
            no gradient flows from later ones into the state.
    """

    seq_lens: tf.Tensor
    max_seq_len: int
    burn_in: tf.Tensor | None = None


class Core(tf.Module, abc.ABC):
    """What remembers.

    Attributes:
        width: Of the outputs.
    """

    width: int

    @abc.abstractmethod
    def initial_state(self) -> list[np.ndarray]:
        """The states before the first step, without a batch dimension."""

    @abc.abstractmethod
    def __call__(
        self, inputs: tf.Tensor, states: Sequence[tf.Tensor], sequences: Sequences
    ) -> tuple[tf.Tensor, States]:
        """Runs over sequences. No step sees a later one, so that none ever sees padding.

        Args:
            inputs: [S * T, F].
            states: Before each sequence, [S, ...] each.
            sequences: How the inputs are sequences.

        Returns:
            The outputs [S * T, width], and the states after the last step of each sequence.
        """


class StatefulModel(Model):
    """An encoder, a core, and heads `logits` and `values`.

    The encoder is that of the network without memory. With `vf_share_layers` the value head reads
    the policy's core, else it has an encoder and a core of its own, whose states follow those of
    the policy.

    A sequence starts from the state that acting stored with its first row, and gradients flow back
    to its beginning, or with `burn_in` to the first row that is learned from.
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
        self.layers = LayerMaker(self.layer_seed)
        encoder_class = encoder_class_for(observation_space, config)
        self.encoder = encoder_class(observation_space, config, self.layers)
        self.previous = self._make_previous()
        self.log_std = free_log_std(num_outputs) if config.free_log_std else None
        num_heads = num_outputs if self.log_std is None else num_outputs // 2
        # The policy first; the value function too, if it has layers of its own.
        self.kinds = [False] if config.vf_share_layers else [False, True]
        self.networks = [self.encoder.network(value) for value in self.kinds]
        self.cores = [
            self._make_core(network.output_shape[-1] + self.previous.width, value)
            for network, value in zip(self.networks, self.kinds, strict=True)
        ]
        width = self.cores[0].width
        self.logits = self.layers.built_dense("logits", width, num_heads, None, POLICY_GAIN)
        self.values = self.layers.built_dense("values", width, 1, None, VALUE_GAIN)

    @abc.abstractmethod
    def _make_previous(self) -> PreviousStep | PreviousSteps:
        """What of earlier steps is an input of the core."""

    @abc.abstractmethod
    def _make_core(self, num_inputs: int, value: bool) -> Core:
        """Makes the core of the policy, or of the value function."""

    def __call__(self, columns: Mapping[str, Any]) -> ModelOutput:
        """Builds the forward pass on sequences of observations, from `state_in_i` on."""
        tensors = self.encoder.tensors(columns["obs"])
        previous = self.previous.tensors(columns)
        sequences = self._sequences(columns)
        hidden, states_out = [], ()
        for network, core in zip(self.networks, self.cores, strict=True):
            features = network(tensors)
            inputs = tf.concat([features, *previous], axis=1) if previous else features
            first = len(states_out)
            states = [columns[f"state_in_{first + i}"] for i in range(len(core.initial_state()))]
            outputs, after = core(inputs, states, sequences)
            hidden.append(outputs)
            states_out += after
        outputs = append_log_std(self.logits(hidden[0]), self.log_std)
        return ModelOutput(outputs, tf.squeeze(self.values(hidden[-1]), axis=1), states_out)

    def initial_state(self) -> list[np.ndarray]:
        """Those of the cores."""
        return [state for core in self.cores for state in core.initial_state()]

    def view_requirements(self) -> dict[str, ViewRequirement]:
        """Those of earlier steps."""
        return self.previous.views()

    def named_networks(self) -> dict[str, list[tf.Variable]]:
        """The "policy" and the "value" network, of which layers and core may be the same."""
        log_std = [] if self.log_std is None else [self.log_std]
        policy = [*self.networks[0].variables, *self.cores[0].variables, *self.logits.variables]
        value = [*self.networks[-1].variables, *self.cores[-1].variables, *self.values.variables]
        return {"policy": [*policy, *log_std], "value": value}

    def _sequences(self, columns: Mapping[str, Any]) -> Sequences:
        length = columns["max_seq_len"]
        burn_in = None
        if self.config.burn_in and length > 1:
            burn_in = tf.reshape(columns["burn_in"], [-1, length])
        return Sequences(columns["seq_lens"], length, burn_in)
