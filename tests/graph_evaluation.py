"""Runs functions of tensors on arrays as policies do: in a graph, plain or jit-compiled."""

import numpy as np
import tensorflow as tf


class Evaluator:
    """Calls a function of tensors with arrays, and fetches what it returns.

    Every call has a graph of its own. The first axis of an array is the batch, of unknown length in
    the graph. Float arrays are fed as float32.
    """

    def __init__(self, jit_compile):
        self._jit_compile = jit_compile

    def __call__(self, function, *arrays):
        return self._run(lambda outputs, inputs: outputs, function, arrays)

    def gradients(self, function, *arrays):
        """Gradients of the sum of all outputs to each array; None where none flows."""
        return self._run(lambda outputs, inputs: tf.gradients(outputs, inputs), function, arrays)

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
            tensors = [t for t in tf.nest.flatten(fetches) if t is not None]
            values = iter(session.run(tensors, dict(zip(inputs, arrays, strict=True))))
            return tf.nest.map_structure(lambda t: None if t is None else next(values), fetches)
