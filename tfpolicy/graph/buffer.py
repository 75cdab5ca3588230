"""A loaded batch that stays on the devices while minibatches are taken from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfpolicy.graph.session import GraphSession

# What Eigen asks for, in bytes.
_ALIGNMENT = 64


class DeviceBuffer:
    """Holds the columns of one train batch, dealt over the devices.

    A *unit* is what must stay together: a row, or a sequence of a recurrent batch. Unit `u` goes to
    device `u % n`, so that what all devices see at one offset is what one device would see there.
    Units left over (fewer than devices) are dropped and counted. Beside the columns there may be
    *frozen* values, which belong to the batch as a whole.

    Attributes:
        variables: Where everything lies; to be initialized before they are read.
        num_units: Units on each device.
        unit_rows: [num_units] int, real rows of all devices together at each offset.
        num_rows_dropped: Real rows in the units that were left over.

    Args:
        graph_session: The graph it is built in.
        devices: Where the shares live.
        unit_specs: The spec of one unit of each leaf; dimensions may be `None`.
        name: Prefix of the variables' names.
        frozen_specs: The specs of the frozen values.
    """

    def __init__(
        self,
        graph_session: GraphSession,
        devices: Sequence[str | None],
        unit_specs: Sequence[tf.TensorSpec],
        name: str,
        frozen_specs: Sequence[tf.TensorSpec] = (),
    ):
        self._devices = devices
        self.num_units = 0
        self.unit_rows = np.zeros(0, np.int64)
        self.num_rows_dropped = 0
        self._shares = []
        for index, device in enumerate(devices):
            with tf.device(device):
                prefix = f"{name}/tower_{index}/column"
                specs = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in unit_specs]
                self._shares.append(_variables(specs, prefix))
        with tf.device(devices[0]):
            self._frozen = _variables(frozen_specs, f"{name}/frozen")
        self.variables = [*(v for share in self._shares for v in share), *self._frozen]
        inputs = [tf.compat.v1.placeholder(v.dtype.base_dtype, v.shape) for v in self.variables]
        assigned = [v.assign(x).op for v, x in zip(self.variables, inputs, strict=True)]
        self._load = graph_session.callable(inputs, [], assigned)
        self._empty = [
            np.zeros([size or 0 for size in v.shape], v.dtype.as_numpy_dtype)
            for v in self.variables
        ]

    def load(
        self,
        leaves: Sequence[np.ndarray],
        unit_rows: np.ndarray,
        frozen: Sequence[np.ndarray] = (),
    ) -> None:
        """Copies the leaves, [U, ...] each, onto the devices.

        Args:
            leaves: Arrays in the order of `unit_specs`.
            unit_rows: [U] int, how many real rows each unit has.
            frozen: Arrays in the order of `frozen_specs`.

        Raises:
            ValueError: There are fewer units than devices.
        """
        num_devices = len(self._devices)
        num_units = len(leaves[0])
        if num_units < num_devices:
            raise ValueError(
                f"A batch must have at least one row (or sequence) for each of the {num_devices} "
                f"towers, got {num_units}."
            )
        kept = num_units - num_units % num_devices
        shares: list[Any] = []
        for index in range(num_devices):
            shares += [_aligned_copy(leaf[index:kept:num_devices]) for leaf in leaves]
        self._load(*shares, *map(np.array, frozen))
        self.num_units = kept // num_devices
        self.unit_rows = unit_rows[:kept].reshape(-1, num_devices).sum(axis=1)
        self.num_rows_dropped = int(unit_rows[kept:].sum())

    def release(self) -> None:
        """Frees the memory of what is loaded."""
        if not self.num_units:
            return
        self.num_units = self.num_rows_dropped = 0
        self.unit_rows = np.zeros(0, np.int64)
        # TensorFlow lets go of NumPy's memory at the next call after the one that freed it.
        for _ in range(2):
            self._load(*self._empty)

    def read(self, tower: int) -> list[tf.Tensor]:
        """Tensors of the whole share of one tower."""
        with tf.device(self._devices[tower]):
            return [variable.read_value() for variable in self._shares[tower]]

    def read_num_units(self) -> tf.Tensor:
        """How many units each device has, [] int32."""
        return tf.shape(self._shares[0][0].read_value())[0]

    def read_frozen(self) -> list[tf.Tensor]:
        """Tensors of the frozen values."""
        with tf.device(self._devices[0]):
            return [variable.read_value() for variable in self._frozen]


def _aligned_copy(rows: np.ndarray) -> np.ndarray:
    """A copy in memory that TensorFlow keeps as it is, where it would copy any other once more.

    It must be a copy, since the memory of `rows` is the caller's.
    """
    memory = np.empty(rows.nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    copy = memory[begin : begin + rows.nbytes].view(rows.dtype).reshape(rows.shape)
    copy[...] = rows
    return copy


def epoch_permutations(seed: Any, num_epochs: Any, num_units: Any) -> tf.Tensor:
    """One random order of the units for each epoch.

    Every device takes its own units in this same order, so that the minibatch of all devices
    together is a random one too.

    Args:
        seed: [2] int32.
        num_epochs: Scalar int32.
        num_units: Units per device, scalar int32.

    Returns:
        [num_epochs, num_units] int32.
    """
    keys = tf.random.stateless_uniform([num_epochs, num_units], seed)
    return tf.argsort(keys, axis=1, stable=True)


def _variables(specs: Sequence[tf.TensorSpec], prefix: str) -> list[tf.Variable]:
    """One variable for each spec; dimensions that are `None` begin with size 0."""
    return [
        tf.compat.v1.Variable(
            np.zeros([size or 0 for size in spec.shape], spec.dtype.as_numpy_dtype),
            trainable=False,
            # Not a global variable: its content is no state of the policy.
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
            validate_shape=False,
            shape=spec.shape,
            dtype=spec.dtype,
            use_resource=True,
            name=f"{prefix}_{index}",
        )
        for index, spec in enumerate(specs)
    ]
