"""What every model can do: seeds of layers, and computing with other weights than its own."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tfpolicy.config import ModelConfig
from tfpolicy.models import Model, ModelOutput


class Scattered(Model):
    """Keeps variables in every place that a model may keep them."""

    def __init__(self):
        super().__init__(None, None, 1, ModelConfig(), 5)
        self.attribute = self._one("attribute")
        self.listed = [self._one("listed_0"), {"deep": [self._one("deep")]}]
        self.named = {"key": self._one("named")}
        self.layers = [tf_keras.layers.Dense(1, kernel_initializer="ones", name="first")]
        self.network = tf_keras.Sequential(
            [tf_keras.layers.Dense(1, kernel_initializer="ones", name="second", input_shape=(1,))]
        )
        self.layers[0].build((None, 1))

    def _one(self, name):
        return tf.compat.v1.get_variable(name, initializer=[1.0], use_resource=True)

    def __call__(self, columns):
        total = self.attribute + self.listed[0] + self.listed[1]["deep"][0] + self.named["key"]
        ones = tf.ones([1, 1])
        outputs = total + self.layers[0](ones) + self.network(ones)
        return ModelOutput(outputs, None)


@pytest.fixture
def machine():
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        graph.model = Scattered()
        graph.variables = graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
        session.run(tf.compat.v1.global_variables_initializer())
        graph.session = session
        yield graph


def test_within_reading_all_variables_are_replaced_wherever_they_are_kept(machine):
    assert len(machine.variables) == 8
    # Two biases are 0, everything else is 1; the values double everything.
    values = [2.0 * variable for variable in machine.variables]
    with machine.model.reading(machine.variables, values) as readings:
        assert all(found is value for found, value in zip(readings, values, strict=True))
        replaced = machine.model({}).dist_inputs
        gradients = tf.gradients(replaced, readings)
    own = machine.model({}).dist_inputs
    assert machine.session.run([own, replaced]) == [[[6.0]], [[12.0]]]
    assert all(np.all(machine.session.run(gradient) == 1) for gradient in gradients)


def test_after_reading_every_variable_is_back_also_if_it_failed(machine):
    values = [tf.zeros_like(variable) for variable in machine.variables]
    with pytest.raises(ZeroDivisionError), machine.model.reading(machine.variables, values):
        raise ZeroDivisionError
    assert machine.model.listed[1]["deep"][0] is machine.variables[2]
    assert machine.session.run(machine.model({}).dist_inputs) == [[6.0]]


def test_a_variable_out_of_reach_is_read_itself(machine):
    hidden = tf.compat.v1.get_variable("hidden", initializer=[1.0], use_resource=True)
    machine.model.closure = lambda: hidden
    with machine.model.reading([hidden], [tf.zeros([1])]) as (found,):
        assert found is hidden


def test_layers_have_seeds_of_their_own_that_follow_from_the_models():
    def seeds(seed):
        model = Linear(None, None, 1, ModelConfig(), seed)
        return [model.layer_seed(name) for name in ("fc_1", "fc_2")]

    class Linear(Model):
        def __call__(self, columns):
            raise NotImplementedError

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2)}) == 4
    assert all(0 <= seed < 2**31 for seed in seeds(2**31 - 1))
    assert Linear(None, None, 1, ModelConfig(), 0).initial_state() == []
