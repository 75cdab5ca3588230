"""How a policy learns: from batches at hand, and from batches that lie on the devices."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfpolicy.coefficient import Coefficients
from tfpolicy.distributions import ActionDistribution
from tfpolicy.graph.buffer import DeviceBuffer
from tfpolicy.graph.discovery import columns_read
from tfpolicy.graph.filter_statistics import FilterStatistics, Update
from tfpolicy.graph.layout import TrainLayout
from tfpolicy.graph.learner import Learner
from tfpolicy.graph.packing import Packing, TrainedWeights, elementwise
from tfpolicy.graph.placeholders import ColumnSpec
from tfpolicy.graph.session import GraphSession, variable_names
from tfpolicy.graph.towers import TOTAL_LOSS, LossOutput, Tower, TrainBatch, with_model_losses
from tfpolicy.graph.update import GRAD_NORM
from tfpolicy.hooks import PolicyHooks
from tfpolicy.models import Model
from tfpolicy.models.base import replaceable_variables
from tfpolicy.models.filtered import Filtered
from tfpolicy.policy import LEARNER_STATS_KEY
from tfpolicy.policy_state import PolicyState
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.schedules import make_schedule
from tfpolicy.sequences import padded_sequences
from tfpolicy.spaces import check_in_range, flatten, leaf_spaces


class Learning:
    """The learner of one policy, what it takes, and what it reports.

    Args:
        graph_session: The policy's graph, with the model's variables in it.
        hooks: The policy's loss and what belongs to it.
        model: The model.
        dist_class: Its action distribution.
        devices: One for each tower.
        specs: The columns that the loss may read.
        repeats: For views of which one value is seen for several rows, for how many.
        observation_filter: The model itself, if it normalizes observations.

    Attributes:
        reads: Names of the columns that learning reads.
        layout: How these columns lie in memory.
        trainable_names: Names of the variables that gradients are aligned with.
        coefficients: Scheduled and adaptive scalars.
        state: The variables that learning changes.
    """

    def __init__(
        self,
        graph_session: GraphSession,
        hooks: PolicyHooks,
        model: Model,
        dist_class: ActionDistribution,
        devices: Sequence[str | None],
        specs: Mapping[str, ColumnSpec],
        repeats: Mapping[str, int],
        observation_filter: Filtered | None = None,
    ):
        self._hooks, self._model, self._dist_class = hooks, model, dist_class
        # By the index of a buffer, what its batch adds to every result.
        self._told: dict[int, dict[str, Any]] = {}
        frozen = [] if observation_filter is None else observation_filter.variables
        config = hooks.config
        get = graph_session.graph.get_collection
        weights = get(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        trainable = get(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
        self.trainable_names = variable_names(trainable)
        states = [f"state_in_{index}" for index in range(len(model.initial_state()))]
        has_sequences = states or not repeats.keys().isdisjoint(model.view_requirements())
        max_seq_len = config.model.max_seq_len if has_sequences else None
        self._burn_in = config.model.burn_in if states else 0
        if self._burn_in:
            specs = {**specs, "burn_in": tf.TensorSpec([], tf.bool)}
        with graph_session.building():
            rate = make_schedule(config.lr if config.lr_schedule is None else config.lr_schedule)
            self.coefficients = Coefficients({"lr": rate, **hooks.coefficient_sources()})
            optimizer = hooks.optimizer(self.coefficients["lr"].read_value)
            reads = columns_read(self._tower_loss, specs, self.coefficients, max_seq_len)
            self.reads = [*reads, *states]
            repeated = {name: repeats[name] for name in reads if name in repeats}
            _check_repeats(repeated, max_seq_len)
            read_specs = {name: specs[name] for name in self.reads}
            self.layout = TrainLayout(read_specs, max_seq_len, repeated)
            packable = replaceable_variables(model, trainable) if elementwise(optimizer) else []
            weights_in_training = TrainedWeights(Packing(trainable, packable), optimizer)
            towers = [
                Tower(
                    device,
                    model,
                    weights_in_training.packing,
                    self._tower_loss,
                    lambda loss, variables: hooks.gradients(optimizer, loss, variables),
                    self.layout.batch_specs,
                    max_seq_len,
                    compiles_itself=len(devices) > 1 or max_seq_len is not None,
                    frozen=frozen,
                )
                for device in devices
            ]
        self.rows_per_unit = self.layout.rows_per_unit
        rows_per_device, left_over = divmod(config.minibatch_size, len(devices))
        if left_over:
            warnings.warn(
                f"A minibatch of {config.minibatch_size} rows cannot be dealt evenly to "
                f"{len(devices)} towers: minibatches of loaded batches have "
                f"{config.minibatch_size - left_over} rows.",
                stacklevel=4,
            )
        self._minibatch_units = max(rows_per_device // self.rows_per_unit, 1)
        self.learner = Learner(
            graph_session,
            self.layout,
            towers,
            weights_in_training,
            self.coefficients,
            frozen=frozen,
            minibatch_units=self._minibatch_units,
            num_buffers=config.num_multi_gpu_tower_stacks,
            grad_clip=config.grad_clip,
            check_numerics=config.check_numerics,
            jit_compile=config.jit_compile,
        )
        with graph_session.building():
            own = weights_in_training.own_variables
            slots = weights_in_training.optimizer_variables(towers[0].has_gradient)
        loaded = [v for buffer in self.learner.buffers for v in buffer.variables]
        # In one call: each looks through the whole graph.
        graph_session.initialize([*own, *self.coefficients.variables, *loaded])
        self.state = PolicyState(
            graph_session, weights, slots, self.coefficients, check_numerics=config.check_numerics
        )
        self._statistics = None
        if observation_filter is not None:
            self._statistics = FilterStatistics(graph_session, observation_filter)

    def learn_on_batch(self, batch: SampleBatch, metrics: dict[str, Any]) -> dict[str, Any]:
        """One step on all rows; `metrics` are part of the result."""
        leaves = self._leaves(batch)
        update = self._filter_update(batch)
        stats = self.learner.learn_on_leaves(leaves)
        told = self._enter(update, metrics)
        return self._result(stats, told, self.layout.num_valid(leaves), 0)

    def compute_gradients(
        self, batch: SampleBatch, metrics: dict[str, Any]
    ) -> tuple[list[np.ndarray | None], dict[str, Any]]:
        """The gradients of one step on all rows, and its result."""
        leaves = self._leaves(batch)
        gradients, stats = self.learner.gradients_of_leaves(leaves)
        told = {"custom_metrics": metrics}
        return gradients, self._result(stats, told, self.layout.num_valid(leaves), 0)

    def apply_gradients(self, gradients: Sequence[np.ndarray | None]) -> None:
        """One step along given gradients."""
        self.learner.apply_gradients(gradients)

    def load(self, batch: SampleBatch, metrics: dict[str, Any], buffer_index: int) -> None:
        """Copies what learning reads onto the devices; `metrics` become part of every result."""
        buffer = self._buffer(buffer_index)
        leaves = self._leaves(batch)
        update = self._filter_update(batch)
        frozen = [] if update is None else update.before
        buffer.load(leaves, self.layout.unit_rows(leaves), frozen)
        self._told[buffer_index] = self._enter(update, metrics)

    def update_filter(self, batch: SampleBatch) -> None:
        """Enters a batch into the statistics of the observation filter, without learning from it.

        Raises:
            ValueError: There is no filter, or the observations do not fit.
        """
        update = self._filter_update(batch)
        if update is None:
            raise ValueError("This policy has no observation filter: `observation_filter` says so.")
        self._enter(update, {})

    def release(self) -> None:
        """Frees the memory of all that is loaded."""
        for buffer in self.learner.buffers:
            buffer.release()

    def num_loaded(self, buffer_index: int) -> int:
        """Rows per device, padding included."""
        return self._buffer(buffer_index).num_units * self.rows_per_unit

    def learn_on_loaded(self, offset: int, buffer_index: int) -> dict[str, Any]:
        """One step on the minibatch that begins at row `offset` of every device."""
        buffer = self._buffer(buffer_index)
        first = offset // self.rows_per_unit
        stats = self.learner.learn_on_loaded(buffer_index, first)
        num_rows = buffer.unit_rows[first : first + self._minibatch_units].sum()
        return self._buffer_result(stats, buffer_index, num_rows, 0)

    def learn_on_buffer(
        self, num_epochs: int, seed: np.ndarray, shuffle: bool, buffer_index: int
    ) -> dict[str, Any]:
        """All epochs of minibatch SGD; statistics and rows are those of the last epoch."""
        buffer = self._buffer(buffer_index)
        stats, units = self.learner.learn_on_buffer(buffer_index, num_epochs, seed, shuffle)
        num_rows = buffer.unit_rows[units].sum()
        return self._buffer_result(stats, buffer_index, num_rows, buffer.unit_rows.sum() - num_rows)

    def check_loaded(self, buffer_index: int) -> None:
        """Raises a `ValueError` if there is nothing to learn from in a buffer."""
        if not self._buffer(buffer_index).num_units:
            raise ValueError(
                f"Buffer {buffer_index} is empty: call `load_batch_into_buffer` before learning "
                f"from it."
            )

    def check_offset(self, offset: int, buffer_index: int) -> None:
        """Raises a `ValueError` if no minibatch begins at row `offset` of a buffer."""
        self.check_loaded(buffer_index)
        num_rows = self.num_loaded(buffer_index)
        if not 0 <= offset < num_rows or offset % self.rows_per_unit:
            multiple = f", a multiple of {self.rows_per_unit}" if self.rows_per_unit > 1 else ""
            raise ValueError(f"`offset` must be in 0 to {num_rows - 1}{multiple}, got {offset}.")

    def follow_schedules(self, timestep: int) -> None:
        """Sets the scheduled coefficients to what they are at a timestep."""
        scheduled = self.coefficients.scheduled(timestep)
        current = self.coefficients.current
        if any(current[name] != value for name, value in scheduled.items()):
            self.state.set_coefficients(scheduled)

    def _tower_loss(self, train_batch: TrainBatch) -> LossOutput:
        output = self._hooks.loss(self._model, self._dist_class, train_batch)
        if not isinstance(output, LossOutput):
            raise TypeError(f"`loss` must return a `LossOutput`, got {type(output).__name__}.")
        if output.loss.shape.rank != 0:
            raise ValueError(
                f"The loss must be a scalar, got shape {output.loss.shape}: reduce it over the "
                f"rows with `train_batch.mean`."
            )
        taken = sorted({TOTAL_LOSS, GRAD_NORM, *self.coefficients} & set(output.stats))
        if taken:
            raise ValueError(f"Statistics of the loss may not be named {', '.join(taken)}.")
        return with_model_losses(output, self._model, train_batch)

    def _leaves(self, batch: SampleBatch) -> list[np.ndarray]:
        """The arrays that learning takes out of a batch."""
        batch = self._hooks.prepare_train_batch(batch)
        columns: Mapping[str, Any] = batch
        if self.layout.max_seq_len is not None:
            columns = padded_sequences(
                batch, self.layout.max_seq_len, self._burn_in, self.layout.per_sequence
            )
        leaves = self.layout.leaves(columns)
        self._check_discrete(batch)
        if SampleBatch.OBS in self.layout.specs:
            self._model.check_observations(
                flatten(self._model.observation_space, batch[SampleBatch.OBS])
            )
        return leaves

    def _filter_update(self, batch: SampleBatch) -> Update | None:
        """What a batch makes of the statistics of the filter, if there is one."""
        return None if self._statistics is None else self._statistics.update(batch)

    def _enter(self, update: Update | None, metrics: dict[str, Any]) -> dict[str, Any]:
        """Assigns the statistics of the filter; gives what is to be told of a batch."""
        if self._statistics is None or update is None:
            return {"custom_metrics": metrics}
        self._statistics.assign(update)
        return {"custom_metrics": metrics, "num_rows_not_finite": update.num_rows_not_finite}

    def _check_discrete(self, batch: SampleBatch) -> None:
        """Raises a `ValueError` if an observation or action is none of its space's."""
        if SampleBatch.ACTIONS in self.layout.specs:
            self._dist_class.check_actions(batch[SampleBatch.ACTIONS], SampleBatch.ACTIONS)
        space = self._model.observation_space
        for name in (SampleBatch.OBS, SampleBatch.NEXT_OBS):
            if name in self.layout.specs:
                leaves = leaf_spaces(space, name).items()
                values = flatten(space, batch[name], name)
                for (leaf_name, leaf), value in zip(leaves, values, strict=True):
                    check_in_range(leaf, np.asarray(value), leaf_name)

    def _buffer(self, index: int) -> DeviceBuffer:
        buffers = self.learner.buffers
        if not 0 <= index < len(buffers):
            raise ValueError(f"`buffer_index` must be in 0 to {len(buffers) - 1}, got {index}.")
        return buffers[index]

    def _buffer_result(
        self, stats: dict[str, float], buffer_index: int, num_rows: int, num_left_over: int
    ) -> dict[str, Any]:
        dropped = self._buffer(buffer_index).num_rows_dropped + num_left_over
        return self._result(stats, self._told[buffer_index], int(num_rows), int(dropped))

    def _result(
        self, means: dict[str, float], told: dict[str, Any], num_rows: int, num_dropped: int
    ) -> dict[str, Any]:
        return {
            LEARNER_STATS_KEY: {**self._hooks.stats(means), **self.coefficients.current},
            **told,
            "num_rows": num_rows,
            "num_rows_dropped": num_dropped,
        }


def _check_repeats(repeats: Mapping[str, int], max_seq_len: int | None) -> None:
    """Refuses views of which one value is to be seen for rows that do not stay together."""
    for name, repeat in repeats.items():
        if max_seq_len is None:
            raise ValueError(
                f"`{name}`: `batch_repeat_value` {repeat} is for networks that learn from "
                f"sequences, with a state or with such a view of their own; here rows are learned "
                f"from one by one."
            )
        if repeat != max_seq_len:
            raise ValueError(
                f"`{name}`: `batch_repeat_value` must be 1 or `max_seq_len` ({max_seq_len}), so "
                f"that each sequence has one value, got {repeat}."
            )
