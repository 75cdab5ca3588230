"""Models around other models, which hand them other observations than those that there are."""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf
import tf_keras

from tfpolicy.models.base import Model, ModelOutput
from tfpolicy.view_requirement import ViewRequirement

_OBSERVATIONS = ("obs", "new_obs")


class ObservationWrapper(Model):
    """Hands an inner model something that is made of each observation; all else is the inner's.

    As this is part of the model, acting, the loss and every export do the same.

    Args:
        inner: A model of what is made of observations.
        observation_space: The environment's own.
    """

    def __init__(self, inner: Model, observation_space: gym.Space):
        super().__init__(
            observation_space, inner.action_space, inner.num_outputs, inner.config, inner.seed
        )
        self.inner = inner

    @abc.abstractmethod
    def inner_observation(self, observation: Any) -> Any:
        """What the inner model sees.

        Args:
            observation: Tensors [B, ...] in the structure of the space, or of windows [B, K, ...].
        """

    def __call__(self, columns: Mapping[str, Any]) -> ModelOutput:
        """Builds the forward pass of the inner model."""
        return self.inner(self._inner_columns(columns))

    def check_observations(self, leaves: Sequence[np.ndarray]) -> None:
        """As the inner model does."""
        self.inner.check_observations(leaves)

    def initial_state(self) -> list[np.ndarray]:
        """That of the inner model."""
        return self.inner.initial_state()

    def view_requirements(self) -> dict[str, ViewRequirement]:
        """Those of the inner model."""
        return self.inner.view_requirements()

    def losses(self, columns: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Those of the inner model."""
        return self.inner.losses(self._inner_columns(columns))

    def metrics(self, columns: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Those of the inner model."""
        return self.inner.metrics(self._inner_columns(columns))

    def keras_model(self) -> tf_keras.Model | None:
        """That of the inner model, on what the inner model sees."""
        return self.inner.keras_model()

    def named_networks(self) -> dict[str, list[tf.Variable]]:
        """Those of the inner model."""
        return self.inner.named_networks()

    @contextlib.contextmanager
    def reading(
        self, variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
    ) -> Iterator[list[Any]]:
        """Within this context both models compute with `values`."""
        with (
            super().reading(variables, values) as own,
            self.inner.reading(variables, values) as inner,
        ):
            pairs = zip(variables, own, inner, strict=True)
            yield [theirs if mine is variable else mine for variable, mine, theirs in pairs]

    def observation_views(self) -> dict[str, ViewRequirement]:
        """Those of the inner model's views that look at observations."""
        return {
            name: view
            for name, view in self.inner.view_requirements().items()
            if (view.data_col or name) in _OBSERVATIONS and not view.as_mask
        }

    def made_columns(self) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
        """By its name, how each column that the inner model sees otherwise is made of all."""

        def make(name: str, columns: Mapping[str, Any]) -> Any:
            return self.inner_observation(columns[name])

        names = {*_OBSERVATIONS, *self.observation_views()}
        return {name: functools.partial(make, name) for name in names}

    def _inner_columns(self, columns: Mapping[str, Any]) -> _InnerColumns:
        return _InnerColumns(columns, self.made_columns())


class _InnerColumns(Mapping):
    """Columns of which some are made of others, each once and when it is first read."""

    def __init__(
        self,
        columns: Mapping[str, Any],
        functions: Mapping[str, Callable[[Mapping[str, Any]], Any]],
    ):
        self._columns = columns
        self._functions = functions
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._functions:
            return self._columns[name]
        if name not in self._made:
            self._made[name] = self._functions[name](self._columns)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
