"""Spaces as plain data that JSON can hold, and back."""

from __future__ import annotations

import difflib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

Array = np.ndarray
Json = dict[str, Any]


def space_to_json(space: Space) -> Json:
    """Returns a space as plain data, from which `space_from_json` makes an equal one.

    Bounds, dtypes, starts and the order of keys come back exactly; seeds are not written.

    Raises:
        TypeError: The space, or one nested in it, is of a kind that is not supported, or a key of a
            `Dict` is neither a string nor an integer.
    """
    for kind, (encode, _) in _CODECS.items():
        if isinstance(space, kind):
            return {"type": kind.__name__, **encode(space)}
    known = ", ".join(kind.__name__ for kind in _CODECS)
    raise TypeError(f"`space`: expected one of {known}, got {type(space).__name__}.")


def space_from_json(data: Mapping[str, Any]) -> Space:
    """Returns the space that `space_to_json` wrote.

    Raises:
        ValueError: The type of a space is unknown, or a field is missing.
    """
    decoders = {kind.__name__: decode for kind, (_, decode) in _CODECS.items()}
    name = data.get("type")
    if name not in decoders:
        nearest = difflib.get_close_matches(str(name), decoders, n=1)
        hint = f" Did you mean {nearest[0]}?" if nearest else ""
        raise ValueError(f"`type`: expected one of {', '.join(decoders)}, got {name!r}.{hint}")
    try:
        return decoders[name](data)
    except KeyError as error:
        raise ValueError(f"`{name}`: field {error} is missing, got {list(data)}.") from error


def _encode_box(space: Box) -> Json:
    return {
        "low": _encode_bound(space.low, space.bounded_below, "-inf"),
        "high": _encode_bound(space.high, space.bounded_above, "inf"),
        "shape": list(space.shape),
        "dtype": space.dtype.name,
    }


def _decode_box(data: Mapping[str, Any]) -> Box:
    shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
    lowest, highest = (-np.inf, np.inf)
    if dtype.kind == "i":
        lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
    low, bounded_below = _decode_bound(data["low"], lowest, shape, dtype)
    high, bounded_above = _decode_bound(data["high"], highest, shape, dtype)
    space = Box(low, high, shape, dtype.type)
    # Integers have no infinity: Gymnasium keeps apart whether one was asked for.
    space.bounded_below, space.bounded_above = bounded_below, bounded_above
    return space


def _encode_bound(bound: Array, bounded: Array, infinity: str) -> Any:
    """Returns a flat list, or one value for all: images have thousands of equal bounds."""
    finite = bounded & np.isfinite(bound)
    values = [
        value if is_finite else infinity
        for value, is_finite in zip(bound.ravel().tolist(), finite.ravel().tolist(), strict=True)
    ]
    # By `repr`, for 0.0 and -0.0 are equal.
    return values[0] if len(set(map(repr, values))) == 1 else values


def _decode_bound(
    data: Any, infinity: float, shape: tuple[int, ...], dtype: np.dtype
) -> tuple[Array, Array]:
    values = data if isinstance(data, list) else [data] * int(np.prod(shape))
    bound = np.array([infinity if isinstance(v, str) else v for v in values], dtype)
    bounded = np.array([not isinstance(v, str) for v in values], bool)
    return bound.reshape(shape), bounded.reshape(shape)


def _encode_discrete(space: Discrete) -> Json:
    return {"n": int(space.n), "start": int(space.start), "dtype": space.dtype.name}


def _decode_discrete(data: Mapping[str, Any]) -> Discrete:
    # Older versions of Gymnasium know no other dtype, and no argument for it.
    dtype = {} if data["dtype"] == "int64" else {"dtype": data["dtype"]}
    return Discrete(data["n"], start=data["start"], **dtype)


def _encode_multi_discrete(space: MultiDiscrete) -> Json:
    return {
        "nvec": space.nvec.tolist(),
        "start": space.start.tolist(),
        "dtype": space.dtype.name,
    }


def _decode_multi_discrete(data: Mapping[str, Any]) -> MultiDiscrete:
    return MultiDiscrete(data["nvec"], dtype=np.dtype(data["dtype"]).type, start=data["start"])


def _encode_multi_binary(space: MultiBinary) -> Json:
    return {"n": list(space.n) if isinstance(space.n, tuple) else int(space.n)}


def _decode_multi_binary(data: Mapping[str, Any]) -> MultiBinary:
    return MultiBinary(data["n"])


def _encode_dict(space: Dict) -> Json:
    for key in space.spaces:
        if not isinstance(key, str | int):
            raise TypeError(f"`Dict`: expected keys that are strings or integers, got {key!r}.")
    return {"spaces": [[key, space_to_json(child)] for key, child in space.spaces.items()]}


def _decode_dict(data: Mapping[str, Any]) -> Dict:
    # An `OrderedDict`, for Gymnasium sorts the keys of any other.
    return Dict(OrderedDict((key, space_from_json(child)) for key, child in data["spaces"]))


def _encode_tuple(space: Tuple) -> Json:
    return {"spaces": [space_to_json(child) for child in space.spaces]}


def _decode_tuple(data: Mapping[str, Any]) -> Tuple:
    return Tuple([space_from_json(child) for child in data["spaces"]])


_CODECS: dict[type[Space], tuple[Callable[[Any], Json], Callable[[Mapping[str, Any]], Space]]] = {
    Box: (_encode_box, _decode_box),
    Discrete: (_encode_discrete, _decode_discrete),
    MultiDiscrete: (_encode_multi_discrete, _decode_multi_discrete),
    MultiBinary: (_encode_multi_binary, _decode_multi_binary),
    Dict: (_encode_dict, _decode_dict),
    Tuple: (_encode_tuple, _decode_tuple),
}
