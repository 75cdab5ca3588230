"""LSTM and GRU: their equations, and running them over padded sequences."""

import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.models.cells import GRU, LSTM
from tfpolicy.models.stateful import Sequences

INPUTS, UNITS = 3, 4
LENGTHS = np.int32([4, 1, 3])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_reference(x, states, kernel, recurrent, bias):
    h, c = states
    i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_reference(x, states, kernel, recurrent, bias):
    (h,) = states
    x_z, x_r, x_h = np.split(x @ kernel + bias[0], 3)
    h_z, h_r, h_h = np.split(h @ recurrent + bias[1], 3)
    z, r = sigmoid(x_z + h_z), sigmoid(x_r + h_r)
    return (z * h + (1 - z) * np.tanh(x_h + r * h_h),)


CELLS = {"lstm": (LSTM, lstm_reference), "gru": (GRU, gru_reference)}


class Ran:
    """A cell with random weights, run over sequences padded to `length` from random states."""

    def __init__(self, kind, length, burn_in=None):
        cell_class, self.reference = CELLS[kind]
        rng = np.random.default_rng(0)
        self.inputs = rng.normal(0, 1, (len(LENGTHS), length, INPUTS)).astype(np.float32)
        self.states = [
            rng.normal(0, 1, (len(LENGTHS), UNITS)).astype(np.float32)
            for _ in range(cell_class.num_states)
        ]
        lengths = np.minimum(LENGTHS, length)
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            cell = cell_class(kind, INPUTS, UNITS, lambda name: 1)
            variables = graph.get_collection("variables")
            rows = tf.constant(self.inputs.reshape(-1, INPUTS))
            outputs, after = cell(rows, self.states, Sequences(lengths, length, burn_in))
            outputs = tf.reshape(outputs, [len(LENGTHS), length, UNITS])
            (gradient,) = tf.gradients(outputs[0, length - 1], rows)
            self.kinds = {operation.type for operation in graph.get_operations()}
            session.run([v.initializer for v in variables])
            self.initial = dict(
                zip([v.name for v in variables], session.run(variables), strict=True)
            )
            self.weights = [rng.normal(0, 1, v.shape) for v in variables]
            for variable, value in zip(variables, self.weights, strict=True):
                variable.load(value.astype(np.float32), session)
            found = session.run([outputs, after, gradient])
        self.outputs, self.after, self.input_gradient = *found[:2], found[2][:length]

    def by_hand(self):
        """Outputs and states of each sequence, step by step."""
        for s, length in enumerate(LENGTHS):
            states, outputs = [state[s] for state in self.states], []
            for x in self.inputs[s, :length]:
                states = self.reference(x, states, *self.weights)
                outputs.append(states[0])
            yield s, np.array(outputs), states


@pytest.mark.parametrize("length", [4, 6])
@pytest.mark.parametrize("kind", CELLS)
def test_steps_are_those_of_the_equations_and_states_those_after_the_last_one(kind, length):
    ran = Ran(kind, length)
    for s, outputs, states in ran.by_hand():
        np.testing.assert_allclose(ran.outputs[s, : len(outputs)], outputs, rtol=0, atol=2e-6)
        for after, state in zip(ran.after, states, strict=True):
            np.testing.assert_allclose(after[s], state, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", CELLS)
def test_a_single_step_takes_no_loop(kind):
    ran = Ran(kind, 1)
    loops = {name for name in ran.kinds if "While" in name or "TensorList" in name}
    assert not loops and not ran.kinds & {"Switch", "Merge", "Enter", "If", "StatelessIf"}
    for s in range(len(LENGTHS)):
        states = [state[s] for state in ran.states]
        expected = ran.reference(ran.inputs[s, 0], states, *ran.weights)
        for after, state in zip(ran.after, expected, strict=True):
            np.testing.assert_allclose(after[s], state, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", CELLS)
def test_gradients_stop_where_warming_up_ends(kind):
    plain = Ran(kind, 4)
    warming = np.zeros((len(LENGTHS), 4), bool)
    warming[0, :2] = True
    burnt = Ran(kind, 4, warming)
    np.testing.assert_array_equal(burnt.outputs, plain.outputs)
    assert (plain.input_gradient != 0).all()
    assert (burnt.input_gradient[:2] == 0).all()
    np.testing.assert_array_equal(burnt.input_gradient[2:], plain.input_gradient[2:])


def test_an_lstm_starts_by_remembering():
    initial = Ran("lstm", 1).initial
    assert list(initial) == [
        "lstm/lstm_cell/kernel:0", "lstm/lstm_cell/recurrent_kernel:0", "lstm/lstm_cell/bias:0"
    ]  # fmt: skip
    gates = initial["lstm/lstm_cell/bias:0"].reshape(4, UNITS)
    np.testing.assert_array_equal(gates, np.float32([[0], [1], [0], [0]]) * np.ones(UNITS))
    recurrent = initial["lstm/lstm_cell/recurrent_kernel:0"]
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(UNITS), atol=1e-6)
