"""Recurrent cells: the equations of one step, and running them over padded sequences."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf
import tf_keras

from tfpolicy.models.stateful import Core, Sequences, States


class Cell(Core):
    """A recurrent cell with the weights of a Keras layer, `<name>/lstm_cell/kernel` for instance.

    Keras would run it in a loop even over a single step, which an exported graph must not have.

    Args:
        name: Of the Keras layer.
        num_inputs: Width of the inputs.
        units: Width of the output, and of each state.
        seed_of: Gives the seed of a layer by its name.
    """

    # The output is the first of them.
    num_states: ClassVar[int]
    layer_class: ClassVar[type[tf_keras.layers.Layer]]

    def __init__(self, name: str, num_inputs: int, units: int, seed_of: Callable[[str], int]):
        super().__init__(name)
        self.width = units
        seed = seed_of(name)
        self.layer = self.layer_class(
            units,
            kernel_initializer=tf_keras.initializers.GlorotUniform(seed),
            recurrent_initializer=tf_keras.initializers.Orthogonal(seed=seed),
            return_sequences=True,
            return_state=True,
            name=name,
        )
        # With the slash the scope is not made unique: a module of this name already has it.
        with tf.name_scope(f"{name}/"):
            self.layer.build((None, None, num_inputs))

    def initial_state(self) -> list[np.ndarray]:
        """Zeros."""
        return [np.zeros(self.width, np.float32) for _ in range(self.num_states)]

    def __call__(
        self, inputs: tf.Tensor, states: Sequence[tf.Tensor], sequences: Sequences
    ) -> tuple[tf.Tensor, States]:
        """Runs step by step; a single step takes no loop."""
        projected = self.project(inputs)
        length = sequences.max_seq_len
        if length == 1:
            after = self.step(projected, tuple(states))
            return after[0], after
        by_time = tf.reshape(projected, [-1, length, projected.shape[1]])
        elements = [tf.transpose(by_time, [1, 0, 2])]
        if sequences.burn_in is not None:
            elements.append(tf.transpose(sequences.burn_in))

        def step(before: States, x_and_warming: tuple[tf.Tensor, ...]) -> States:
            x, *warming = x_and_warming
            after = self.step(x, before)
            if not warming:
                return after
            return tuple(tf.where(warming[0][:, None], tf.stop_gradient(a), a) for a in after)

        # A loop, since unrolled it takes a minute to compile for 20 steps, and four for 64.
        scanned = tf.scan(step, elements, tuple(states))
        by_sequence = [tf.transpose(state, [1, 0, 2]) for state in scanned]
        last = sequences.seq_lens - 1
        after = tuple(tf.gather(state, last, batch_dims=1) for state in by_sequence)
        return tf.reshape(by_sequence[0], [-1, self.width]), after

    @abc.abstractmethod
    def project(self, inputs: tf.Tensor) -> tf.Tensor:
        """What of a step depends on its inputs [..., F] alone, [..., G]."""

    @abc.abstractmethod
    def step(self, projected: tf.Tensor, states: States) -> States:
        """The states [S, H] after one more step.

        Args:
            projected: [S, G], what `project` gave for the step.
            states: [S, H] before it.
        """


class LSTM(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber 1997); the states are h and c.

    c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c') with (i, f, g, o) = x W + h U + b. The bias of f
    starts at 1, so that the cell starts by remembering.
    """

    num_states = 2
    layer_class = tf_keras.layers.LSTM

    def project(self, inputs: tf.Tensor) -> tf.Tensor:
        """The inputs' share of all gates, x W + b."""
        cell = self.layer.cell
        return inputs @ cell.kernel + cell.bias

    def step(self, projected: tf.Tensor, states: States) -> States:
        """Returns h' and c'."""
        h, c = states
        gates = projected + h @ self.layer.cell.recurrent_kernel
        i, f, g, o = tf.split(gates, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(c), c


class GRU(Cell):
    """Gated recurrent unit (Cho et al. 2014, arXiv:1406.1078), in the form of cuDNN.

    h' = z h + (1 − z) tanh(x W_h + b_h + r (h U_h + b'_h)), where z and r are σ(x W + b + h U + b')
    with weights of their own.
    """

    num_states = 1
    layer_class = tf_keras.layers.GRU

    def project(self, inputs: tf.Tensor) -> tf.Tensor:
        """The inputs' share of all gates, x W + b."""
        cell = self.layer.cell
        return inputs @ cell.kernel + cell.bias[0]

    def step(self, projected: tf.Tensor, states: States) -> States:
        """Returns h'."""
        (h,) = states
        cell = self.layer.cell
        z, r, candidate = tf.split(projected, 3, axis=1)
        from_z, from_r, from_candidate = tf.split(
            h @ cell.recurrent_kernel + cell.bias[1], 3, axis=1
        )
        z = tf.sigmoid(z + from_z)
        candidate = tf.tanh(candidate + tf.sigmoid(r + from_r) * from_candidate)
        return (z * h + (1.0 - z) * candidate,)
