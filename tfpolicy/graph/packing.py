"""The trained weights as few vectors: what minibatch SGD works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# They change each number by itself, and leave alone those whose gradient has always been 0.
_ELEMENTWISE = (
    tf.compat.v1.train.AdadeltaOptimizer,
    tf.compat.v1.train.AdagradOptimizer,
    tf.compat.v1.train.AdamOptimizer,
    tf.compat.v1.train.GradientDescentOptimizer,
    tf.compat.v1.train.MomentumOptimizer,
    tf.compat.v1.train.RMSPropOptimizer,
)


# Numbers of a variable: copying a larger one takes longer than starting operations for it alone.
LARGEST_PACKED = 2**14


def elementwise(optimizer: tf.compat.v1.train.Optimizer) -> bool:
    """Whether an optimizer is known to change each number by itself, as one vector allows.

    To others, those of users among them, a layer may be more than its numbers.
    """
    return type(optimizer) in _ELEMENTWISE


class Packing:
    """Which variables lie behind one another in which vector.

    Args:
        variables: The trained variables.
        packable: Those of them that may lie in a vector with others of their dtype. They do if they
            are small. Every other one is a vector of its own, and keeps its shape.
    """

    def __init__(self, variables: Sequence[tf.Variable], packable: Sequence[tf.Variable]):
        self.variables = list(variables)
        packed = {id(v) for v in packable if v.shape.num_elements() <= LARGEST_PACKED}
        by_vector: dict[str | int, list[int]] = {}
        for index, variable in enumerate(self.variables):
            # By the name: TensorFlow's dtypes are equal to numbers.
            key = variable.dtype.base_dtype.name if id(variable) in packed else index
            by_vector.setdefault(key, []).append(index)
        # For each vector the indices of its variables.
        self.groups = list(by_vector.values())

    def pack(self, values: Sequence[tf.Tensor | None]) -> list[tf.Tensor]:
        """The vectors of values for the variables; `None` stands for zeros."""
        vectors = []
        for group in self.groups:
            parts = [_or_zeros(values[index], self.variables[index]) for index in group]
            whole = parts[0] if len(parts) == 1 else tf.concat([_flat(part) for part in parts], 0)
            vectors.append(whole)
        return vectors

    def unpack(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """One value for each variable; the inverse of `pack`."""
        values: dict[int, tf.Tensor] = {}
        for group, vector in zip(self.groups, vectors, strict=True):
            if len(group) == 1:
                values[group[0]] = vector
                continue
            shapes = [self.variables[index].shape for index in group]
            parts = tf.split(vector, [shape.num_elements() for shape in shapes])
            for index, part, shape in zip(group, parts, shapes, strict=True):
                values[index] = part if shape.rank == 1 else tf.reshape(part, shape)
        return [values[index] for index in range(len(self.variables))]


class SlotPart(NamedTuple):
    """What an optimizer keeps for one variable, within what it keeps for a vector.

    Attributes:
        name: As if the variable had been trained by itself.
        slot: Where it lies.
        begin: From which number on.
        shape: That of the variable.
    """

    name: str
    slot: tf.Variable
    begin: int
    shape: tf.TensorShape

    @property
    def dtype(self) -> tf.DType:
        """Its dtype."""
        return self.slot.dtype

    def of(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """This part of the slot's value; it shares memory with it."""
        whole = values[self.slot.op.name]
        if self.shape == self.slot.shape:
            return whole
        return whole[self.begin : self.begin + self.shape.num_elements()].reshape(self.shape)


class OptimizerVariables:
    """All that an optimizer keeps, to be moved by the names of the model's variables.

    So a state does not depend on how the weights are packed.

    Attributes:
        variables: As they lie in the graph.
        parts: What they are to the outside.
    """

    def __init__(self, variables: Sequence[tf.Variable], parts: Sequence[SlotPart]):
        self.variables = list(variables)
        self.parts = list(parts)

    def taken_apart(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The parts out of the values of `variables`."""
        return {part.name: np.array(part.of(values)) for part in self.parts}

    def put_together(
        self, values: Mapping[str, np.ndarray], parts: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Values of `variables` with other parts in them.

        Args:
            values: Those of now: what is kept for weights without a gradient stays.
            parts: One for each of `parts`.
        """
        values = {name: np.array(value) for name, value in values.items()}
        for part in self.parts:
            part.of(values)[...] = parts[part.name]
        return values


class TrainedWeights:
    """The weights while they are learned, in vectors, and the optimizer that changes these.

    Learning begins with `enter`, which copies the variables of the model into vectors, and ends
    with `leave`, which copies them back. In between a step is a handful of operations, however many
    variables there are. A variable that is packed with no other is its vector itself.

    Args:
        packing: How they are packed.
        optimizer: What changes them. Whatever it keeps for a vector is made at the first `apply`,
            which must not happen inside a function.
    """

    def __init__(self, packing: Packing, optimizer: tf.compat.v1.train.Optimizer):
        self.packing = packing
        self._optimizer = optimizer
        self._vectors = [_vector(variables) for variables in self._grouped()]

    def enter(self) -> list[tf.Operation]:
        """Copies the variables into the vectors; outside of a function the caller must wait."""
        packed = self.packing.pack([v.read_value() for v in self.packing.variables])
        pairs = zip(self._grouped(), self._vectors, packed, strict=True)
        return [vector.assign(value).op for group, vector, value in pairs if len(group) > 1]

    def leave(self) -> list[tf.Operation]:
        """Copies the vectors into the variables; likewise."""
        values = self.packing.unpack(self.read())
        packed = [index for group in self.packing.groups if len(group) > 1 for index in group]
        return [self.packing.variables[index].assign(values[index]).op for index in packed]

    def read(self) -> list[tf.Tensor]:
        """The vectors."""
        return [vector.read_value() for vector in self._vectors]

    def apply(self, gradients: Sequence[tf.Tensor], has_gradient: Sequence[bool]) -> tf.Operation:
        """One step of the optimizer.

        Args:
            gradients: One for each vector.
            has_gradient: For each variable whether the loss depends on it.
        """
        pairs = [
            (gradient, vector)
            for group, gradient, vector in zip(
                self.packing.groups, gradients, self._vectors, strict=True
            )
            if any(has_gradient[index] for index in group)
        ]
        return self._optimizer.apply_gradients(pairs)

    @property
    def own_variables(self) -> list[tf.Variable]:
        """The vectors that are no variables of the model, and all that the optimizer keeps."""
        groups = zip(self.packing.groups, self._vectors, strict=True)
        vectors = [vector for group, vector in groups if len(group) > 1]
        return [*vectors, *self._optimizer.variables()]

    def optimizer_variables(self, has_gradient: Sequence[bool]) -> OptimizerVariables:
        """What the optimizer keeps.

        Args:
            has_gradient: For each variable whether the loss depends on it; of others nothing is
                told.
        """
        slots = list(self._optimizer.variables())
        parts = []
        for slot in slots:
            name = slot.op.name
            group: list[int] = []
            for indices, vector in zip(self.packing.groups, self._vectors, strict=True):
                if len(indices) > 1 and name.startswith(f"{vector.op.name}/"):
                    group, name = indices, name.removeprefix(f"{vector.op.name}/")
            if not group:
                parts.append(SlotPart(name, slot, 0, slot.shape))
            begin = 0
            for index in group:
                variable = self.packing.variables[index]
                if has_gradient[index]:
                    named = f"{variable.op.name}/{name}"
                    parts.append(SlotPart(named, slot, begin, variable.shape))
                begin += variable.shape.num_elements()
        return OptimizerVariables(slots, parts)

    def _grouped(self) -> list[list[tf.Variable]]:
        return [[self.packing.variables[index] for index in g] for g in self.packing.groups]


def _vector(variables: Sequence[tf.Variable]) -> tf.Variable:
    if len(variables) == 1:
        return variables[0]
    dtype = variables[0].dtype.base_dtype
    return tf.compat.v1.Variable(
        tf.zeros([sum(variable.shape.num_elements() for variable in variables)], dtype),
        trainable=False,
        # Not a global variable: between two calls its content is no state of the policy.
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        use_resource=True,
        name=f"trained_{dtype.name}",
    )


def _or_zeros(value: tf.Tensor | None, variable: tf.Variable) -> tf.Tensor:
    return tf.zeros(variable.shape, variable.dtype.base_dtype) if value is None else value


def _flat(value: tf.Tensor) -> tf.Tensor:
    return tf.reshape(value, [-1])
