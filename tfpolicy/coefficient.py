"""Scalars of a loss or an optimizer that change during training: scheduled, or adapted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from tfpolicy.schedules import Schedule


class Coefficients(Mapping[str, tf.Variable]):
    """Scalars by name; each is a graph variable, so that it can change inside compiled loops.

    Attributes:
        current: What the variables hold, by name.

    Args:
        sources: For each name either a `Schedule`, which the timestep alone decides, or a number:
            where an adaptive coefficient starts.
    """

    def __init__(self, sources: Mapping[str, Schedule | float]):
        self._schedules = {k: v for k, v in sources.items() if isinstance(v, Schedule)}
        self.current = {
            name: source.value(0) if isinstance(source, Schedule) else float(source)
            for name, source in sources.items()
        }
        self._variables = {
            name: tf.compat.v1.get_variable(
                f"coefficients/{name}",
                initializer=np.float32(value),
                trainable=False,
                use_resource=True,
            )
            for name, value in self.current.items()
        }

    def scheduled(self, timestep: int) -> dict[str, float]:
        """What the scheduled ones are at a timestep."""
        return {name: schedule.value(timestep) for name, schedule in self._schedules.items()}

    @property
    def adaptive(self) -> list[str]:
        """Names of those without a schedule."""
        return [name for name in self if name not in self._schedules]

    @property
    def variables(self) -> list[tf.Variable]:
        """The graph variables in the order of the names."""
        return list(self._variables.values())

    def __getitem__(self, name: str) -> tf.Variable:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)
