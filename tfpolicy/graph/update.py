"""One update out of all towers: their gradients averaged, clipped, checked and applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfpolicy.graph.layout import TrainLayout
from tfpolicy.graph.packing import TrainedWeights
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


class Update:
    """What one step of learning is, wherever its rows come from.

    Args:
        layout: The columns that learning reads.
        towers: One for each device.
        weights: The weights that are trained.
        coefficients: Variables that the loss may read, by name.
        grad_clip: Largest global norm of the averaged gradients; `None` for no limit.
        check_numerics: Whether an update that is not finite is refused.
        compiles_itself: Whether the compiled form is a compiled function, or is only ever called
            from one.
    """

    def __init__(
        self,
        layout: TrainLayout,
        towers: Sequence[Tower],
        weights: TrainedWeights,
        coefficients: Mapping[str, tf.Variable],
        *,
        grad_clip: float | None,
        check_numerics: bool,
        compiles_itself: bool,
    ):
        self._layout, self._towers, self._weights = layout, towers, weights
        self._coefficients = dict(coefficients)
        self._grad_clip = grad_clip
        self._check_numerics = check_numerics
        # Traced once each, and called from all ways to learn. What follows the towers is numerous
        # operations on few numbers: uncompiled, starting them takes longer than a small tower.
        self._applied = {
            compiled: tf.function(
                self._trace_apply, autograph=False, jit_compile=compiled and compiles_itself
            )
            for compiled in (False, True)
        }

    @property
    def stat_names(self) -> tuple[str, ...]:
        """Names of the statistics in the order of the result vectors."""
        return (*self._towers[0].stat_names, GRAD_NORM)

    @property
    def has_gradient(self) -> tuple[bool, ...]:
        """For each variable, whether the loss depends on it; known after the first call."""
        return self._towers[0].has_gradient

    def gradients(self, minibatch: Minibatch) -> tuple[Gradients, list[tf.Tensor]]:
        """The gradients, and for each variable that the loss depends on its own."""
        packing = self._weights.packing
        weights = packing.pack([variable.read_value() for variable in packing.variables])
        outputs = self._outputs(minibatch, weights, compiled=False)
        result = self._total(outputs, minibatch.counts)
        values = zip(packing.unpack(result.values), self.has_gradient, strict=True)
        return result, [value for value, has_gradient in values if has_gradient]

    def apply(self, gradients: Sequence[tf.Tensor]) -> tf.Operation:
        """One step of the optimizer on the vectors, along one gradient for each of them."""
        return self._weights.apply(gradients, self.has_gradient)

    def step(self, minibatch: Minibatch, *, compiled: bool) -> tuple[Any, Any]:
        """Changes the vectors of weights, unless the update is not finite.

        Returns:
            Whether it is finite, a scalar bool, and the statistics [K].
        """
        outputs = self._outputs(minibatch, self._weights.read(), compiled)
        return self._applied[compiled](outputs, minibatch.counts)

    def _trace_apply(
        self, outputs: list[TowerOutput], counts: list[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        result = self._total(outputs, counts)

        def apply() -> tf.Tensor:
            with tf.control_dependencies([self.apply(result.values)]):
                return tf.constant(True)

        done = tf.cond(result.finite, apply, lambda: tf.constant(False))
        return done, result.stats

    def _outputs(
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
