"""Decides which weight of a file belongs to which weight of a model, or says why it cannot.

Names decide where both sides know any. A file that knows none of ours is matched by order, and only
if every count and every shape fits. No weight is given to another because their shapes agree.
"""

from __future__ import annotations

import dataclasses
import os.path
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np

Shape = tuple[int, ...]
Layers = Sequence[tuple[str, Sequence[tuple[str, np.ndarray]]]]
T = TypeVar("T")
# The names of weights that a file only numbers, as `read_h5` gives them: "layers/dense_1/vars/0".
_NUMBERED = re.compile(r"(?:.+/)?vars/[^/]+")


@dataclasses.dataclass(frozen=True)
class WeightMatch:
    """What was matched, by what, and what was not.

    Attributes:
        weights: The arrays under the expected names, in the expected order.
        sources: For each of them its name in the file.
        by: "name" or "order".
        missing: Expected names for which nothing came.
        unexpected: Names that came and belong to nothing.
        mis_shaped: For each weight that came in another shape its name and both shapes.
        left_out: If only some weights were selected, the names that came for none of them.
    """

    weights: dict[str, np.ndarray]
    sources: dict[str, str]
    by: Literal["name", "order"]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mis_shaped: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether each side found all of the other."""
        return not (self.missing or self.unexpected or self.mis_shaped)

    def __str__(self) -> str:
        differences = (
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("mis-shaped", self.mis_shaped),
        )
        listed = [
            f"{len(names)} {what}: {', '.join(names)}" for what, names in differences if names
        ]
        return "; ".join([f"{len(self.weights)} weights match by {self.by}", *listed])


class _Found(NamedTuple):
    """A weight of a file: its name there, the key to compare (None if it is nameless), its path."""

    name: str
    key: str | None
    path: str
    value: np.ndarray


def match_weights(
    expected: Mapping[str, Shape],
    found: Layers,
    *,
    strict: bool = True,
    selected: Collection[str] | None = None,
) -> WeightMatch:
    """Matches the weights of a file to those of a model; nothing is assigned here.

    By name: what stands before a known name ("default_policy/", "sequential/") and the ":0" behind
    it do not count; numbered weights of named layers go by the layer's name and their number. If
    the two sides have not a single name in common: by order, as in the file, or, where the file
    keeps the order only within each Python class of layers, as the shapes of whole layers dictate.

    If only some weights are selected, the file may hold those of the whole model or theirs alone.

    Args:
        expected: The model's weights in order, name to shape. For a match by order this must be
            the order in which Keras lists the weights (for a functional model by depth).
        found: What `read_h5` returns.
        strict: Refuse whatever does not match completely. If False, weights that match by name are
            returned and the rest is listed in the result.
        selected: Names of the only weights that are wanted; `None` for all. Whatever else the file
            holds is left out and no error.

    Returns:
        The matched arrays, with their dtypes as they came, and what did not match.

    Raises:
        ValueError: The match is not complete (lists missing, unexpected and mis-shaped weights),
            or, also if not `strict`: nothing matches, or two weights claim one place.
    """
    whole = {name: tuple(shape) for name, shape in expected.items()}
    numbered = all(_NUMBERED.fullmatch(name) for _, weights in found for name, _ in weights)
    weights = _numbered_weights(found) if numbered else _named_weights(found)
    if selected is None:
        part = whole
        match = _match_by_name(whole, part, numbered, weights)
    else:
        part = {name: shape for name, shape in whole.items() if name in selected}
        match = _match_by_name(whole, part, numbered, weights)
        match = match or _match_by_name(part, part, numbered, weights)
    match = match or _match_by_order(whole, part, weights)
    if selected is not None:
        left_out = (*match.left_out, *match.unexpected)
        match = dataclasses.replace(match, unexpected=(), left_out=left_out)
    if not match.weights or (strict and not match.complete):
        raise ValueError(f"The weights do not fit the model's {len(part)}: {match}.")
    return match


def _named_weights(found: Layers) -> list[_Found]:
    return [
        _Found(name, _plain(name) if "/" in name else f"{layer}/{_plain(name)}", "", value)
        for layer, weights in found
        for name, value in weights
    ]


def _numbered_weights(found: Layers) -> list[_Found]:
    # A file without names of its own calls a layer by the path that leads to it.
    named = not any(layer and layer == _path(name) for layer, ws in found for name, _ in ws)
    return [
        _Found(name, f"{layer}/{i}" if named else None, _path(name), value)
        for layer, weights in found
        for i, (name, value) in enumerate(weights)
    ]


def _match_by_name(
    expected: Mapping[str, Shape],
    part: Mapping[str, Shape],
    numbered: bool,
    found: Sequence[_Found],
) -> WeightMatch | None:
    """The match by name of what is `expected`, limited to `part`; None if none of that came."""
    names = _keys(expected, numbered)
    places: dict[str, _Found] = {}
    unexpected = []
    for weight in found:
        name = _known(weight.key, names)
        if name is None:
            unexpected.append(weight.name)
        elif name in places:
            raise ValueError(
                f"The weight `{name}` must come once, but `{places[name].name}` and "
                f"`{weight.name}` both claim it."
            )
        else:
            places[name] = weight
    pairs = [(name, shape, places[name]) for name, shape in part.items() if name in places]
    if not pairs:
        return None
    fitting = [(name, weight) for name, shape, weight in pairs if weight.value.shape == shape]
    return WeightMatch(
        weights={name: weight.value for name, weight in fitting},
        sources={name: weight.name for name, weight in fitting},
        by="name",
        missing=tuple(name for name in part if name not in places),
        unexpected=tuple(unexpected),
        mis_shaped=_mis_shaped(pairs),
        left_out=tuple(weight.name for name, weight in places.items() if name not in part),
    )


def _match_by_order(
    expected: Mapping[str, Shape], part: Mapping[str, Shape], found: Sequence[_Found]
) -> WeightMatch:
    """The match by order: of all weights or, if the file has as many, of the part's, or of none."""
    if len(found) != len(expected):
        expected = part
    if len(found) != len(expected):
        return WeightMatch({}, {}, "order", tuple(part), tuple(weight.name for weight in found))
    ordered = _in_model_order(expected, found)
    pairs = [(*item, weight) for item, weight in zip(expected.items(), ordered, strict=True)]
    wrong = _mis_shaped(pairs)
    if wrong:
        return WeightMatch({}, {}, "order", mis_shaped=wrong)
    chosen = [(name, weight) for name, _, weight in pairs if name in part]
    return WeightMatch(
        weights={name: weight.value for name, weight in chosen},
        sources={name: weight.name for name, weight in chosen},
        by="order",
        left_out=tuple(weight.name for name, _, weight in pairs if name not in part),
    )


def _in_model_order(expected: Mapping[str, Shape], found: Sequence[_Found]) -> list[_Found]:
    """Merges each Python class's sequence of layers into the only order that the shapes allow.

    A file whose order is that of the model has one sequence, which stays as it is.
    """
    sequences: dict[str, deque[list[_Found]]] = {}
    for path, layer in _grouped((weight.path, weight) for weight in found).items():
        kind = re.sub(r"_\d+(?=/|$)", "", path)
        sequences.setdefault(kind, deque()).append(layer)
    if len(sequences) == 1:
        return list(found)
    ordered: list[_Found] = []
    for layer_name, shapes in _grouped((_layer(n), s) for n, s in expected.items()).items():
        fitting = [s for s in sequences.values() if s and [w.value.shape for w in s[0]] == shapes]
        if len(fitting) > 1:
            names = [sequence[0][0].path for sequence in fitting]
            raise ValueError(
                f"The layer `{layer_name}` must be told from others, but no name in the file is "
                f"known, and by their shapes it may be any of {names}."
            )
        if not fitting:
            break
        ordered += fitting[0].popleft()
    # Left over is what fits nowhere; the comparison of shapes that follows will say so.
    return ordered + [w for sequence in sequences.values() for layer in sequence for w in layer]


def _mis_shaped(pairs: Iterable[tuple[str, Shape, _Found]]) -> tuple[str, ...]:
    return tuple(
        f"`{name}` (expected {shape}, got {weight.value.shape} from `{weight.name}`)"
        for name, shape, weight in pairs
        if weight.value.shape != shape
    )


def _keys(expected: Iterable[str], numbered: bool) -> dict[str, str]:
    """The expected names by the keys to compare, which leave out a scope that all of them share."""
    names = list(expected)
    layers = [_layer(name).split("/") for name in names]
    scope = os.path.commonprefix(layers)
    if all(layer == scope for layer in layers):  # The only layer's own name is no scope.
        scope = scope[:-1]
    start = sum(len(part) + 1 for part in scope)
    if not numbered:
        return {_plain(name)[start:]: name for name in names}
    return {
        f"{layer[start:]}/{i}": name
        for layer, members in _grouped((_layer(name), name) for name in names).items()
        for i, name in enumerate(members)
    }


def _known(key: str | None, names: Mapping[str, str]) -> str | None:
    """The expected name with the longest key that `key` is or ends with."""
    parts = key.split("/") if key else []
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((names[end] for end in ends if end in names), None)


def _grouped(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for group, member in pairs:
        groups.setdefault(group, []).append(member)
    return groups


def _plain(name: str) -> str:
    return re.sub(r":\d+$", "", name)


def _layer(name: str) -> str:
    return name.rpartition("/")[0]


def _path(name: str) -> str:
    """The path of the layer that holds a numbered weight."""
    return name.rpartition("vars/")[0].rstrip("/")
