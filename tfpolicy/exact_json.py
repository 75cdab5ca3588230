"""JSON that keeps every type and every bit of nested plain data, with the arrays set aside.

What JSON cannot say is written as an object with one key that starts with "@":

    {"@array": name}      an array, found under that name among the arrays
    {"@scalar": name}     a NumPy scalar, kept there as an array of rank 0
    {"@float": hex}       inf and NaN, by their eight bytes, so that the payload of a NaN survives
    {"@tuple": [...]}     a tuple
    {"@dict": [[k, v]]}   a dict with a key that itself starts with "@"
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

_MARK = "@"


def encode(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Turns plain data into what strict JSON can hold, and puts its arrays into `arrays`.

    Args:
        value: Nested dicts (with string keys), lists and tuples of str, int, float, bool, None,
            NumPy arrays and NumPy scalars; exactly these types, so that they come back as they
            were.
        path: What to call `value` in errors and array names: parts joined by "/".
        arrays: Gets each array under a readable name, its path made unique.

    Returns:
        The JSON value; its integers may exceed 2⁵³, which Python's `json` keeps.

    Raises:
        TypeError: A value of another type, named by its path.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"@float": struct.pack(">d", value).hex()}
    if kind is np.ndarray:
        return {"@array": _set_aside(value, path, arrays)}
    if isinstance(value, np.generic):
        return {"@scalar": _set_aside(np.asarray(value), path, arrays)}
    if kind in (list, tuple):
        items = [encode(item, f"{path}/{i}", arrays) for i, item in enumerate(value)]
        return items if kind is list else {"@tuple": items}
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise TypeError(f"`{path}`: keys must be strings, got {key!r}.")
        coded = {key: encode(item, f"{path}/{key}", arrays) for key, item in value.items()}
        if any(key.startswith(_MARK) for key in coded):
            return {"@dict": [[key, item] for key, item in coded.items()]}
        return coded
    raise TypeError(
        f"`{path}` must be a NumPy array or a plain value (dict, list, tuple, str, int, float, "
        f"bool, None), got {kind.__module__}.{kind.__qualname__}."
    )


def decode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Inverts `encode`.

    Args:
        value: What `encode` returned, also after a round trip through JSON.
        arrays: What `encode` set aside.

    Returns:
        The value that was encoded.
    """
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"@array": name}:
            return arrays[name]
        case {"@scalar": name}:
            return arrays[name][()]
        case {"@float": bits}:
            return struct.unpack(">d", bytes.fromhex(bits))[0]
        case {"@tuple": items}:
            return tuple(decode(item, arrays) for item in items)
        case {"@dict": pairs}:
            return {key: decode(item, arrays) for key, item in pairs}
    return {key: decode(item, arrays) for key, item in value.items()}


def _set_aside(array: np.ndarray, path: str, arrays: dict[str, np.ndarray]) -> str:
    """Files `array` under a name made of its path and returns the name."""
    # The npy format needs pickle for objects and forgets the name of types foreign to NumPy.
    described = None if array.dtype.hasobject else np.lib.format.dtype_to_descr(array.dtype)
    if described is None or np.lib.format.descr_to_dtype(described) != array.dtype:
        raise TypeError(
            f"`{path}` must be an array of a NumPy type that can be kept without pickle, "
            f"got dtype {array.dtype}."
        )
    name = "".join(letter if letter.isprintable() else "_" for letter in path)
    while name in arrays:
        name += "'"
    arrays[name] = array
    return name
