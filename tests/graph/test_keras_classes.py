"""Keras layers are of graphs while a graph is built, and of eager code before and after."""

import threading

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tfpolicy.graph.keras_classes import building_in


def layer(name="dense"):
    return tf_keras.layers.Dense(2, name=name, kernel_initializer="ones")


def network():
    inputs = tf_keras.Input((3,))
    return tf_keras.Model(inputs, layer()(inputs))


def bases():
    return [cls.__bases__ for cls in (tf_keras.layers.Dense, tf_keras.Sequential)]


def test_layers_of_eager_code_can_be_called_afterwards():
    eager, before = network(), bases()
    with building_in(tf.Graph()):
        network()
        assert bases() != before
    assert bases() == before
    np.testing.assert_array_equal(eager(np.ones((1, 3))), [[3.0, 3.0]])


def test_layers_of_a_graph_can_be_called_when_it_is_built_further():
    graph, placeholder = tf.Graph(), tf.compat.v1.placeholder
    with building_in(graph):
        in_graph = network()
        x = placeholder(tf.float32, [None, 3])
    eager = network()
    with building_in(graph):
        y = in_graph(x)
        initializers = [variable.initializer for variable in in_graph.variables]
    np.testing.assert_array_equal(eager(np.ones((1, 3))), [[3.0, 3.0]])
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(initializers)
        np.testing.assert_array_equal(session.run(y, {x: np.ones((1, 3))}), [[3.0, 3.0]])


def test_an_error_while_building_changes_nothing():
    eager, before = network(), bases()
    with pytest.raises(ZeroDivisionError), building_in(tf.Graph()):
        network()
        raise ZeroDivisionError
    assert bases() == before
    assert eager(np.ones((1, 3))).shape == (1, 2)


def test_building_within_building_is_still_building():
    with building_in(tf.Graph()) as _:
        outer = network()
        with building_in(tf.Graph()):
            network()
        assert outer(tf.zeros([1, 3])).shape == (1, 2)


def test_two_threads_build_one_after_the_other():
    eager, results = network(), []

    def build():
        with building_in(tf.Graph()):
            results.append(network()(tf.zeros([1, 3])).shape)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(1, 2)] * 4
    assert eager(np.ones((1, 3))).shape == (1, 2)
