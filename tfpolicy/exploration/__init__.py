"""Ways to choose actions when exploring: one class a file, and the choice by a config."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym

from tfpolicy.distributions import ActionDistribution
from tfpolicy.exploration.base import Exploration
from tfpolicy.exploration.epsilon_greedy import EpsilonGreedy
from tfpolicy.exploration.gaussian_noise import GaussianNoise
from tfpolicy.exploration.random import Random
from tfpolicy.exploration.random_start import RandomStart
from tfpolicy.exploration.stochastic_sampling import StochasticSampling

__all__ = [
    "EpsilonGreedy",
    "Exploration",
    "GaussianNoise",
    "Random",
    "RandomStart",
    "StochasticSampling",
    "exploration_for",
]

_TYPES: dict[str, type[Exploration]] = {
    kind.__name__: kind for kind in (EpsilonGreedy, GaussianNoise, Random, StochasticSampling)
}


def exploration_for(
    config: Mapping[str, Any], action_space: gym.Space, action_dist: ActionDistribution
) -> Exploration:
    """Returns the exploration that an `exploration_config` describes.

    Args:
        config: `type`, a name or a subclass of `Exploration`, and the options of that class.
        action_space: The policy's own action space.
        action_dist: Makes the distribution over it from the outputs of the model.

    Raises:
        ValueError: The type or an option is unknown, an option is out of range, or the class does
            not fit the actions.
        TypeError: `type` is neither a name nor a subclass of `Exploration`.
    """
    options = dict(config)
    kind = _type(options.pop("type", None))
    known = list(inspect.signature(kind).parameters)[2:]  # After space and distribution.
    for option in options:
        if option not in known:
            raise ValueError(f"Unknown option {option!r} of {kind.__name__}{_hint(option, known)}")
    return kind(action_space, action_dist, **options)


def _type(kind: Any) -> type[Exploration]:
    if isinstance(kind, type) and issubclass(kind, Exploration):
        return kind
    if kind is not None and not isinstance(kind, str):
        raise TypeError(f"`type`: expected a name or a subclass of Exploration, got {kind!r}.")
    if kind not in _TYPES:
        raise ValueError(f"Unknown exploration type {kind!r}{_hint(str(kind), _TYPES)}")
    return _TYPES[kind]


def _hint(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return f"{meant} Known: {', '.join(sorted(known)) or 'none'}."
