"""The structure of a space: its leaves, their names, and values taken apart and put together.

A *leaf* is a `Box`, `Discrete`, `MultiDiscrete` or `MultiBinary`; `Dict` and `Tuple` nest them. The
order of the leaves is that of the space, whatever the order of the keys in a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from gymnasium import spaces as gym_spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

Leaf = Box | Discrete | MultiDiscrete | MultiBinary
NESTED_TYPES = (Dict, Tuple)

# What to use in place of the spaces whose elements have no fixed shape.
_ALTERNATIVES: dict[type[Space], str] = {
    gym_spaces.Text: "encode it as a `MultiDiscrete` of character codes",
    gym_spaces.Sequence: "pad it to a `Box` of fixed length, with a `MultiBinary` mask beside it",
    gym_spaces.Graph: "pad nodes and edges to `Box`es of fixed size, with `MultiBinary` masks",
    gym_spaces.OneOf: "use a `Dict` of a `Discrete` choice and every alternative",
}


def check_supported(space: Space, name: str) -> None:
    """Refuses a space that no policy can be built for.

    Args:
        space: The space to check, with everything nested in it.
        name: What the message calls the space, such as "observation_space".

    Raises:
        TypeError: `space` is not a Gymnasium space.
        ValueError: The space, or one nested in it, is unsupported or empty.
    """
    if isinstance(space, NESTED_TYPES):
        if not space.spaces:
            raise ValueError(f"`{name}`: expected at least one leaf, got {space}.")
        for key, child in children(space):
            check_supported(child, f"{name}[{key!r}]")
    elif not isinstance(space, Space):
        raise TypeError(f"`{name}`: expected a gymnasium space, got {type(space).__name__}.")
    elif not isinstance(space, Leaf):
        advice = [text for kind, text in _ALTERNATIVES.items() if isinstance(space, kind)]
        raise ValueError(
            f"`{name}`: expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, "
            f"got {type(space).__name__}{'; ' + advice[0] if advice else ''}."
        )
    elif space.dtype.kind == "f" and space.dtype.itemsize > 8:
        raise ValueError(f"`{name}`: expected float64 or narrower, got {space.dtype}.")


def leaf_spaces(space: Space, prefix: str) -> dict[str, Leaf]:
    """Returns the leaves of a space under flat names that are Python identifiers.

    A plain space is its own leaf, `prefix`. Key "a" of a `Dict` becomes `prefix_a`, item 0 of a
    `Tuple` `prefix_0`, and so on inwards. Characters that no identifier has become "_"; where that
    makes two names alike, the later leaf gets the first free suffix `_2`, `_3`, ...
    """
    wanted = [
        (re.sub(r"[^0-9A-Za-z_]", "_", "_".join([prefix, *map(str, path)])), leaf)
        for path, leaf in walk(space)
    ]
    reserved = {name for name, _ in wanted}
    leaves: dict[str, Leaf] = {}
    for name, leaf in wanted:
        unique, suffix = name, 2
        while unique in leaves or (unique != name and unique in reserved):
            unique, suffix = f"{name}_{suffix}", suffix + 1
        leaves[unique] = leaf
    return leaves


def flatten(space: Space, value: Any, name: str = "value") -> list[Any]:
    """Returns the leaf values of a nested value, in the order of the space.

    Args:
        space: The space that gives the structure.
        value: Mappings for `Dict`, tuples or lists for `Tuple`, anything for leaves.
        name: What messages call the value.

    Raises:
        KeyError: A key of a `Dict` is missing.
        ValueError: There is an unexpected key, or a value of another structure.
    """
    if not isinstance(space, NESTED_TYPES):
        return [value]
    return [leaf for part in parts(space, value, name) for leaf in flatten(*part)]


def unflatten(space: Space, leaves: Iterable[Any]) -> Any:
    """Returns leaf values put back into the structure of a space: the inverse of `flatten`.

    Raises:
        ValueError: There are fewer or more values than leaves.
    """
    values = list(leaves)
    expected = sum(1 for _ in walk(space))
    if len(values) != expected:
        raise ValueError(f"`leaves`: expected {expected} values for {space}, got {len(values)}.")
    return _build(space, iter(values))


def map_leaves(fn: Callable[..., Any], space: Space, *values: Any) -> Any:
    """Returns `fn(leaf_space, *leaf_values)` of every leaf, in the structure of the space."""
    if not isinstance(space, NESTED_TYPES):
        return fn(space, *values)
    columns = [flatten(space, value) for value in values]
    leaves = (leaf for _, leaf in walk(space))
    return _build(space, (fn(leaf, *row) for leaf, *row in zip(leaves, *columns, strict=True)))


def walk(space: Space, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Leaf]]:
    """Yields the path and the space of each leaf."""
    if isinstance(space, NESTED_TYPES):
        for key, child in children(space):
            yield from walk(child, (*path, key))
    else:
        yield path, cast("Leaf", space)


def children(space: Dict | Tuple) -> Iterable[tuple[Any, Space]]:
    """Returns the keys or indices of a nested space with what is directly below them."""
    return space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)


def parts(space: Dict | Tuple, value: Any, name: str) -> list[tuple[Space, Any, str]]:
    """Returns `(space, value, name)` of every child, having checked the structure of the value.

    Raises:
        KeyError: A key of a `Dict` is missing.
        ValueError: There is an unexpected key, or a value of another structure.
    """
    if isinstance(space, Dict):
        if not isinstance(value, Mapping):
            raise ValueError(f"`{name}`: expected a mapping, got {type(value).__name__}.")
        missing = [key for key in space.spaces if key not in value]
        if missing:
            raise KeyError(f"`{name}`: expected keys {list(space.spaces)}, {missing} are missing.")
        if len(value) > len(space.spaces):
            unexpected = [key for key in value if key not in space.spaces]
            raise ValueError(f"`{name}`: expected keys {list(space.spaces)}, got {unexpected} too.")
    elif not isinstance(value, tuple | list):
        raise ValueError(f"`{name}`: expected a tuple, got {type(value).__name__}.")
    elif len(value) != len(space.spaces):
        raise ValueError(f"`{name}`: expected {len(space.spaces)} items, got {len(value)}.")
    return [(child, value[key], f"{name}[{key!r}]") for key, child in children(space)]


def _build(space: Space, leaves: Iterator[Any]) -> Any:
    if isinstance(space, Dict):
        return {key: _build(child, leaves) for key, child in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_build(child, leaves) for child in space.spaces)
    return next(leaves)
