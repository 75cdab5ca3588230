"""The trained weights as vectors."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.graph.packing import LARGEST_PACKED, Packing, TrainedWeights, elementwise
from tfpolicy.graph.session import GraphSession

VALUES = {
    "kernel": np.float32([[1, 2, 3], [4, 5, 6]]),
    "bias": np.float32([7, 8, 9]),
    "wide": np.float64([[10, 11]]),
    "scale": np.float32(12),
    "wider": np.float64([13]),
    "apart": np.float32([[14, 15]]),
    "unused": np.float32([16, 17]),
}
HAS_GRADIENT = [name != "unused" for name in VALUES]


@contextlib.contextmanager
def session_with_variables():
    graph_session = GraphSession()
    with graph_session.building():
        graph_session.variables = [
            tf.compat.v1.get_variable(name, initializer=value, use_resource=True)
            for name, value in VALUES.items()
        ]
    graph_session.initialize(graph_session.variables)
    yield graph_session
    graph_session.close()


@pytest.fixture
def machine():
    with session_with_variables() as graph_session:
        yield graph_session


def packing(machine):
    return Packing(machine.variables, [v for v in machine.variables if v.op.name != "apart"])


def test_variables_of_one_dtype_lie_behind_one_another(machine):
    made = packing(machine)
    with machine.building():
        vectors = made.pack([variable.read_value() for variable in machine.variables])
        unpacked = made.unpack(vectors)
    vectors, values = machine.session.run([vectors, unpacked])
    assert [vector.tolist() for vector in vectors] == [
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17],
        [10, 11, 13],
        [[14, 15]],
    ]
    for value, expected in zip(values, VALUES.values(), strict=True):
        np.testing.assert_array_equal(value, expected, strict=True)


def test_large_variables_are_not_copied_around(machine):
    with machine.building():
        made = [
            tf.compat.v1.get_variable(f"v{size}", size, use_resource=True)
            for size in (LARGEST_PACKED, LARGEST_PACKED + 1, 2)
        ]
    assert Packing(made, made).groups == [[0, 2], [1]]


def test_what_has_no_value_is_zeros(machine):
    made = packing(machine)
    with machine.building():
        (vector, *_) = made.pack(
            [variable.read_value() if has else None
             for variable, has in zip(machine.variables, HAS_GRADIENT, strict=True)]
        )  # fmt: skip
    assert machine.session.run(vector).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 0, 0]


def steps(machine, optimizer, made, number=3):
    """Takes steps along gradients that differ from number to number; gives weights and slots."""
    with machine.building():
        weights = TrainedWeights(made, optimizer)
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=v.shape).astype(v.dtype.as_numpy_dtype) for v in machine.variables]
    values = [g if has else None for g, has in zip(gradients, HAS_GRADIENT, strict=True)]

    def learn():
        weights.enter()
        with tf.control_dependencies([weights.apply(made.pack(values), HAS_GRADIENT)]):
            weights.leave()
        return tf.constant(True)

    with machine.building():
        weights.apply(made.pack(values), HAS_GRADIENT)
        learned = tf.function(learn, autograph=False)()
        kept = weights.optimizer_variables(HAS_GRADIENT)
        own = weights.own_variables
    machine.initialize(own)
    for _ in range(number):
        machine.session.run(learned)
    machine.prepare_access(machine.variables)
    if kept.variables:
        machine.prepare_access(kept.variables)
    return machine.read(machine.variables), kept


def kept_by_name(machine, kept):
    return kept.taken_apart(machine.read(kept.variables)) if kept.variables else {}


OPTIMIZERS = {
    "Adam": lambda: tf.compat.v1.train.AdamOptimizer(0.1),
    "Momentum": lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "RMSProp": lambda: tf.compat.v1.train.RMSPropOptimizer(0.1, momentum=0.5),
    "Adagrad": lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
    "Adadelta": lambda: tf.compat.v1.train.AdadeltaOptimizer(0.1),
    "SGD": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_packed_or_not_an_optimizer_does_and_keeps_the_same(machine, name):
    assert elementwise(OPTIMIZERS[name]())
    found, kept = steps(machine, OPTIMIZERS[name](), packing(machine))
    with session_with_variables() as other:
        expected, kept_apart = steps(other, OPTIMIZERS[name](), Packing(other.variables, []))
        state_apart = kept_by_name(other, kept_apart)
    state = kept_by_name(machine, kept)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-6, err_msg=key)
    assert not np.array_equal(found["kernel"], VALUES["kernel"])
    np.testing.assert_array_equal(found["unused"], VALUES["unused"])
    assert bool(state) == (name != "SGD")
    assert set(state) == set(state_apart)
    for key, value in state_apart.items():
        np.testing.assert_allclose(state[key], value, rtol=1e-6, err_msg=key)


def test_what_an_optimizer_keeps_for_one_variable_is_assigned_without_touching_the_rest(machine):
    _, kept = steps(machine, OPTIMIZERS["Momentum"](), packing(machine))
    before = kept_by_name(machine, kept)
    whole_before = machine.read(kept.variables)
    changed = {**before, "bias/Momentum": np.float32([-1, -2, -3])}
    machine.write(kept.variables, kept.put_together(whole_before, changed))
    after = kept_by_name(machine, kept)
    assert set(after) == {f"{name}/Momentum" for name in VALUES if name != "unused"}
    for key, value in changed.items():
        np.testing.assert_array_equal(after[key], value, err_msg=key)


def test_what_is_kept_for_weights_without_a_gradient_stays(machine):
    # Were it 0, Adagrad would divide 0 by it.
    _, kept = steps(machine, OPTIMIZERS["Adagrad"](), packing(machine))
    whole = machine.read(kept.variables)
    parts = {name: np.zeros_like(value) for name, value in kept.taken_apart(whole).items()}
    (packed,) = [v for v in kept.put_together(whole, parts).values() if v.shape == (12,)]
    np.testing.assert_allclose(packed, [0] * 10 + [0.1] * 2)


class OfAUser(tf.compat.v1.train.GradientDescentOptimizer):
    """Whatever it does to the gradients of a layer."""


def test_optimizers_of_users_see_layers(machine):
    assert not elementwise(OfAUser(0.1))
    assert not elementwise(tf.compat.v1.train.FtrlOptimizer(0.1))
