"""Formulas are evaluated as policies use them: in a graph, plain and jit-compiled."""

import numpy as np
import pytest
import tensorflow as tf


class Evaluator:
    """Runs a function of tensors on arrays, in a graph of its own."""

    def __init__(self, jit_compile):
        self._jit_compile = jit_compile

    def __call__(self, function, *arrays):
        return self._run(lambda outputs, inputs: outputs, function, arrays)

    def gradients(self, function, *arrays):
        """Gradient of the sum of the output to each array; None where none flows."""
        return self._run(tf.gradients, function, arrays)

    def _run(self, fetch, function, arrays):
        arrays = [np.asarray(array) for array in arrays]
        arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            inputs = [
                tf.compat.v1.placeholder(a.dtype, [None, *a.shape[1:]] if a.ndim else [])
                for a in arrays
            ]
            if self._jit_compile:
                function = tf.function(function, jit_compile=True, autograph=False)
            fetches = fetch(function(*inputs), inputs)
            present = session.run(
                [t for t in tf.nest.flatten(fetches) if t is not None],
                dict(zip(inputs, arrays, strict=True)),
            )
            values = [t if t is None else present.pop(0) for t in tf.nest.flatten(fetches)]
            return tf.nest.pack_sequence_as(fetches, values)


@pytest.fixture(params=[False, True], ids=["plain", "compiled"])
def evaluate(request):
    return Evaluator(request.param)
