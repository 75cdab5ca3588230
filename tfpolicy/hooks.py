"""What a policy's author writes: the loss, and what belongs to it."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfpolicy.config import PolicyConfig
from tfpolicy.distributions import ActionDistribution
from tfpolicy.graph.towers import LossOutput, TrainBatch
from tfpolicy.models import Model
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.schedules import Schedule
from tfpolicy.view_requirement import ViewRequirement


class PolicyHooks(abc.ABC):
    """The hooks of a policy. They are pure: they read their arguments and `self.config`."""

    config: PolicyConfig

    @abc.abstractmethod
    def loss(
        self, model: Model, dist_class: ActionDistribution, train_batch: TrainBatch
    ) -> LossOutput:
        """Builds the loss of one tower.

        Args:
            model: Maps the batch to a `ModelOutput`.
            dist_class: Maps its `dist_inputs` to a distribution.
            train_batch: Tensors [B, ...] by column; reading a column makes it an input.
        """

    def trajectory_views(self) -> dict[str, ViewRequirement]:
        """Columns that the loss or the postprocessing reads beside the usual ones."""
        return {}

    def coefficient_sources(self) -> dict[str, Schedule | float]:
        """Scalars for `train_batch.coefficients`: a schedule, or where an adaptive one starts."""
        return {}

    def optimizer(self, learning_rate: Any) -> tf.compat.v1.train.Optimizer:
        """The optimizer; `learning_rate` is a function that reads the scheduled rate.

        One that is not of `tf.compat.v1.train` gets each variable by itself. Those that change each
        number alone, Adam for instance, are handed all small ones in one vector, which is faster.
        """
        return tf.compat.v1.train.AdamOptimizer(learning_rate)

    def gradients(
        self, optimizer: tf.compat.v1.train.Optimizer, loss: tf.Tensor, variables: Sequence[Any]
    ) -> Sequence[tf.Tensor | None]:
        """Gradients of one tower, aligned with `variables`; clipping comes later, only once."""
        return tf.gradients(loss, variables)

    def stats(self, means: Mapping[str, float]) -> dict[str, float]:
        """What learning reports, out of the means over rows, towers and minibatches."""
        return dict(means)

    def prepare_train_batch(self, batch: SampleBatch) -> SampleBatch:
        """What must see the whole train batch, before it is split: standardising, for instance."""
        return batch
