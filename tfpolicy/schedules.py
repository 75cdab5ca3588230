"""Schedules: a number that depends on the timestep."""

from __future__ import annotations

import abc
import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class Schedule(abc.ABC):
    """A number that depends on the timestep."""

    @abc.abstractmethod
    def value(self, t: int) -> float:
        """Returns the number at timestep `t`, which is not negative."""

    @abc.abstractmethod
    def lowest(self) -> float:
        """Returns the least that the number ever is, or what it comes ever nearer to."""


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
    """The same number at all times."""

    level: float

    def __post_init__(self) -> None:
        _check_finite("level", self.level)

    def value(self, t: int) -> float:
        """See base class."""
        return float(self.level)

    def lowest(self) -> float:
        """See base class."""
        return float(self.level)


@dataclasses.dataclass(frozen=True)
class Piecewise(Schedule):
    """Linear between `endpoints`, flat before the first and after the last.

    Attributes:
        endpoints: `(t, value)` pairs with increasing, not negative timesteps.
    """

    endpoints: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        pairs = tuple(_as_endpoint(pair) for pair in self.endpoints)
        if not pairs:
            raise ValueError("`endpoints`: expected at least one (t, value) pair, got none.")
        times = [t for t, _ in pairs]
        if times[0] < 0 or any(a >= b for a, b in zip(times, times[1:], strict=False)):
            raise ValueError(f"`endpoints`: expected increasing timesteps from 0, got {times}.")
        object.__setattr__(self, "endpoints", pairs)

    def value(self, t: int) -> float:
        """See base class."""
        times, values = zip(*self.endpoints, strict=True)
        return float(np.interp(t, times, values))

    def lowest(self) -> float:
        """See base class."""
        return min(value for _, value in self.endpoints)


@dataclasses.dataclass(frozen=True)
class Linear(Schedule):
    """From `initial_p` to `final_p` in `schedule_timesteps` equal steps, then flat."""

    schedule_timesteps: int
    final_p: float
    initial_p: float = 1.0

    def __post_init__(self) -> None:
        _check_timesteps(self.schedule_timesteps)
        _check_finite("final_p", self.final_p)
        _check_finite("initial_p", self.initial_p)

    def value(self, t: int) -> float:
        """See base class."""
        fraction = min(t / self.schedule_timesteps, 1.0)
        # Weighted this way round, both ends come out exactly.
        return float((1.0 - fraction) * self.initial_p + fraction * self.final_p)

    def lowest(self) -> float:
        """See base class."""
        return float(min(self.initial_p, self.final_p))


@dataclasses.dataclass(frozen=True)
class Exponential(Schedule):
    """`initial_p · decay_rate ^ (t / schedule_timesteps)`."""

    schedule_timesteps: int
    initial_p: float
    decay_rate: float = 0.1

    def __post_init__(self) -> None:
        _check_timesteps(self.schedule_timesteps)
        _check_finite("initial_p", self.initial_p)
        _check_finite("decay_rate", self.decay_rate)
        if self.decay_rate <= 0:
            raise ValueError(f"`decay_rate` must be positive, got {self.decay_rate}.")

    def value(self, t: int) -> float:
        """See base class."""
        return float(self.initial_p * self.decay_rate ** (t / self.schedule_timesteps))

    def lowest(self) -> float:
        """See base class."""
        if self.decay_rate == 1.0:
            return float(self.initial_p)
        end = 0.0 if self.decay_rate < 1.0 else math.copysign(math.inf, self.initial_p)
        return float(min(self.initial_p, end))


_TYPES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "piecewise": Piecewise,
    "linear": Linear,
    "exponential": Exponential,
}


def make_schedule(spec: Any) -> Schedule:
    """Returns the schedule that a config describes.

    Args:
        spec: A number (constant); a list of `[t, value]` pairs (piecewise linear); a dict with
            `type` ("constant", "piecewise", "linear", "exponential", or RLlib's "LinearSchedule"
            and so on) and the arguments of that class; or a schedule, which is returned.

    Raises:
        ValueError: If the type is unknown, its arguments are, or a value is out of range.
        TypeError: If `spec` is nothing of this.
    """
    if isinstance(spec, Schedule):
        return spec
    if isinstance(spec, int | float | np.number) and not isinstance(spec, bool):
        return Constant(float(spec))
    if isinstance(spec, Mapping):
        return _from_mapping(spec)
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return Piecewise(tuple(spec))
    raise TypeError(
        f"A schedule is a number, a list of [t, value] pairs or a dict with `type`, got {spec!r}."
    )


def check_not_negative(name: str, spec: Any) -> None:
    """Checks what a config says of a coefficient that only makes sense from 0 on.

    Args:
        name: The key of the config.
        spec: As for `make_schedule`, or `None` for no schedule.

    Raises:
        ValueError: It describes no schedule, or one that is negative somewhere.
    """
    if spec is None:
        return
    try:
        lowest = make_schedule(spec).lowest()
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}`: {error}") from error
    if lowest < 0.0:
        raise ValueError(f"`{name}` must be at least 0.0 at all times, but it goes to {lowest}.")


def _from_mapping(spec: Mapping[str, Any]) -> Schedule:
    options = dict(spec)
    name = options.pop("type", None)
    known = str(name).lower().removesuffix("schedule")
    if known not in _TYPES:
        raise ValueError(f"Unknown schedule type {name!r}{_hint(known, _TYPES)}")
    schedule_class = _TYPES[known]
    fields = {field.name: field for field in dataclasses.fields(schedule_class)}  # type: ignore[arg-type]
    for option in options:
        if option not in fields:
            raise ValueError(
                f"Unknown option {option!r} of a {known} schedule{_hint(option, fields)}"
            )
    missing = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and name not in options
    ]
    if missing:
        raise ValueError(f"A {known} schedule needs {missing}, got {sorted(options)}.")
    return schedule_class(**options)


def _hint(name: str, known: Mapping[str, Any]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return f"{meant} Known: {sorted(known)}."


def _as_endpoint(pair: Any) -> tuple[int, float]:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise ValueError(f"`endpoints`: expected (t, value) pairs, got {pair!r}.")
    t, value = pair
    _check_finite("t of an endpoint", t)
    _check_finite("value of an endpoint", value)
    # 1e6 is how people write a million timesteps.
    if t != int(t):
        raise ValueError(f"`endpoints`: expected whole timesteps, got {t}.")
    return int(t), float(value)


def _check_timesteps(schedule_timesteps: float) -> None:
    _check_finite("schedule_timesteps", schedule_timesteps)
    if schedule_timesteps <= 0:
        raise ValueError(f"`schedule_timesteps` must be positive, got {schedule_timesteps}.")


def _check_finite(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ValueError(f"`{name}`: expected a number, got {value!r}.")
    if not math.isfinite(value):
        raise ValueError(f"`{name}`: expected a finite number, got {value}.")
