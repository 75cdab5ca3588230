"""Attention over the last steps of an episode: the gated transformer GTrXL."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfpolicy.config import ModelConfig
from tfpolicy.models.layers import LayerMaker
from tfpolicy.models.previous import PreviousSteps
from tfpolicy.models.stateful import Core, Sequences, StatefulModel, States
from tfpolicy.models.transformer import Unit


class Transformer(Core):
    """Gated transformer layers over a memory (Parisotto et al. 2019, arXiv:1910.06764).

    Each layer attends to what its inputs were at the last `attention_memory_inference` steps (M)
    and at the present one. These inputs are the states, [M, D] for each layer, the oldest first;
    the last state, [1], counts how many of them there are, since the others must not be seen.

    The memory is a state rather than a window over columns, for two reasons. What acts, be it the
    runner or a client of a server, keeps it without knowing what it is: it starts with the state of
    an episode's first step, and nothing leaks from the episode before. And training starts from
    what acting saw: within a sequence a step sees the same steps as when acting, as long as
    `attention_memory_training` is not less than M. The price is that a batch holds M rows for each
    row.

    Args:
        name: Prefix of the layers.
        num_inputs: Width of the inputs.
        config: The model's.
        layers: Makes the layers.
    """

    def __init__(self, name: str, num_inputs: int, config: ModelConfig, layers: LayerMaker):
        super().__init__(name)
        self.width = config.attention_dim
        self._num_remembered = config.attention_memory_inference
        in_training = config.attention_memory_training
        self._num_in_training = self._num_remembered if in_training is None else in_training
        self.embedding = layers.built_dense(f"{name}_in", num_inputs, self.width, None, 1.0)
        self.units = [
            Unit(
                f"{name}_{index}",
                self.width,
                config.attention_num_heads,
                config.attention_head_dim,
                config.attention_position_wise_mlp_dim,
                config.attention_init_gru_gate_bias,
                layers,
            )
            for index in range(1, config.attention_num_transformer_units + 1)
        ]

    def initial_state(self) -> list[np.ndarray]:
        """An empty memory for each layer, and 0."""
        memory = np.zeros((self._num_remembered, self.width), np.float32)
        return [*(memory.copy() for _ in self.units), np.zeros(1, np.float32)]

    def __call__(
        self, inputs: tf.Tensor, states: Sequence[tf.Tensor], sequences: Sequences
    ) -> tuple[tf.Tensor, States]:
        """Attends from each step to the steps before it."""
        *memories, count = states
        length = sequences.max_seq_len
        num_seen = self._num_remembered if length == 1 else self._num_in_training
        allowed = self._allowed(count, length, num_seen)
        x = tf.reshape(self.embedding(inputs), [-1, length, self.width])
        after = []
        for unit, memory in zip(self.units, memories, strict=True):
            if sequences.burn_in is not None:
                x = tf.where(sequences.burn_in[:, :, None], tf.stop_gradient(x), x)
            after.append(self._remembered(memory, x, sequences))
            x = unit(x, memory[:, self._num_remembered - num_seen :], allowed)
        steps = tf.cast(sequences.seq_lens[:, None], tf.float32)
        count = tf.minimum(count + steps, float(self._num_remembered))
        return tf.reshape(x, [-1, self.width]), (*after, count)

    def _allowed(self, count: tf.Tensor, length: int, num_seen: int) -> tf.Tensor:
        """Which of the `num_seen` + T keys each query sees, [S, T, num_seen + T] bool."""
        keys = np.arange(num_seen + length)
        distances = num_seen + np.arange(length)[:, None] - keys
        in_reach = (distances >= 0) & (distances <= self._num_remembered)
        exists = tf.cast(keys, tf.float32) >= float(num_seen) - count
        return tf.logical_and(exists[:, None], in_reach)

    def _remembered(self, memory: tf.Tensor, x: tf.Tensor, sequences: Sequences) -> tf.Tensor:
        """What there was at the last M steps once the sequence is over, [S, M, D]."""
        steps = tf.concat([memory, x], axis=1)
        if sequences.max_seq_len == 1:
            return steps[:, 1:]
        last = sequences.seq_lens[:, None] + np.arange(self._num_remembered)
        return tf.gather(steps, last, batch_dims=1)


class Attention(StatefulModel):
    """Has a gated transformer for a core, `attention` for the policy and `attention_value`.

    With `attention_use_n_prev_actions` and `attention_use_n_prev_rewards` it also sees what the
    policy did and got at so many steps before.
    """

    def _make_previous(self) -> PreviousSteps:
        config = self.config
        return PreviousSteps(
            self.action_space,
            config.attention_use_n_prev_actions,
            config.attention_use_n_prev_rewards,
        )

    def _make_core(self, num_inputs: int, value: bool) -> Transformer:
        name = "attention_value" if value else "attention"
        return Transformer(name, num_inputs, self.config, self.layers)
