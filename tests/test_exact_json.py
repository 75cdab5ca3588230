import enum
import json
import struct
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tfpolicy.exact_json import decode, encode


def round_trip(value):
    arrays = {}
    text = json.dumps(encode(value, "state", arrays), allow_nan=False)
    return decode(json.loads(text), arrays)


def same(a, b):
    """Equality of types and bits, to any depth."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and not isinstance(a, np.generic):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b


def nan_with_payload(payload):
    return struct.unpack(">d", struct.pack(">Q", 0x7FF8 << 48 | payload))[0]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": {}, "b": [], "c": ()},
        {"int": 1, "float": 1.0, "bool": True, "none": None, "text": "1"},
        {"beyond_2_53": 2**53 + 1, "int64": -(2**63), "state_of_pcg64": 2**127 + 3},
        {"tiny": 5e-324, "third": 1 / 3, "minus_zero": -0.0, "max": 1.7976931348623157e308},
        {"inf": float("inf"), "minus_inf": float("-inf"), "nan": nan_with_payload(0xDEADBEEF)},
        {"minus_nan": -nan_with_payload(7), "in a list": [float("nan"), [float("inf")]]},
        {"@array": "0", "@float": 1.0, "plain": {"@tuple": []}},
        {"": 1, "a/b": 2, "ключ": "\ud800 \u2028 \x00", "__proto__": 3},
        {"a": (1, [2.0, (3,)]), "b": [np.float32(1.5), np.int64(2**62), np.bool_(True)]},
        {"text": np.str_("abc"), "time": np.datetime64("2024-01-01")},
    ],
)
def test_plain_values_keep_their_types_and_bits(value):
    assert same(round_trip(value), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3, np.int64),
        np.zeros((0, 4), np.uint8),
        np.array([2**63 - 1, -(2**63)]),
        np.array([0x7FC00001, 0x7F800001, 0xFF800000], np.uint32).view(np.float32),
        np.arange(3, dtype=">f8"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(["a", "bcd"]),
        np.array([(1, 2.0)], dtype=[("count", "i4"), ("mean", "f8")]),
        np.arange(12)[::3],
    ],
)
def test_arrays_keep_their_type_shape_and_bits(array):
    assert same(round_trip({"x": array})["x"], array)


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
leaves = scalars | hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=2))
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(trees)
def test_any_tree_survives(tree):
    assert same(round_trip(tree), tree)


def test_arrays_get_readable_names_that_never_collide():
    state = {"a": {"b": np.ones(1)}, "a/b": np.ones(2), "file": np.ones(3), "\x00": np.ones(4)}
    arrays = {}
    encoded = encode(state, "state", arrays)
    assert list(arrays) == ["state/a/b", "state/a/b'", "state/file", "state/_"]
    assert same(decode(encoded, arrays), state)


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "builtins.object"),
        ({1, 2}, "builtins.set"),
        (b"bytes", "builtins.bytes"),
        (Colour.RED, "Colour"),
        (OrderedDict(a=1), "collections.OrderedDict"),
        (np.array([None]), "dtype object"),
        (np.ma.masked_array([1.0]), "MaskedArray"),
        ({1: 2}, "keys must be strings, got 1"),
    ],
)
def test_what_cannot_come_back_as_it_was_is_refused_by_its_path(value, named):
    with pytest.raises(TypeError, match=r"`state/outer/1`.*" + named):
        encode({"outer": [0, value]}, "state", {})


def test_types_foreign_to_numpy_are_refused():
    foreign = pytest.importorskip("ml_dtypes").bfloat16
    with pytest.raises(TypeError, match="`state` .*got dtype bfloat16"):
        encode(np.zeros(2, foreign), "state", {})
