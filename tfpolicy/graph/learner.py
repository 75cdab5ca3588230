"""The ways to learn: from what is fed, from a loaded minibatch, from all of a loaded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfpolicy.graph.buffer import DeviceBuffer, epoch_permutations
from tfpolicy.graph.layout import TrainLayout
from tfpolicy.graph.packing import TrainedWeights
from tfpolicy.graph.session import GraphSession
from tfpolicy.graph.towers import Tower
from tfpolicy.graph.update import Minibatch, Update


class Learner:
    """Everything that learning adds to the graph; made once, before the graph is finalized.

    Attributes:
        buffers: Where batches are loaded to.
        fed_inputs: Placeholders of a step on a batch that is handed in: for each tower its leaves
            and the number of their valid rows.
        fed_results: Whether such a step was finite, and its statistics.

    Args:
        graph_session: The graph.
        layout: The columns that learning reads.
        towers: One for each device.
        weights: The weights that are trained.
        coefficients: Variables that the loss may read, by name.
        frozen: Variables of the model that it reads as they were when the batch was loaded, or
            when a fed one is learned from.
        minibatch_units: Units of one SGD step on each device.
        num_buffers: How many batches can be loaded at once.
        grad_clip: Largest global norm of the averaged gradients; `None` for no limit.
        check_numerics: Whether an update that is not finite is refused.
        jit_compile: Whether steps on loaded batches are compiled: each tower's gradients where
            towers compile themselves, else the whole loop. Batches that are fed are never compiled,
            since each number of rows would be compiled anew.
    """

    def __init__(
        self,
        graph_session: GraphSession,
        layout: TrainLayout,
        towers: Sequence[Tower],
        weights: TrainedWeights,
        coefficients: Mapping[str, tf.Variable],
        *,
        frozen: Sequence[tf.Variable] = (),
        minibatch_units: int,
        num_buffers: int = 1,
        grad_clip: float | None = None,
        check_numerics: bool = True,
        jit_compile: bool = False,
    ):
        self._graph_session = graph_session
        self._layout = layout
        self._towers = towers
        self._weights, self._frozen = weights, list(frozen)
        self._variables = weights.packing.variables
        self._minibatch_units = minibatch_units
        self._check_numerics, self._compiled = check_numerics, jit_compile
        # A compiled function runs on one device, so of several towers each is compiled. The number
        # of sequences differs from batch to batch, and each would compile the whole loop anew.
        self._compile_parts = jit_compile and any(tower.compiles_itself for tower in towers)
        self._compile_whole = jit_compile and not self._compile_parts
        self._update = Update(
            layout,
            towers,
            weights,
            coefficients,
            grad_clip=grad_clip,
            check_numerics=check_numerics,
            compiles_itself=self._compile_parts,
        )
        with graph_session.building():
            self._build_fed()
            self._check_compilable()
            devices = [tower.device for tower in towers]
            specs = layout.unit_specs
            frozen_specs = [tf.TensorSpec(v.shape, v.dtype) for v in self._frozen]
            self.buffers = [
                DeviceBuffer(graph_session, devices, specs, f"buffer_{index}", frozen_specs)
                for index in range(num_buffers)
            ]
            self._learn_loaded = [self._build_loaded(buffer) for buffer in self.buffers]
            self._learn_all = [self._build_loop(buffer) for buffer in self.buffers]

    def learn_on_leaves(self, leaves: Sequence[np.ndarray]) -> dict[str, float]:
        """One step on all units; towers get uneven shares and count by their valid rows."""
        finite, stats = self._learn_fed(*self._deal(leaves))
        return self._checked(finite, stats)

    def gradients_of_leaves(
        self, leaves: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray | None], dict[str, float]]:
        """The averaged, clipped gradients, `None` where the loss does not depend on a variable."""
        finite, stats, *values = self._compute_fed(*self._deal(leaves))
        stats = self._checked(finite, stats)
        present = iter(values)
        return [next(present) if has else None for has in self._update.has_gradient], stats

    def apply_gradients(self, gradients: Sequence[np.ndarray | None]) -> None:
        """Applies what `gradients_of_leaves` gave.

        Raises:
            ValueError: Number or shapes differ from the variables'.
            FloatingPointError: A gradient is not finite.
        """
        names = [variable.name.removesuffix(":0") for variable in self._variables]
        if len(gradients) != len(names):
            raise ValueError(f"Expected {len(names)} gradients, got {len(gradients)}.")
        arrays = []
        rows = zip(names, self._variables, gradients, self._update.has_gradient, strict=True)
        for name, variable, gradient, has_gradient in rows:
            if (gradient is not None) != has_gradient:
                expected = "an array" if has_gradient else "None"
                raise ValueError(f"Gradient of {name}: expected {expected}.")
            if gradient is None:
                continue
            if np.shape(gradient) != tuple(variable.shape):
                raise ValueError(
                    f"Gradient of {name}: expected shape {tuple(variable.shape)}, "
                    f"got {np.shape(gradient)}."
                )
            if self._check_numerics and not np.isfinite(gradient).all():
                raise FloatingPointError(f"Gradient of {name} is not finite; nothing was applied.")
            arrays.append(np.asarray(gradient, variable.dtype.as_numpy_dtype))
        self._apply_fed(*arrays)

    def learn_on_loaded(self, buffer_index: int, offset_units: int) -> dict[str, float]:
        """One step on the units from `offset_units` on of every device."""
        finite, stats = self._learn_loaded[buffer_index](np.int32(offset_units))
        return self._checked(finite, stats)

    def learn_on_buffer(
        self, buffer_index: int, num_epochs: int, seed: np.ndarray, shuffle: bool
    ) -> tuple[dict[str, float], np.ndarray]:
        """All epochs in one session call.

        Returns:
            The statistics, means over the last epoch, and the units [K] that it learned from.
        """
        run = self._learn_all[buffer_index]
        finite, stats, order = run(np.int32(num_epochs), seed, np.bool_(shuffle))
        size = min(self._minibatch_units, len(order))
        return self._checked(finite, stats), order[: len(order) // size * size]

    def _build_fed(self) -> None:
        """Learning, computing and applying on what the caller hands in."""
        inputs, shares, counts = [], [], []
        for _ in self._towers:
            leaves = [_placeholder(spec) for spec in self._layout.input_specs]
            count = tf.compat.v1.placeholder(tf.int32, [])
            inputs += [*leaves, count]
            shares.append(leaves)
            counts.append(count)
        frozen = [variable.read_value() for variable in self._frozen]
        minibatch = Minibatch(shares, counts, frozen)
        result, gradients = self._update.gradients(minibatch)
        if not any(self._update.has_gradient):
            names = ", ".join(variable.name for variable in self._variables)
            raise ValueError(f"The loss depends on no trainable variable; there are: {names}.")
        fed = [tf.compat.v1.placeholder(value.dtype, value.shape) for value in gradients]
        # The first call makes the optimizer's variables; it must not happen inside a function.
        self._update.apply(result.values)
        applied = tf.function(self._trace_apply_fed, autograph=False)(fed)
        learned = tf.function(self._trace_learn, autograph=False)(minibatch, False)
        call = self._graph_session.callable
        self._apply_fed = call(fed, [], [applied.op])
        self._compute_fed = call(inputs, [result.finite, result.stats, *gradients])
        self.fed_inputs, self.fed_results = inputs, list(learned)
        self._learn_fed = call(inputs, self.fed_results)

    def _check_compilable(self) -> None:
        """Refuses a compiled tower that would read a variable which lives on another device."""
        names = self._towers[0].read_in_place
        if self._compile_parts and len(self._towers) > 1 and names:
            raise ValueError(
                f"`jit_compile` with several towers: the model reads {', '.join(names)} where XLA "
                f"cannot, on another device. Only trained variables that are attributes of the "
                f"model (or of its layers) are handed to the towers. Make them so, make them "
                f"constants, or set `jit_compile` to False."
            )

    def _build_loaded(self, buffer: DeviceBuffer) -> Any:
        offset = tf.compat.v1.placeholder(tf.int32, [])
        # Fewer at the end of the buffer. Within a compiled function each offset would be compiled.
        end = tf.minimum(offset + self._minibatch_units, buffer.read_num_units())
        step = tf.function(
            lambda units: self._trace_learn(self._take(buffer, units), self._compiled),
            autograph=False,
            jit_compile=self._compile_whole,
        )
        return self._graph_session.callable([offset], list(step(tf.range(offset, end))))

    def _build_loop(self, buffer: DeviceBuffer) -> Any:
        num_epochs = tf.compat.v1.placeholder(tf.int32, [])
        seed = tf.compat.v1.placeholder(tf.int32, [2])
        shuffle = tf.compat.v1.placeholder(tf.bool, [])
        num_units = buffer.read_num_units()
        in_order = tf.tile(tf.range(num_units)[None], [num_epochs, 1])
        order = tf.where(shuffle, epoch_permutations(seed, num_epochs, num_units), in_order)
        loop = tf.function(
            lambda order: self._trace_loop(buffer, order),
            autograph=False,
            jit_compile=self._compile_whole,
        )
        # Copied outside of what is compiled: that has fewer kernels then.
        with tf.control_dependencies(self._weights.enter()):
            results = loop(order)
        with tf.control_dependencies(results):
            left = self._weights.leave()
        feeds = [num_epochs, seed, shuffle]
        return self._graph_session.callable(feeds, [*results, order[-1]], left)

    def _trace_apply_fed(self, gradients: list[tf.Tensor]) -> tf.Tensor:
        """One update along gradients, one for each variable that the loss depends on."""
        self._weights.enter()
        present = iter(gradients)
        values = [next(present) if has else None for has in self._update.has_gradient]
        applied = self._update.apply(self._weights.packing.pack(values))
        with tf.control_dependencies([applied]):
            self._weights.leave()
        return tf.constant(True)

    def _trace_learn(self, minibatch: Minibatch, compiled: bool) -> tuple[Any, Any]:
        """One step, alone."""
        self._weights.enter()
        results = self._update.step(minibatch, compiled=compiled)
        self._weights.leave()
        return results

    def _trace_loop(self, buffer: DeviceBuffer, order: tf.Tensor) -> tuple[Any, Any]:
        """Runs minibatches until all epochs are over or an update is refused.

        Args:
            buffer: Where their units lie.
            order: [E, U] int32, the order of the units in each epoch.
        """
        num_units = tf.shape(order)[1]
        size = tf.minimum(self._minibatch_units, num_units)
        per_epoch = num_units // size
        num_steps = tf.shape(order)[0] * per_epoch

        def step(index: Any, _: Any, sums: Any) -> tuple[Any, Any, Any]:
            position = index % per_epoch
            units = tf.gather(order[index // per_epoch], position * size + tf.range(size))
            finite, stats = self._update.step(self._take(buffer, units), compiled=self._compiled)
            # A refused step is reported alone: a sum would hide which term was not finite.
            fresh = tf.logical_or(tf.equal(position, 0), tf.logical_not(finite))
            return index + 1, finite, tf.where(fresh, stats, sums + stats)

        _, finite, sums = tf.while_loop(
            lambda index, finite, _: tf.logical_and(index < num_steps, finite),
            step,
            (tf.constant(0), tf.constant(True), tf.zeros(len(self._update.stat_names))),
        )
        count = tf.where(finite, tf.cast(per_epoch, tf.float32), 1.0)
        return finite, sums / count

    def _take(self, buffer: DeviceBuffer, units: tf.Tensor) -> Minibatch:
        """Some units of every device."""
        shares = [buffer.read(index) for index in range(len(self._towers))]
        if self._compile_parts and self._layout.max_seq_len is None:
            # Taking rows is then part of the compiled function.
            counts = [tf.size(units)] * len(shares)
            return Minibatch(shares, counts, buffer.read_frozen(), units)
        taken = []
        for tower, share in zip(self._towers, shares, strict=True):
            with tf.device(tower.device):
                taken.append([tf.gather(leaf, units) for leaf in share])
        counts = [self._layout.num_valid(share) for share in taken]
        return Minibatch(taken, counts, buffer.read_frozen())

    def _deal(self, leaves: Sequence[np.ndarray]) -> list[Any]:
        """Shares of all towers with their numbers of valid rows, in the order of the inputs."""
        num_towers = len(self._towers)
        feeds: list[Any] = []
        for index in range(num_towers):
            share = [leaf[index::num_towers] for leaf in leaves]
            count = self._layout.num_valid(share)
            if not count:
                # A loss need not stand zero rows, so an idle tower gets one that counts nothing.
                share = [leaf[:1] for leaf in leaves]
            feeds += [*share, np.int32(count)]
        return feeds

    def _checked(self, finite: Any, stats: np.ndarray) -> dict[str, float]:
        named = dict(zip(self._update.stat_names, stats.tolist(), strict=True))
        if not finite:
            terms = ", ".join(f"{name}={value:.6g}" for name, value in named.items())
            raise FloatingPointError(
                f"The loss or its gradients are not finite; the update was not applied: {terms}."
            )
        return named


def _placeholder(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.compat.v1.placeholder(spec.dtype, spec.shape)
