"""Learning: gradients of all towers, one checked update, minibatch SGD over a loaded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfpolicy.graph.buffer import DeviceBuffer, epoch_permutations
from tfpolicy.graph.layout import TrainLayout
from tfpolicy.graph.packing import TrainedWeights
from tfpolicy.graph.session import GraphSession
from tfpolicy.graph.towers import Tower, TowerOutput, combine
from tfpolicy.ops.stats import global_norm_clip

GRAD_NORM = "grad_gnorm"


class Gradients(NamedTuple):
    """The averaged and clipped gradients of all towers.

    Attributes:
        values: One for each vector of weights.
        stats: [K] float32, the loss's statistics and last the norm before clipping.
        finite: Scalar bool: whether the loss and all gradients are finite.
    """

    values: list[tf.Tensor]
    stats: tf.Tensor
    finite: tf.Tensor


class Minibatch(NamedTuple):
    """What one step learns from.

    Attributes:
        shares: For each tower its leaves.
        counts: For each tower how many rows are valid, [] int32.
        frozen: What the model reads in place of its frozen variables.
        rows: [B] int32, the rows of every tower's leaves to learn from; `None` for all.
    """

    shares: list[list[tf.Tensor]]
    counts: list[tf.Tensor]
    frozen: list[tf.Tensor]
    rows: tf.Tensor | None = None


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
        self._coefficients = dict(coefficients)
        self._minibatch_units = minibatch_units
        self._grad_clip = grad_clip
        self._check_numerics = check_numerics
        self._compiled = jit_compile
        # A compiled function runs on one device, so of several towers each is compiled. The number
        # of sequences differs from batch to batch, and each would compile the whole loop anew.
        self._compile_whole = jit_compile and not any(tower.compiles_itself for tower in towers)
        # Where each tower is compiled so is what follows: with its numerous operations on few
        # numbers, starting them would take longer than all towers together.
        self._compile_parts = jit_compile and not self._compile_whole
        # Traced once each, and called from all three ways to learn.
        self._gradients = tf.function(self._trace_gradients, autograph=False)
        self._updates = {
            compiled: tf.function(
                self._trace_update, autograph=False, jit_compile=compiled and self._compile_parts
            )
            for compiled in (False, True)
        }
        with graph_session.building():
            self._build_fed()
            devices = [tower.device for tower in towers]
            specs = layout.unit_specs
            frozen_specs = [tf.TensorSpec(v.shape, v.dtype) for v in self._frozen]
            self.buffers = [
                DeviceBuffer(graph_session, devices, specs, f"buffer_{index}", frozen_specs)
                for index in range(num_buffers)
            ]
            self._learn_loaded = [self._build_loaded(buffer) for buffer in self.buffers]
            self._learn_all = [self._build_loop(buffer) for buffer in self.buffers]

    @property
    def stat_names(self) -> tuple[str, ...]:
        """Names of the statistics in the order of the result vectors."""
        return (*self._towers[0].stat_names, GRAD_NORM)

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
        return [next(present) if has else None for has in self._towers[0].has_gradient], stats

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
        rows = zip(names, self._variables, gradients, self._towers[0].has_gradient, strict=True)
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
        result, gradients = self._gradients(minibatch)
        if not any(self._towers[0].has_gradient):
            names = ", ".join(variable.name for variable in self._variables)
            raise ValueError(f"The loss depends on no trainable variable; there are: {names}.")
        fed = [tf.compat.v1.placeholder(value.dtype, value.shape) for value in gradients]
        # The first call makes the optimizer's variables; it must not happen inside a function.
        self._weights.apply(result.values, self._towers[0].has_gradient)
        applied = tf.function(self._trace_apply_fed, autograph=False)(fed)
        learned = tf.function(self._trace_learn_fed, autograph=False)(minibatch)
        call = self._graph_session.callable
        self._apply_fed = call(fed, [], [applied.op])
        self._compute_fed = call(inputs, [result.finite, result.stats, *gradients])
        self.fed_inputs, self.fed_results = inputs, list(learned)
        self._learn_fed = call(inputs, self.fed_results)

    def _build_loaded(self, buffer: DeviceBuffer) -> Any:
        offset = tf.compat.v1.placeholder(tf.int32, [])
        step = tf.function(
            lambda offset: self._trace_learn_loaded(buffer, offset),
            autograph=False,
            jit_compile=self._compile_whole,
        )
        return self._graph_session.callable([offset], list(step(offset)))

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
        fetches = [*loop(order), order[-1]]
        return self._graph_session.callable([num_epochs, seed, shuffle], fetches)

    def _trace_apply_fed(self, gradients: list[tf.Tensor]) -> tf.Tensor:
        """One update along gradients, one for each variable that the loss depends on."""
        self._weights.enter()
        present = iter(gradients)
        has_gradient = self._towers[0].has_gradient
        values = [next(present) if has else None for has in has_gradient]
        with tf.control_dependencies(
            [self._weights.apply(self._weights.packing.pack(values), has_gradient)]
        ):
            self._weights.leave()
        return tf.constant(True)

    def _trace_learn_fed(self, minibatch: Minibatch) -> tuple[Any, Any]:
        self._weights.enter()
        results = self._step(minibatch, False)
        self._weights.leave()
        return results

    def _trace_learn_loaded(self, buffer: DeviceBuffer, offset: tf.Tensor) -> tuple[Any, Any]:
        """One step on the units from `offset` on, fewer at the end of the buffer."""
        end = tf.minimum(offset + self._minibatch_units, buffer.read_num_units())
        self._weights.enter()
        results = self._step(self._take(buffer, tf.range(offset, end)), self._compiled)
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
            finite, stats = self._step(self._take(buffer, units), self._compiled)
            # A refused step is reported alone: a sum would hide which term was not finite.
            fresh = tf.logical_or(tf.equal(position, 0), tf.logical_not(finite))
            return index + 1, finite, tf.where(fresh, stats, sums + stats)

        self._weights.enter()
        _, finite, sums = tf.while_loop(
            lambda index, finite, _: tf.logical_and(index < num_steps, finite),
            step,
            (tf.constant(0), tf.constant(True), tf.zeros(len(self.stat_names))),
        )
        self._weights.leave()
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

    def _step(self, minibatch: Minibatch, compiled: bool) -> tuple[Any, Any]:
        """One update of the vectors, applied only if it is finite."""
        outputs = self._tower_outputs(minibatch, self._weights.read(), compiled)
        return self._updates[compiled](outputs, minibatch.counts)

    def _trace_update(
        self, outputs: list[TowerOutput], counts: list[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        result = self._total(outputs, counts)

        def apply() -> tf.Tensor:
            applied = self._weights.apply(result.values, self._towers[0].has_gradient)
            with tf.control_dependencies([applied]):
                return tf.constant(True)

        done = tf.cond(result.finite, apply, lambda: tf.constant(False))
        return done, result.stats

    def _trace_gradients(self, minibatch: Minibatch) -> tuple[Gradients, list[tf.Tensor]]:
        """The gradients, and for each variable that the loss depends on its own."""
        packing = self._weights.packing
        weights = packing.pack([variable.read_value() for variable in packing.variables])
        outputs = self._tower_outputs(minibatch, weights, compiled=False)
        result = self._total(outputs, minibatch.counts)
        values = zip(packing.unpack(result.values), self._towers[0].has_gradient, strict=True)
        return result, [value for value, has_gradient in values if has_gradient]

    def _tower_outputs(
        self, minibatch: Minibatch, weights: list[tf.Tensor], compiled: bool
    ) -> list[TowerOutput]:
        coefficients = {name: v.read_value() for name, v in self._coefficients.items()}
        return [
            tower(
                weights,
                coefficients,
                self._layout.as_rows(share),
                minibatch.frozen,
                minibatch.rows,
                compiled=compiled,
            )
            for tower, share in zip(self._towers, minibatch.shares, strict=True)
        ]

    def _total(self, outputs: Sequence[TowerOutput], counts: Sequence[tf.Tensor]) -> Gradients:
        total = combine(outputs, counts, self._towers[0].reduction)
        values, norm = global_norm_clip(total.gradients, self._grad_clip)
        finite = tf.logical_and(tf.math.is_finite(total.stats[0]), tf.math.is_finite(norm))
        if not self._check_numerics:
            finite = tf.ones_like(finite)
        return Gradients(values, tf.concat([total.stats, norm[None]], axis=0), finite)

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
        named = dict(zip(self.stat_names, stats.tolist(), strict=True))
        if not finite:
            terms = ", ".join(f"{name}={value:.6g}" for name, value in named.items())
            raise FloatingPointError(
                f"The loss or its gradients are not finite; the update was not applied: {terms}."
            )
        return named


def _placeholder(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.compat.v1.placeholder(spec.dtype, spec.shape)
