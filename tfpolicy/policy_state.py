"""What a policy keeps in graph variables: moving it out and in, all or nothing."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfpolicy.coefficient import Coefficients
from tfpolicy.graph.packing import OptimizerVariables
from tfpolicy.graph.session import GraphSession, check_values, variable_names

STATE_VERSION = 1


class PolicyState:
    """Weights, optimizer variables and coefficients of one policy.

    Args:
        graph_session: Where the variables live.
        weights: All variables of the model, trained or not.
        optimizer_variables: What the optimizer keeps.
        coefficients: Scheduled and adaptive scalars.
        check_numerics: Whether weights that are assigned must be finite.
    """

    def __init__(
        self,
        graph_session: GraphSession,
        weights: Sequence[tf.Variable],
        optimizer_variables: OptimizerVariables,
        coefficients: Coefficients,
        *,
        check_numerics: bool = True,
    ):
        self._graph_session = graph_session
        self._weights = list(weights)
        self._optimizer_variables = optimizer_variables
        self._coefficients = coefficients
        self._check_numerics = check_numerics
        self._all = [*self._weights, *optimizer_variables.variables]
        for group in (self._weights, self._all, coefficients.variables):
            graph_session.prepare_access(group)

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the model's variables by name."""
        names = variable_names(self._weights)
        return {n: tuple(v.shape) for n, v in zip(names, self._weights, strict=True)}

    def get_weights(self) -> dict[str, np.ndarray]:
        """The model's variables by name."""
        return self._graph_session.read(self._weights)

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Assigns them if all fit."""
        check_values(self._weights, weights, "weights", finite=self._check_numerics)
        self._graph_session.write(self._weights, weights)

    def import_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Assigns some of the weights, or all, and reads them back.

        Raises:
            ValueError: One does not fit; nothing was assigned.
            RuntimeError: One reads back as something else; all is as it was before.
        """
        before = self.get_weights()
        self.set_weights({**before, **weights})
        for name, value in self.get_weights().items():
            expected = weights.get(name, before[name]).astype(value.dtype)
            if not np.array_equal(value, expected, equal_nan=True):
                self.set_weights(before)
                raise RuntimeError(f"`{name}` was assigned but reads back otherwise; undone.")

    def set_coefficients(self, values: Mapping[str, float]) -> None:
        """Assigns some coefficients."""
        unknown = [name for name in values if name not in self._coefficients]
        if unknown:
            raise KeyError(
                f"No coefficient {unknown[0]!r}; there are {', '.join(self._coefficients)}."
            )
        _check_finite(values)
        self._coefficients.current.update({name: float(v) for name, v in values.items()})
        named = {
            variable.name.removesuffix(":0"): np.asarray(
                self._coefficients.current[name], np.float32
            )
            for name, variable in self._coefficients.items()
        }
        self._graph_session.write(self._coefficients.variables, named)

    def get_state(self) -> dict[str, Any]:
        """The format version, and all arrays in one session call."""
        values = self._graph_session.read(self._all)
        names = list(values)
        count = len(self._weights)
        return {
            "format_version": STATE_VERSION,
            "weights": {name: values[name] for name in names[:count]},
            "optimizer_variables": self._optimizer_variables.taken_apart(values),
            "coefficients": dict(self._coefficients.current),
        }

    def check(self, state: Mapping[str, Any], further: Sequence[str]) -> None:
        """Checks a state as a whole, so that nothing is assigned of one that does not fit.

        Args:
            state: What `get_state` gave, and what the policy added to it.
            further: The keys that the policy added.

        Raises:
            ValueError: A key is missing or unknown, a version is later, names or shapes differ.
        """
        version = state.get("format_version")
        if version != STATE_VERSION:
            raise ValueError(
                f"The state has format version {version!r}, this tfpolicy reads {STATE_VERSION}."
            )
        own = ("format_version", "weights", "optimizer_variables", "coefficients")
        expected = {*own, *further}
        if set(state) != expected:
            missing = ", ".join(sorted(expected - set(state))) or "none"
            unexpected = ", ".join(sorted(set(state) - expected)) or "none"
            raise ValueError(f"The state lacks: {missing}; it has, unexpected: {unexpected}.")
        check_values(self._weights, state["weights"], "weights")
        kept = state["optimizer_variables"]
        check_values(self._optimizer_variables.parts, kept, "optimizer variables")
        if set(state["coefficients"]) != set(self._coefficients):
            raise ValueError(
                f"The state's coefficients are {', '.join(state['coefficients'])}; this policy's "
                f"are {', '.join(self._coefficients)}."
            )
        _check_finite(state["coefficients"])

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Assigns what `check` has let through."""
        values = self._graph_session.read(self._all)
        values = self._optimizer_variables.put_together(values, state["optimizer_variables"])
        self._graph_session.write(self._all, {**values, **state["weights"]})
        self.set_coefficients(state["coefficients"])


def _check_finite(coefficients: Mapping[str, Any]) -> None:
    for name, value in coefficients.items():
        number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not number or not np.isfinite(float(value)):
            raise ValueError(f"Coefficient {name!r} must be a finite number, got {value!r}.")
