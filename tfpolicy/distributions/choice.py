"""The choice of a distribution for an action space."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from tfpolicy.distributions.action_distribution import ActionDistribution, BoundFamily
from tfpolicy.distributions.base import Family
from tfpolicy.distributions.bernoulli import Bernoulli
from tfpolicy.distributions.beta import Beta
from tfpolicy.distributions.categorical import Categorical, MultiCategorical
from tfpolicy.distributions.deterministic import Deterministic
from tfpolicy.distributions.gaussian import DiagGaussian, SquashedGaussian
from tfpolicy.distributions.joint import JointActionDistribution
from tfpolicy.distributions.simplex import Dirichlet, GumbelSoftmax
from tfpolicy.spaces import leaf_spaces

FAMILIES: dict[str, type[Family[Any]]] = {
    "bernoulli": Bernoulli,
    "beta": Beta,
    "categorical": Categorical,
    "deterministic": Deterministic,
    "diag_gaussian": DiagGaussian,
    "dirichlet": Dirichlet,
    "gumbel_softmax": GumbelSoftmax,
    "multi_categorical": MultiCategorical,
    "squashed_gaussian": SquashedGaussian,
}


def distribution_for(
    space: gym.Space,
    custom_action_dist: str | type[Family[Any]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> ActionDistribution:
    """Chooses the distribution over a space.

    A nested space gets a joint distribution of independent leaves, unless `custom_action_dist` is a
    class that takes the whole of it.

    Args:
        space: The policy's own action space.
        custom_action_dist: Overrules the choice: a name out of `FAMILIES`, or a subclass of
            `Family`. In a nested space it is for the leaves that it fits, which must be one at
            least; the others keep their own family.
        options: Arguments of the families' constructors by name, such as `temperature`; each goes
            to every leaf whose family has it.

    Raises:
        ValueError: If no family fits `space`, the named one does not, a name is unknown, or no
            family has an option.
        TypeError: If `custom_action_dist` is neither a name nor a subclass of `Family`.
    """
    custom = None if custom_action_dist is None else _family(custom_action_dist)
    if not _is_nested(space) or (custom is not None and _fits(custom, space)):
        whole = _default_family(space) if custom is None else custom
        return _bound([whole], [space], options)[0]
    leaves = list(leaf_spaces(space, "action").values())
    families = [
        _default_family(leaf) if custom is None or not _fits(custom, leaf) else custom
        for leaf in leaves
    ]
    if custom is not None and custom not in families:
        raise ValueError(f"{custom.__name__} fits neither {space} nor one of its leaves.")
    return JointActionDistribution(space, _bound(families, leaves, options))


def _bound(
    families: Sequence[type[Family[Any]]],
    spaces: Sequence[gym.Space],
    options: Mapping[str, Any] | None,
) -> tuple[BoundFamily, ...]:
    options = dict(options or {})
    # After inputs and space.
    known = [list(inspect.signature(family).parameters)[2:] for family in families]
    for option in options:
        if not any(option in names for names in known):
            listed = ", ".join(sorted({name for names in known for name in names})) or "none"
            raise ValueError(
                f"Unknown option {option!r} of {', '.join(f.__name__ for f in families)}; "
                f"known: {listed}."
            )
    for family, space in zip(families, spaces, strict=True):
        if space.shape is not None and 0 in space.shape:
            raise ValueError(f"An action must have at least one element, got {space}.")
        family.check_space(space)
    return tuple(
        BoundFamily(family, space, tuple((k, v) for k, v in options.items() if k in names))
        for family, space, names in zip(families, spaces, known, strict=True)
    )


def _is_nested(space: gym.Space) -> bool:
    return isinstance(space, gym.spaces.Dict | gym.spaces.Tuple)


def _fits(family: type[Family[Any]], space: gym.Space) -> bool:
    try:
        family.check_space(space)
    except ValueError:
        return False
    return True


def _default_family(space: gym.Space) -> type[Family[Any]]:
    if isinstance(space, gym.spaces.Discrete):
        return Categorical
    if isinstance(space, gym.spaces.MultiDiscrete):
        return MultiCategorical
    if isinstance(space, gym.spaces.MultiBinary):
        return Bernoulli
    if isinstance(space, gym.spaces.Box):
        return DiagGaussian if np.issubdtype(space.dtype, np.floating) else MultiCategorical
    raise ValueError(
        "Actions must be Box, Discrete, MultiDiscrete, MultiBinary, or Dict or Tuple of these, "
        f"got {space}."
    )


def _family(custom: str | type[Family[Any]]) -> type[Family[Any]]:
    if isinstance(custom, str):
        if custom in FAMILIES:
            return FAMILIES[custom]
        nearest = difflib.get_close_matches(custom, FAMILIES, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(
            f"`custom_action_dist` must be one of {', '.join(sorted(FAMILIES))} or a subclass of "
            f"Family, got {custom!r}.{hint}"
        )
    if isinstance(custom, type) and issubclass(custom, Family):
        return custom
    raise TypeError(f"`custom_action_dist` must be a name or a subclass of Family, got {custom!r}.")
