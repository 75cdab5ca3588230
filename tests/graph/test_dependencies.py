"""Which operations a tensor is computed from."""

import tensorflow as tf

from tfpolicy.graph.dependencies import operations_behind


def test_a_tensor_needs_its_inputs_and_what_must_run_before():
    with tf.Graph().as_default():
        left, right, beside = (tf.compat.v1.placeholder(tf.float32, [], n) for n in "abc")
        before = tf.no_op("before")
        with tf.control_dependencies([before]):
            total = left + right
        unrelated = beside * 2.0
        behind = operations_behind([total])
        assert behind == {total.op, left.op, right.op, before}
        assert operations_behind([total, unrelated]) > behind | {unrelated.op, beside.op}


def test_operations_on_two_ways_are_told_once():
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [], "x")
        assert operations_behind([x * x, x]) >= {x.op}
        assert operations_behind([]) == set()
