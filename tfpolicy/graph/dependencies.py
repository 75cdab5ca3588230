"""What a tensor of a graph is computed from."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf


def operations_behind(tensors: Iterable[tf.Tensor]) -> set[tf.Operation]:
    """All operations that have to run for `tensors`, those that make them included."""
    seen: set[tf.Operation] = set()
    pending = [tensor.op for tensor in tensors]
    while pending:
        operation = pending.pop()
        if operation not in seen:
            seen.add(operation)
            pending += [tensor.op for tensor in operation.inputs] + operation.control_inputs
    return seen
