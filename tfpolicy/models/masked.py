"""A model whose forbidden actions are masked, around a model that knows nothing of masks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from tfpolicy.models.action_mask import ActionMask
from tfpolicy.models.base import Model, ModelOutput
from tfpolicy.ops.masking import mask_logits
from tfpolicy.view_requirement import ViewRequirement

_OBSERVATIONS = ("obs", "new_obs")


class Masked(Model):
    """Hands the observation proper to another model, and masks the logits that it returns.

    As this is part of the model, acting, the loss and every export see masked logits alone.

    Args:
        inner: A model of the observation proper.
        mask: Reads the masks out of observations.
    """

    def __init__(self, inner: Model, mask: ActionMask):
        super().__init__(
            mask.observation_space,
            inner.action_space,
            inner.num_outputs,
            inner.config,
            inner.seed,
        )
        self.inner = inner
        self._mask = mask

    def __call__(self, columns: Mapping[str, Any]) -> ModelOutput:
        """Builds the forward pass of the inner model on `columns["obs"]` without the mask."""
        output = self.inner(self._inner_columns(columns))
        logits = mask_logits(output.dist_inputs, self._mask.allowed(columns["obs"]))
        return output._replace(dist_inputs=logits)

    def check_observations(self, leaves: Sequence[np.ndarray]) -> None:
        """Refuses rows in which no action is allowed."""
        self._mask.check(leaves)

    def initial_state(self) -> list[np.ndarray]:
        """That of the inner model."""
        return self.inner.initial_state()

    def view_requirements(self) -> dict[str, ViewRequirement]:
        """Those of the inner model; what it sees of observations has the mask beside it."""
        return {**self.inner.view_requirements(), **self._observation_views()}

    def losses(self, columns: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Those of the inner model."""
        return self.inner.losses(self._inner_columns(columns))

    def metrics(self, columns: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Those of the inner model."""
        return self.inner.metrics(self._inner_columns(columns))

    def keras_model(self) -> tf_keras.Model | None:
        """That of the inner model: its outputs are not masked."""
        return self.inner.keras_model()

    def named_networks(self) -> dict[str, list[tf.Variable]]:
        """Those of the inner model."""
        return self.inner.named_networks()

    @contextlib.contextmanager
    def reading(
        self, variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
    ) -> Iterator[list[Any]]:
        """Within this context the inner model computes with `values`."""
        with self.inner.reading(variables, values) as readings:
            yield readings

    def _inner_columns(self, columns: Mapping[str, Any]) -> _InnerColumns:
        names = {*_OBSERVATIONS, *self._observation_views()}
        return _InnerColumns(columns, names, self._mask.observations_key)

    def _observation_views(self) -> dict[str, ViewRequirement]:
        return {
            name: dataclasses.replace(view, space=self.observation_space)
            for name, view in self.inner.view_requirements().items()
            if (view.data_col or name) in _OBSERVATIONS
        }


class _InnerColumns(Mapping):
    """Columns as the inner model reads them, with observations that have no mask beside them."""

    def __init__(self, columns: Mapping[str, Any], names: set[str], observations_key: str):
        self._columns = columns
        self._names = names
        self._observations_key = observations_key

    def __getitem__(self, name: str) -> Any:
        value = self._columns[name]
        return value[self._observations_key] if name in self._names else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
