"""The moments of an observation filter in files of weights, where they stand beside the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from tfpolicy.models.filtered import SCOPE

T = TypeVar("T")


def split_moments(values: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
    """Takes weights by name apart: those of the network, and the moments of its filter."""
    network: dict[str, T] = {}
    moments: dict[str, T] = {}
    for name, value in values.items():
        (moments if name.startswith(f"{SCOPE}/") else network)[name] = value
    return network, moments


def import_moments(
    stored: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], source: Any, strict: bool
) -> dict[str, np.ndarray]:
    """The moments out of what a file has beside its weights: all of them or none.

    Args:
        stored: What the file has.
        shapes: The shapes of the policy's moments by name.
        source: The file, for messages.
        strict: Whether they must fit.

    Returns:
        The moments by name.

    Raises:
        ValueError: They do not fit, there are none, or the policy has no filter.
    """
    moments = {name: np.asarray(value) for name, value in split_moments(stored)[1].items()}
    found = {name: value.shape for name, value in moments.items()}
    if found == dict(shapes):
        return moments
    if not strict:
        return {}
    if not moments:
        raise ValueError(
            f"`{source}` holds no moments of an observation filter ({', '.join(shapes)}). With "
            f"`strict=False` this policy keeps its own, which should be those of the weights."
        )
    expected = f"expected {dict(shapes)}" if shapes else "this policy has no filter"
    raise ValueError(
        f"`{source}` holds weights for observations normalized by a filter of moments {found}; "
        f"{expected}."
    )
