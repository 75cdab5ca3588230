"""Values checked against annotations, and converted where nothing is lost."""

from __future__ import annotations

import numbers
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal


def typed_value(hint: Any, value: Any, key: str, record: type) -> Any:
    """Returns `value` as the type that an annotation asks for.

    Whole floats become ints, numbers become floats, lists become tuples. Nothing is shared with
    lists and dicts that the caller may change later. Of `dict[str, int]` only the `dict` is
    checked.

    Args:
        hint: The annotation, resolved: a class, a union, `Literal`, `Any`, or a generic of those.
        value: What is to fit it.
        key: What the error calls the value.
        record: Base of the classes that make themselves from a mapping, by `from_dict`.

    Raises:
        TypeError: It does not fit.
    """
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    for option in options:
        fits, converted = _convert(option, value, key, record)
        if fits:
            return converted
    expected = " or ".join(_hint_name(option) for option in options)
    raise TypeError(f"`{key}` must be {expected}, got {value!r} ({type(value).__name__}).")


def _convert(hint: Any, value: Any, key: str, record: type) -> tuple[bool, Any]:
    """Whether `value` fits one `hint` that is no union, and its converted form."""
    if hint is Any:
        return True, value
    origin = typing.get_origin(hint)
    # Python 3.10 takes `tuple[int, ...]` for a class.
    if origin is None and isinstance(hint, type) and issubclass(hint, record):
        fits = isinstance(value, Mapping)
        return fits, hint.from_dict(value) if fits else None  # type: ignore[attr-defined]
    if origin is Literal:
        return value in typing.get_args(hint), value
    if origin is tuple:
        return _to_tuple(typing.get_args(hint), value, key, record)
    plain = origin or hint
    if plain in _CONVERTERS:
        return _CONVERTERS[plain](value)
    return isinstance(value, plain), value


def _to_tuple(hints: tuple[Any, ...], value: Any, key: str, record: type) -> tuple[bool, Any]:
    if not isinstance(value, (list, tuple)):
        return False, None
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(value)
    if len(value) != len(hints):
        return False, None
    pairs = zip(hints, value, strict=True)
    return True, tuple(typed_value(hint, item, key, record) for hint, item in pairs)


def _to_int(value: Any) -> tuple[bool, Any]:
    # YAML reads 1e5 as a float; a whole one is what was meant.
    whole = isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value // 1
    return whole, int(value) if whole else None


def _to_float(value: Any) -> tuple[bool, Any]:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value
    return real, float(value) if real else None


def _to_list(value: Any) -> tuple[bool, Any]:
    return isinstance(value, (list, tuple)), _frozen(value)


def _to_dict(value: Any) -> tuple[bool, Any]:
    return isinstance(value, Mapping), _frozen(value)


def _frozen(value: Any) -> Any:
    """A copy of nested lists and dicts, with tuples for lists."""
    if isinstance(value, Mapping):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, (list, tuple)) else value


_CONVERTERS: dict[Any, Callable[[Any], tuple[bool, Any]]] = {
    int: _to_int,
    float: _to_float,
    list: _to_list,
    dict: _to_dict,
}


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _hint_name(hint: Any) -> str:
    if hint is type(None):
        return "None"
    origin = typing.get_origin(hint)
    if origin is tuple:
        names = [_hint_name(part) for part in typing.get_args(hint) if part is not Ellipsis]
        return f"a list of {', '.join(names)}"
    if origin is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    plain = origin or hint
    return "a class" if plain is type else plain.__name__
