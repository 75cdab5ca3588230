"""Reads pickles of plain containers and NumPy arrays without running anything that they name.

A pickle is a program that may call anything by name, and NumPy's own constructors believe what they
are told about memory. So no name in it is ever looked up. Those of arrays stand for classes of this
file, which keep what the pickle says and make an array of it when asked to; every other name stands
for a class that does nothing.
"""

from __future__ import annotations

import collections
import io
import math
import pickle
import pickletools
import re
from typing import Any

import numpy as np

# These find classes in a registry of the process, past `find_class`.
_REFUSED = ("EXT1", "EXT2", "EXT4")
# These make room for as many objects as they say.
_PLACES = ("PUT", "BINPUT", "LONG_BINPUT")
# What can go wrong in a program that somebody else wrote.
_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
)


def read_plain_pickle(data: bytes) -> Any:
    """Reads a pickle.

    Args:
        data: The pickle.

    Returns:
        Plain containers, numbers and strings as they are; a `PickledArray` for an array or a NumPy
        scalar; for everything else something of which nothing is known but its name (`describe`).

    Raises:
        ValueError: It is damaged, or no pickle.
    """
    try:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name in _REFUSED:
                raise ValueError(f"it uses {operation.name}")
            if operation.name in _PLACES and int(argument or 0) > len(data):
                raise ValueError(f"it is too short for an object of number {argument}")
        return _Unpickler(io.BytesIO(data)).load()
    except _ERRORS as error:
        raise ValueError(f"It is no pickle, or a damaged one: {error}.") from error


def describe(value: Any) -> str:
    """How something in a pickle got there, as the end of a sentence about it."""
    if isinstance(value, _Inert):
        return f"is made by `{value.named}`"
    return f"is of type {type(value).__name__}"


class PickledArray:
    """What a pickle says of an array; `array` makes one of it, or says why not."""

    _dtype: Any = None
    _shape: Any = None
    _data: Any = None
    _order: Any = "C"

    def array(self) -> np.ndarray:
        """The array, in memory of its own.

        Raises:
            ValueError: It is not one of numbers, or what the pickle says of it makes no sense.
        """
        dtype, shape, data = self._dtype, self._shape, self._data
        if not isinstance(dtype, _PickledDType):
            raise ValueError(f"its dtype {describe(dtype)}")
        if not isinstance(data, bytes | bytearray):
            raise ValueError(f"its data {describe(data)}")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"its shape {describe(shape)} or holds no sizes")
        dtype = dtype.dtype()
        if math.prod(shape) * dtype.itemsize != len(data) or self._order not in ("C", "F"):
            raise ValueError(f"{len(data)} bytes are no array {shape} of {dtype}")
        flat = np.frombuffer(bytes(data), dtype)
        return flat.reshape(shape, order=self._order).astype(dtype.newbyteorder("="))

    def __setstate__(self, state: Any) -> None:
        # That there is such a method keeps a pickle from setting attributes, also of the class.
        raise ValueError(f"an array cannot have the state {type(state).__name__}")


class _Reconstructed(PickledArray):
    """How arrays are written up to protocol 4, and some of them in later ones."""

    def __init__(self, *_: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        _, self._shape, self._dtype, is_fortran, self._data = state
        self._order = "F" if is_fortran else "C"


class _FromBuffer(PickledArray):
    """How contiguous arrays are written from protocol 5 on."""

    def __init__(self, data: Any, dtype: Any, shape: Any, order: Any):
        self._data, self._dtype, self._shape, self._order = data, dtype, shape, order


class _Scalar(PickledArray):
    def __init__(self, dtype: Any, data: Any):
        self._dtype, self._shape, self._data = dtype, (), data


class _PickledDType:
    """What a pickle says of a dtype."""

    _code: Any = None
    _byte_order: Any = "="

    def __init__(self, code: Any, *_: Any):
        self._code = code

    def __setstate__(self, state: Any) -> None:
        self._byte_order = state[1]

    def dtype(self) -> np.dtype:
        code, byte_order = self._code, self._byte_order
        if not isinstance(code, str) or not re.fullmatch("b1|[iu][1248]|f[248]", code):
            raise ValueError(f"its dtype {code!r} is none of numbers")
        if byte_order not in ("<", ">", "=", "|"):
            raise ValueError(f"its dtype has the byte order {byte_order!r}")
        return np.dtype(byte_order + code)


class _Inert(type):
    """What a name stands for that means nothing here.

    A pickle may call it, make an instance, fill that, and do the same with whatever comes out: it
    gets this very class each time, since only a class can be both called and instantiated.
    """

    named: str

    def __call__(cls, *arguments: Any, **named_arguments: Any) -> Any:
        return cls

    def __setitem__(cls, key: Any, value: Any) -> None:
        pass


class _Unknown(metaclass=_Inert):
    named = ""

    def __new__(cls, *arguments: Any, **named_arguments: Any) -> Any:
        return cls

    @staticmethod
    def _ignore(*arguments: Any) -> None:
        pass

    __setstate__ = append = extend = add = _ignore


_MEANINGS: dict[tuple[str, str], type] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("numpy", "dtype"): _PickledDType,
}
for _core in ("numpy.core", "numpy._core"):  # The latter is NumPy 2.
    _MEANINGS[f"{_core}.multiarray", "_reconstruct"] = _Reconstructed
    _MEANINGS[f"{_core}.multiarray", "scalar"] = _Scalar
    _MEANINGS[f"{_core}.numeric", "_frombuffer"] = _FromBuffer


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What a name stands for; nothing is imported or looked up."""
        meaning = _MEANINGS.get((module, name))
        return meaning or _Inert("Unknown", (_Unknown,), {"named": f"{module}.{name}"})
