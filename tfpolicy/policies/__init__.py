"""Algorithms: each file is a config, a loss and a postprocessing."""

from __future__ import annotations

import difflib
import importlib

from tfpolicy.tf_policy import TFPolicy

_POLICIES = {"pg": "PGPolicy", "a2c": "A2CPolicy", "ppo": "PPOPolicy"}


def policy_class(name: str) -> type[TFPolicy]:
    """The policy class of an algorithm, by its name in any case.

    Raises:
        ValueError: There is no such algorithm.
    """
    key = name.lower()
    if key not in _POLICIES:
        near = difflib.get_close_matches(key, _POLICIES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"No algorithm {name!r}; there are {', '.join(_POLICIES)}.{hint}")
    return vars(importlib.import_module(f"tfpolicy.policies.{key}"))[_POLICIES[key]]


def policy_names() -> list[str]:
    """The names that `policy_class` knows."""
    return list(_POLICIES)
