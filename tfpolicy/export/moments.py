"""The moments of an observation filter in files of weights, where they stand beside the network."""

from __future__ import annotations

import warnings
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
    stored: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], source: str, strict: bool
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The moments out of what a file has beside its weights: all of them or none.

    Without any, the policy is to keep its own. It is warned, since it acts as the one whose weights
    it gets only if they are the same.

    Args:
        stored: What the file has.
        shapes: The shapes of the policy's moments by name.
        source: What it is called in messages.
        strict: Whether it is an error if they do not fit.

    Returns:
        The moments by name, and names of such as do not fit.

    Raises:
        ValueError: They do not fit, or the policy has no filter.
    """
    moments = {name: np.asarray(value) for name, value in split_moments(stored)[1].items()}
    if not moments:
        if shapes:
            warnings.warn(
                f"{source} holds no moments of an observation filter; the policy keeps its own.",
                stacklevel=4,
            )
        return {}, ()
    found = {name: value.shape for name, value in moments.items()}
    if found == dict(shapes):
        return moments, ()
    if strict:
        expected = f"expected {dict(shapes)}" if shapes else "this policy has no filter"
        raise ValueError(
            f"{source} holds weights for observations normalized by a filter of moments {found}; "
            f"{expected}. Nothing was assigned."
        )
    return {}, tuple(moments)
