"""What a policy does on a few observations: whatever is written of it must do the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tfpolicy.graph.devices import num_gpus_present

# Two graphs may add the same numbers in another order, and GPUs multiply them with 10 bits.
_TOLERANCE = 1e-5
_GPU_TOLERANCE = 1e-3


class Example(NamedTuple):
    """What the policy does on a few observations: arrays [B, ...] by input and by output name.

    Attributes:
        inputs: What `serving_default` takes.
        outputs: What the policy itself gave.
        tolerance: How far the floats of another computation may be from `outputs`.
    """

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    tolerance: float


class Comparison(NamedTuple):
    """One output, as it should be and as it is.

    Attributes:
        output: Its name.
        expected: Dtype and shape, or "none".
        found: Likewise.
        difference: The largest one of floats, or how many other values differ.
        allowed: What `difference` may be.
    """

    output: str
    expected: str
    found: str
    difference: float
    allowed: float

    @property
    def same(self) -> bool:
        """Whether it is as it should be."""
        return self.expected == self.found and self.difference <= self.allowed


def tolerance() -> float:
    """How far two computations of the same floats may be apart on this machine."""
    return _GPU_TOLERANCE if num_gpus_present() else _TOLERANCE


def compare(example: Example, found: Mapping[str, np.ndarray]) -> list[Comparison]:
    """Compares outputs by name with those of an example, floats relatively where they are large."""
    allowed = max(example.tolerance, tolerance())
    return [
        _compare(name, example.outputs.get(name), found.get(name), allowed)
        for name in dict.fromkeys([*example.outputs, *found])
    ]


def example_to_arrays(example: Example) -> dict[str, np.ndarray]:
    """All of it as arrays by name."""
    return {
        **{f"inputs/{name}": array for name, array in example.inputs.items()},
        **{f"outputs/{name}": array for name, array in example.outputs.items()},
        "tolerance": np.float64(example.tolerance),
    }


def example_from_arrays(arrays: Mapping[str, Any], source: Any) -> Example:
    """The inverse of `example_to_arrays`.

    Args:
        arrays: What that gave, and maybe more.
        source: Where they come from, for the message.

    Raises:
        ValueError: There is no example among them.
    """
    sides: dict[str, dict[str, np.ndarray]] = {"inputs": {}, "outputs": {}}
    for path, array in arrays.items():
        side, _, name = path.partition("/")
        if side in sides:
            sides[side][name] = np.asarray(array)
    if not all(sides.values()) or "tolerance" not in arrays:
        raise ValueError(f"`{source}` must hold recorded actions on observations, but has none.")
    return Example(**sides, tolerance=float(arrays["tolerance"]))


def _compare(
    name: str, expected: np.ndarray | None, found: np.ndarray | None, allowed: float
) -> Comparison:
    kind, found_kind = _kind(expected), _kind(found)
    if expected is None or found is None or kind != found_kind:
        return Comparison(name, kind, found_kind, np.inf, 0.0)
    if expected.dtype.kind != "f":
        return Comparison(name, kind, found_kind, float(np.sum(expected != found)), 0.0)
    # Where two computations differ in the last digit, float16 is rounded to another one.
    allowed = max(allowed, float(np.finfo(expected.dtype).eps))
    return Comparison(name, kind, found_kind, _largest_difference(expected, found), allowed)


def _kind(array: np.ndarray | None) -> str:
    return "none" if array is None else f"{array.dtype} {list(array.shape)}"


def _largest_difference(expected: np.ndarray, found: np.ndarray) -> float:
    """Computes max |a − b| / (1 + |a|); equal infinities and NaN do not differ."""
    equal = (expected == found) | (np.isnan(expected) & np.isnan(found))
    with np.errstate(invalid="ignore", over="ignore"):
        wide = expected.astype(np.float64)
        differences = np.abs(wide - found) / (1 + np.abs(wide))
    differences = np.where(equal, 0.0, np.nan_to_num(differences, nan=np.inf, posinf=np.inf))
    return float(differences.max(initial=0.0))
