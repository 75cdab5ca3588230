"""Columns: an array whose first axis counts rows, or a nested dict or tuple of such arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np

# An array `[B, ...]`, a dict of columns or a tuple of columns: only the caller knows which.
Column = Any


def as_column(name: str, value: Any, objects: bool = False) -> Column:
    """Returns `value` as a column; arrays are kept, lists become arrays.

    Args:
        name: What errors call the column.
        value: An array or list `[B, ...]`, or a nested dict or tuple of them.
        objects: Whether rows may be Python objects; a list then becomes one object a row.

    Raises:
        ValueError: If `value` is a scalar, ragged, empty of arrays, or holds objects.
    """
    if isinstance(value, Mapping):
        _check_not_empty(name, value)
        return {key: as_column(f"{name}.{key}", child, objects) for key, child in value.items()}
    if isinstance(value, tuple):
        _check_not_empty(name, value)
        return tuple(as_column(f"{name}.{i}", child, objects) for i, child in enumerate(value))
    if not isinstance(value, np.ndarray):
        value = _object_rows(value) if objects and isinstance(value, list) else _array(name, value)
    if value.ndim == 0:
        raise ValueError(f"Column `{name}`: expected an array [B, ...], got the scalar {value}.")
    if value.dtype.hasobject and not objects:
        raise ValueError(
            f"Column `{name}`: expected an array of numbers or strings, got one of Python objects "
            "(rows of different shapes, or dicts)."
        )
    return value


def row_count(name: str, column: Column) -> int:
    """Returns the number of rows, which all arrays of `column` must share.

    Raises:
        ValueError: If the arrays of a nested column differ in length.
    """
    if isinstance(column, np.ndarray):
        return column.shape[0]
    lengths = {path: leaf.shape[0] for path, leaf in _leaves(name, column)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"Column `{name}`: expected arrays of equal length, got {lengths}.")
    return next(iter(lengths.values()))


def map_column(fn: Callable[..., Any], *columns: Column) -> Column:
    """Returns a column of `fn(*arrays)`, applied to the arrays at the same place of all `columns`.

    Raises:
        ValueError: If the columns are nested in different ways.
    """
    first = columns[0]
    if isinstance(first, dict):
        _check_alike(
            columns, lambda other: isinstance(other, dict) and other.keys() == first.keys()
        )
        return {key: map_column(fn, *(column[key] for column in columns)) for key in first}
    if isinstance(first, tuple):
        _check_alike(columns, lambda other: isinstance(other, tuple) and len(other) == len(first))
        return tuple(map_column(fn, *children) for children in zip(*columns, strict=True))
    _check_alike(columns, lambda other: not isinstance(other, dict | tuple))
    return fn(*columns)


def select(column: Column, index: Any) -> Any:
    """Returns `column[index]`, for every array of a nested column."""
    if isinstance(column, np.ndarray):
        return column[index]
    return map_column(itemgetter(index), column)


def blank(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Returns neutral values: zeros, empty strings, and empty dicts for objects."""
    blanks = np.zeros(shape, dtype)
    if blanks.dtype.hasobject:
        # An info is a dict; code that reads `info.get("x")` must not meet a 0 in the padding.
        for index in np.ndindex(shape):
            blanks[index] = {}
    return blanks


def _array(name: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"Column `{name}`: expected rows of one shape, got {error}") from error


def _object_rows(rows: list[Any]) -> np.ndarray:
    array = np.empty(len(rows), dtype=object)
    array[:] = rows
    return array


def _leaves(path: str, column: Column) -> list[tuple[str, np.ndarray]]:
    if isinstance(column, np.ndarray):
        return [(path, column)]
    children = column.items() if isinstance(column, dict) else enumerate(column)
    return [leaf for key, child in children for leaf in _leaves(f"{path}.{key}", child)]


def _check_not_empty(name: str, value: Mapping[Any, Any] | tuple[Any, ...]) -> None:
    if not value:
        raise ValueError(f"Column `{name}`: expected at least one array, got {value!r}.")


def _check_alike(columns: tuple[Column, ...], is_alike: Callable[[Column], bool]) -> None:
    for other in columns[1:]:
        if not is_alike(other):
            raise ValueError(
                f"expected columns nested alike, got {_outline(columns[0])} and {_outline(other)}."
            )


def _outline(column: Column) -> str:
    if isinstance(column, dict):
        return f"a dict of {sorted(column, key=str)}"
    if isinstance(column, tuple):
        return f"a tuple of {len(column)}"
    return "an array"
