"""One loss per device on its share of the rows, and one update out of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfpolicy.graph.packing import Packing
from tfpolicy.graph.placeholders import unknown_column
from tfpolicy.models.base import Model
from tfpolicy.ops.masking import masked_column_means, masked_mean

# The total loss leads the statistics of every tower.
TOTAL_LOSS = "total_loss"


class LossOutput(NamedTuple):
    """What a policy's loss gives.

    Attributes:
        loss: Scalar to be minimised.
        stats: By name either values of the rows, [B], or a scalar that is their mean already. What
            is reported is the mean over the valid rows of all towers.
        reduction: `"mean"` or `"sum"`: how `loss` was reduced over the rows. Gradients of means
            are averaged over towers by rows, those of sums are added.
    """

    loss: tf.Tensor
    stats: Mapping[str, tf.Tensor]
    reduction: str = "mean"


class TrainBatch(Mapping):
    """The columns of one tower, as the loss sees them.

    Attributes:
        mask: [B] bool, false for rows not to learn from: padding, and those that only warm up a
            recurrent state. `None` when there are none.
        coefficients: Scheduled and adaptive scalars by name.

    Args:
        columns: Tensors [B, ...] by name.
        coefficients: See above.
        max_seq_len: T if the rows are sequences padded to T, whose lengths are in `seq_lens`; a
            model reads it as a column.
    """

    def __init__(
        self,
        columns: Mapping[str, Any],
        coefficients: Mapping[str, tf.Tensor],
        max_seq_len: int | None = None,
    ):
        self._columns = columns
        self._max_seq_len = max_seq_len
        self.coefficients = coefficients
        self.mask = None if max_seq_len is None else sequence_mask(columns, max_seq_len)

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """The mean of `values` [B] over the valid rows."""
        return masked_mean(values, self.mask)

    def means(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The mean of each of `values` [B] over the valid rows; scalars stay as they are.

        All at once: one operation costs less than one for each.

        Raises:
            ValueError: One has more dimensions.
        """
        for name, value in values.items():
            if (value.shape.rank or 0) > 1:
                raise ValueError(
                    f"The statistic {name!r} must be a scalar or values of the rows, [B], "
                    f"got shape {value.shape}."
                )
        rows = [name for name, value in values.items() if value.shape.rank]
        if not rows:
            return dict(values)
        stacked = tf.stack([tf.cast(values[name], tf.float32) for name in rows], axis=1)
        means = tf.unstack(masked_column_means(stacked, self.mask))
        return {**values, **dict(zip(rows, means, strict=True))}

    @property
    def num_rows(self) -> tf.Tensor:
        """How many rows are valid, a scalar float32."""
        if self.mask is not None:
            return tf.reduce_sum(tf.cast(self.mask, tf.float32))
        return tf.cast(tf.shape(tf.nest.flatten(self["obs"])[0])[0], tf.float32)

    def __getitem__(self, name: str) -> Any:
        if name == "dones" and "dones" not in self._columns:
            return tf.logical_or(self["terminateds"], self["truncateds"])
        if name == "max_seq_len" and self._max_seq_len is not None:
            return self._max_seq_len
        if name == "actions" and self.mask is not None:
            # Zeros need not be an action; the first row is always a real one.
            return tf.nest.map_structure(self._repeat_first_row, self._columns[name])
        return self._columns[name]

    def _repeat_first_row(self, rows: tf.Tensor) -> tf.Tensor:
        mask = tf.reshape(self.mask, [-1] + [1] * (rows.shape.rank - 1))
        return tf.where(mask, rows, rows[:1])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def with_model_losses(output: LossOutput, model: Model, batch: TrainBatch) -> LossOutput:
    """Adds the losses and metrics that a model has of its own.

    Raises:
        ValueError: One of them has the name of another statistic.
    """
    losses, metrics = model.losses(batch), model.metrics(batch)
    stats = dict(output.stats)
    for name, values in [*losses.items(), *metrics.items()]:
        if name in stats:
            raise ValueError(f"Two statistics are named {name!r}; rename the one of the model.")
        stats[name] = values
    stats = batch.means(stats)
    total = output.loss
    for name in losses:
        total += stats[name] * (batch.num_rows if output.reduction == "sum" else 1.0)
    return output._replace(loss=total, stats=stats)


class FixedColumns(dict):
    """Columns that exist; asking for another names those that do."""

    def __missing__(self, name: str) -> Any:
        raise KeyError(unknown_column(name, list(self)))


class TowerOutput(NamedTuple):
    """What one device computes.

    Attributes:
        gradients: One for each vector of weights.
        stats: [K] float32, the total loss and then the loss's statistics.
    """

    gradients: tuple[tf.Tensor, ...]
    stats: tf.Tensor


def sequence_mask(columns: Mapping[str, Any], max_seq_len: int) -> tf.Tensor:
    """[S * T] bool: which rows of the sequences padded to T are learned from.

    Those are the real ones, but for rows that `burn_in` says only warm up a state.
    """
    mask = tf.reshape(tf.sequence_mask(columns["seq_lens"], max_seq_len), [-1])
    if "burn_in" not in columns:
        return mask
    return tf.logical_and(mask, tf.logical_not(columns["burn_in"]))


class Tower:
    """The loss and its gradients as one function of weights and columns, pinned to a device.

    The function is traced once and called from every place that learns: with fed columns, with a
    slice of a buffer, inside the loop over all minibatches.

    Args:
        device: Where it runs, for instance `"/GPU:0"`; `None` leaves it to TensorFlow.
        model: The model; the function gets its weights handed in.
        packing: How the trained weights lie in the vectors that it gets and gives gradients of.
        loss: Maps a `TrainBatch` to a `LossOutput`.
        gradients: Maps the loss and the tensors that stand for the variables to gradients.
        columns: The structure of the columns, with specs [B, ...] for leaves.
        max_seq_len: T if the rows are sequences padded to T.
        compiles_itself: Whether the compiled form is a compiled function, or is only ever called
            from one.
        frozen: Variables of the model in place of which it reads what it is called with.
    """

    def __init__(
        self,
        device: str | None,
        model: Model,
        packing: Packing,
        loss: Callable[[TrainBatch], LossOutput],
        gradients: Callable[[tf.Tensor, list[Any]], Sequence[tf.Tensor | None]],
        columns: Mapping[str, Any],
        max_seq_len: int | None,
        compiles_itself: bool,
        frozen: Sequence[tf.Variable] = (),
    ):
        self.device = device
        self.compiles_itself = compiles_itself
        self.stat_names: tuple[str, ...] = ()
        self.reduction = "mean"
        # For each variable, whether the loss depends on it.
        self.has_gradient: tuple[bool, ...] = ()
        # Names of variables that are read where they live, since the model keeps them out of reach.
        self.read_in_place: tuple[str, ...] = ()
        self._structure = dict(columns)
        self._traced = tf.function(self._trace_on_device, autograph=False)
        # Its operations have no device, the function as a whole has one: on a named CPU TensorFlow
        # fuses kernels, in functions that another one calls to be compiled, too, and XLA does not
        # know them.
        self._compiled = tf.function(
            self._trace_anywhere, autograph=False, jit_compile=compiles_itself
        )
        self._model, self._packing, self._frozen = model, packing, list(frozen)
        self._loss, self._gradients = loss, gradients
        self._max_seq_len = max_seq_len

    def __call__(
        self,
        weights: Sequence[tf.Tensor],
        coefficients: Mapping[str, tf.Tensor],
        leaves: Sequence[tf.Tensor],
        frozen: Sequence[tf.Tensor] = (),
        rows: tf.Tensor | None = None,
        *,
        compiled: bool = False,
    ) -> TowerOutput:
        """Adds the tower's computation to the graph.

        The compiled form is a function of its own, since TensorFlow rewrites what is called
        uncompiled with kernels that XLA does not know.

        Args:
            weights: The vectors of the trained weights.
            coefficients: Scalars that the loss may read, by name.
            leaves: The flattened columns.
            frozen: Values of the frozen variables.
            rows: [B] int32, which rows of the leaves to learn from; `None` for all. Taking them
                belongs to the function then.
            compiled: Whether it is the compiled form.
        """
        function = self._compiled if compiled else self._traced
        with tf.device(self.device):
            gradients, stats = function(
                list(weights), dict(coefficients), list(leaves), list(frozen), rows
            )
        return TowerOutput(tuple(gradients), stats)

    def columns(self, leaves: Sequence[tf.Tensor]) -> FixedColumns:
        """The inverse of `tf.nest.flatten` on this tower's columns."""
        return FixedColumns(tf.nest.pack_sequence_as(self._structure, list(leaves)))

    def _trace_on_device(self, *arguments: Any) -> Any:
        with tf.device(self.device):
            return self._trace(*arguments)

    def _trace_anywhere(self, *arguments: Any) -> Any:
        # Takes away what the model itself names, and ignores what is named around this.
        with tf.device(None), tf.compat.v1.device(lambda _: ""):
            return self._trace(*arguments)

    def _trace(
        self,
        weights: list[tf.Tensor],
        coefficients: dict[str, tf.Tensor],
        leaves: list[tf.Tensor],
        frozen: list[tf.Tensor],
        rows: tf.Tensor | None,
    ) -> Any:
        if rows is not None:
            leaves = [tf.gather(leaf, rows) for leaf in leaves]
        unpacked = self._packing.unpack(weights)
        variables, values = [*self._packing.variables, *self._frozen], [*unpacked, *frozen]
        with self._model.reading(variables, values) as readings:
            output = self._loss(TrainBatch(self.columns(leaves), coefficients, self._max_seq_len))
            gradients = self._gradients(output.loss, readings[: len(unpacked)])
            self.stat_names = (TOTAL_LOSS, *output.stats)
            self.reduction = output.reduction
            self.has_gradient = tuple(gradient is not None for gradient in gradients)
            means = [output.loss, *output.stats.values()]
            stats = tf.stack([tf.cast(mean, tf.float32) for mean in means])
            dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
            captured = tf.compat.v1.get_default_graph().external_captures
            self.read_in_place = tuple(t.op.name for t in captured if t.dtype == tf.resource)
            return self._packing.pack(dense), stats


def combine(
    outputs: Sequence[TowerOutput], num_valid: Sequence[tf.Tensor], reduction: str
) -> TowerOutput:
    """What one tower would have computed on all rows together.

    Args:
        outputs: One for each tower.
        num_valid: For each tower the number of its valid rows, a scalar; 0 leaves it out.
        reduction: The loss's reduction, see `LossOutput`.
    """
    if len(outputs) == 1:
        return outputs[0]
    counts = [tf.cast(count, tf.float32) for count in num_valid]
    shares = [count / tf.add_n(counts) for count in counts]
    present = [tf.cast(count > 0.0, tf.float32) for count in counts]
    factors = shares if reduction == "mean" else present
    gradients = tuple(
        tf.add_n([factor * g for factor, g in zip(factors, tower_gradients, strict=True)])
        for tower_gradients in zip(*(output.gradients for output in outputs), strict=True)
    )
    stats = tf.add_n([share * out.stats for share, out in zip(shares, outputs, strict=True)])
    if reduction == "sum":
        total = tf.add_n([f * out.stats[0] for f, out in zip(factors, outputs, strict=True)])
        stats = tf.concat([total[None], stats[1:]], axis=0)
    return TowerOutput(gradients, stats)
