"""The equations of the gated transformer, step by step against the paper's notation."""

import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.config import ModelConfig
from tfpolicy.models.attention import Transformer
from tfpolicy.models.layers import LayerMaker
from tfpolicy.models.stateful import Sequences

INPUTS, DIM, HEADS, HEAD_DIM, MEMORY, UNITS = 3, 6, 2, 4, 3, 2
LENGTHS = np.int32([5, 2, 4])
CONFIG = {
    "use_attention": True,
    "attention_num_transformer_units": UNITS,
    "attention_dim": DIM,
    "attention_num_heads": HEADS,
    "attention_head_dim": HEAD_DIM,
    "attention_memory_inference": MEMORY,
    "attention_position_wise_mlp_dim": 5,
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normalized(x, w, name):
    deviation = np.sqrt(x.var() + 1e-6)
    return (x - x.mean()) / deviation * w[f"{name}/gamma"] + w[f"{name}/beta"]


def dense(x, w, name):
    return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]


def gate(x, y, w, name):
    y_r, y_z, y_g = np.split(dense(y, w, f"{name}_y"), 3)
    x_r, x_z = np.split(dense(x, w, f"{name}_x"), 2)
    r, z = sigmoid(y_r + x_r), sigmoid(y_z + x_z - w[f"{name}/bias"])
    return (1 - z) * x + z * np.tanh(y_g + dense(r * x, w, f"{name}_rx"))


def attend(steps, w, name):
    """What the last of normalised steps sees in all of them."""
    heads = (HEADS, HEAD_DIM)
    q = dense(steps[-1], w, f"{name}_query").reshape(heads)
    logits, values = [], []
    for distance, step in zip(range(len(steps))[::-1], steps, strict=True):
        rates = [10000 ** (-2 * i / DIM) for i in range(DIM // 2)]
        sinusoid = [f(distance * rate) for f in (np.sin, np.cos) for rate in rates]
        k = dense(step, w, f"{name}_key").reshape(heads)
        r = dense(np.array(sinusoid), w, f"{name}_position").reshape(heads)
        content = ((q + w[f"{name}/u"]) * k).sum(axis=1)
        position = ((q + w[f"{name}/v"]) * r).sum(axis=1)
        logits.append((content + position) / np.sqrt(HEAD_DIM))
        values.append(dense(step, w, f"{name}_value").reshape(heads))
    weights = np.exp(logits) / np.exp(logits).sum(axis=0)
    return dense((weights[:, :, None] * values).sum(axis=0).ravel(), w, f"{name}_out")


def reference(inputs, w):
    """Outputs of one episode [T, F], and the inputs of each layer at each step."""
    outputs, remembered = [], [[] for _ in range(UNITS)]
    for x in inputs:
        x = dense(x, w, "a_in")
        for unit in range(UNITS):
            name = f"a_{unit + 1}"
            remembered[unit].append(x)
            seen = [normalized(s, w, f"{name}_norm") for s in remembered[unit][-MEMORY - 1 :]]
            x = gate(x, np.maximum(attend(seen, w, name), 0), w, f"{name}_gate")
            hidden = np.maximum(dense(normalized(x, w, f"{name}_mlp_norm"), w, f"{name}_mlp_1"), 0)
            x = gate(x, np.maximum(dense(hidden, w, f"{name}_mlp_2"), 0), w, f"{name}_mlp_gate")
        outputs.append(x)
    return np.array(outputs), remembered


class Ran:
    """The transformer with random weights, as a function of inputs [S, T, F] and states."""

    def __init__(self, **config):
        self.graph = tf.Graph()
        self.session = tf.compat.v1.Session(graph=self.graph)
        rng = np.random.default_rng(1)
        with self.graph.as_default():
            config = ModelConfig.from_dict({**CONFIG, **config})
            self.core = Transformer("a", INPUTS, config, LayerMaker(lambda name: 1))
            variables = self.graph.get_collection("variables")
            self.session.run([v.initializer for v in variables])
            self.initial = dict(
                zip([v.name[:-2] for v in variables], self.session.run(variables), strict=True)
            )
            self.weights = {name: rng.normal(0, 0.6, v.shape) for name, v in self.initial.items()}
            for variable in variables:
                variable.load(self.weights[variable.name[:-2]], self.session)

    def __call__(self, inputs, states=None, lengths=None, burn_in=None, gradient_of=None):
        number, length = inputs.shape[:2]
        if states is None:
            states = [np.repeat(s[None], number, axis=0) for s in self.core.initial_state()]
        lengths = np.full(number, length, np.int32) if lengths is None else lengths
        with self.graph.as_default():
            rows = tf.constant(inputs.reshape(-1, INPUTS).astype(np.float32))
            sequences = Sequences(tf.constant(lengths), length, burn_in)
            outputs, after = self.core(rows, [tf.constant(s) for s in states], sequences)
            outputs = tf.reshape(outputs, [number, length, DIM])
            fetches = [outputs, after]
            if gradient_of is not None:
                fetches.append(tf.gradients(outputs[gradient_of], rows)[0])
            return self.session.run(fetches)


@pytest.fixture(scope="module")
def ran():
    return Ran()


@pytest.fixture(scope="module")
def episodes():
    rng = np.random.default_rng(0)
    return rng.normal(0, 1, (len(LENGTHS), LENGTHS.max(), INPUTS)).astype(np.float32)


def test_padded_sequences_are_computed_as_by_hand_and_remembered(ran, episodes):
    outputs, after = ran(episodes, lengths=LENGTHS)
    for s, length in enumerate(LENGTHS):
        expected, remembered = reference(episodes[s, :length], ran.weights)
        np.testing.assert_allclose(outputs[s, :length], expected, rtol=0, atol=1e-5)
        for memory, steps in zip(after, remembered, strict=False):
            kept = np.zeros((MEMORY, DIM))
            last = np.array(steps[-MEMORY:])
            kept[MEMORY - len(last) :] = last
            np.testing.assert_allclose(memory[s], kept, rtol=0, atol=1e-5)
        assert after[-1][s] == min(length, MEMORY)


def test_acting_step_by_step_is_the_same_and_so_is_a_sequence_cut_anywhere(ran, episodes):
    whole, after = ran(episodes)
    stepped, states = [], None
    for t in range(episodes.shape[1]):
        out, states = ran(episodes[:, t : t + 1], states)
        stepped.append(out[:, 0])
    np.testing.assert_allclose(np.stack(stepped, axis=1), whole, rtol=0, atol=1e-5)
    for found, expected in zip(states, after, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    first, states = ran(episodes[:, :2])
    second, _ = ran(episodes[:, 2:], states)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, rtol=0, atol=1e-5)


def test_nothing_is_seen_of_what_is_not_remembered(ran, episodes):  # no leak between episodes
    states = [np.full((len(LENGTHS), *s.shape), 9, np.float32) for s in ran.core.initial_state()]
    states[-1][:] = 0
    np.testing.assert_array_equal(ran(episodes, states)[0], ran(episodes)[0])
    states[-1][:] = 1
    one = ran(episodes, states)[0]
    for state in states[:-1]:
        state[:, :-1] = -9
    np.testing.assert_array_equal(ran(episodes, states)[0], one)


def test_steps_beyond_the_memory_and_later_ones_pass_no_gradient(ran, episodes):
    _, _, gradient = ran(episodes, gradient_of=(0, 4))
    gradient = gradient.reshape(episodes.shape)
    # Two layers of memory 3 reach back six steps; a single one is looked at below.
    assert (gradient[0] != 0).any(axis=1).all() and not gradient[1:].any()
    single = Ran(attention_num_transformer_units=1, attention_memory_inference=2)
    _, _, gradient = single(episodes, gradient_of=(0, 3))
    seen = (gradient.reshape(episodes.shape)[0] != 0).any(axis=1)
    assert seen.tolist() == [False, True, True, True, False]


def test_gradients_stop_where_warming_up_ends(ran, episodes):
    warming = np.zeros(episodes.shape[:2], bool)
    warming[0, :2] = True
    outputs, _, gradient = ran(episodes, burn_in=warming, gradient_of=(0, 4))
    np.testing.assert_array_equal(outputs, ran(episodes)[0])
    seen = (gradient.reshape(episodes.shape)[0] != 0).any(axis=1)
    assert seen.tolist() == [False, False, True, True, True]


def test_training_may_look_back_less_far_than_acting(episodes):
    short = Ran(attention_memory_training=1)
    _, states = short(episodes[:, :3])
    found, after = short(episodes[:, 3:], states)
    cut = [state.copy() for state in states]
    for state in cut[:-1]:
        state[:, :-1] = 5
    np.testing.assert_array_equal(short(episodes[:, 3:], cut)[0], found)
    # What is remembered is as much as ever.
    assert (after[-1] == MEMORY).all()


def test_gates_start_nearly_closed(ran):
    assert (ran.initial["a_1_gate/bias"] == 2).all() and (
        ran.initial["a_2_mlp_gate/bias"] == 2
    ).all()
    assert (ran.initial["a_1_norm/gamma"] == 1).all() and not ran.initial["a_1/u"].any()
