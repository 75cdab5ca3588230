"""Spaces as JSON."""

import json
from collections import OrderedDict

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tfpolicy.spaces import space_from_json, space_to_json


def round_trip(space):
    return space_from_json(json.loads(json.dumps(space_to_json(space), allow_nan=False)))


def assert_same_box(again, space):
    assert again.dtype == space.dtype
    assert again.shape == space.shape
    for name in ("low", "high", "bounded_below", "bounded_above"):
        value, expected = vars(again)[name], vars(space)[name]
        assert value.dtype == expected.dtype
        assert value.tobytes() == expected.tobytes()


@given(st.data(), st.sampled_from(["float16", "float32", "float64"]))
def test_float_boxes_come_back_bit_by_bit(data, dtype):
    elements = hnp.from_dtype(np.dtype(dtype), allow_nan=False, allow_infinity=False)
    ends = data.draw(hnp.arrays(dtype, (2, 2, 3), elements=elements))
    low, high = ends.min(axis=0), ends.max(axis=0)
    unbounded = data.draw(hnp.arrays(bool, (2, 2, 3)))
    low[unbounded[0]], high[unbounded[1]] = -np.inf, np.inf
    space = Box(low, high, dtype=np.dtype(dtype).type)
    assert_same_box(round_trip(space), space)


@given(st.data(), st.sampled_from(["int8", "uint8", "int32", "int64", "uint64", "bool"]))
def test_integer_boxes_come_back_bit_by_bit(data, dtype):
    ends = data.draw(hnp.arrays(dtype, (2, 4), elements=hnp.from_dtype(np.dtype(dtype))))
    space = Box(ends.min(axis=0), ends.max(axis=0), dtype=np.dtype(dtype).type)
    assert_same_box(round_trip(space), space)


@pytest.mark.parametrize(
    "space",
    [
        Box(-np.inf, np.inf, (2, 3)),
        Box(-np.inf, 4, (2,), np.int64),
        Box(0, np.inf, (), np.int8),
        Box(0.0, 1.0, ()),
        Box(np.array([-0.0, 0.0], np.float32), 1.0, (2,)),
        Box(0, 1, (0,)),
    ],
    ids=str,
)
def test_infinite_and_odd_boxes_come_back_bit_by_bit(space):
    assert_same_box(round_trip(space), space)


def test_equal_bounds_of_an_image_are_written_once():
    space = Box(0, 255, (84, 84, 4), np.uint8)
    assert space_to_json(space) == {
        "type": "Box",
        "low": 0,
        "high": 255,
        "shape": [84, 84, 4],
        "dtype": "uint8",
    }


@pytest.mark.parametrize(
    "space",
    [
        Discrete(4),
        Discrete(4, start=-2),
        MultiDiscrete([3, 2]),
        MultiDiscrete([[3, 2], [4, 5]], start=[[1, -1], [0, 7]], dtype=np.int32),
        MultiBinary(3),
        MultiBinary([3]),
        MultiBinary([2, 3]),
        Tuple([Discrete(2), Tuple([Box(-1, 1, (1,))])]),
        Dict(a=Discrete(2), b=Dict(c=MultiBinary(1))),
        Dict({0: Discrete(2), 1: Discrete(3)}),
    ],
    ids=str,
)
def test_other_spaces_come_back_equal(space):
    again = round_trip(space)
    assert again == space
    assert repr(again) == repr(space)
    assert again.dtype == space.dtype
    assert space_to_json(again) == space_to_json(space)


def test_start_of_a_discrete_space_survives():
    again = round_trip(MultiDiscrete([3, 2], start=[1, -1]))
    np.testing.assert_array_equal(again.start, [1, -1])
    assert round_trip(Discrete(3, start=5)).start == 5


def test_order_of_keys_survives():  # e21
    space = Dict(OrderedDict([("z", Discrete(2)), ("a", Discrete(3)), ("m", Discrete(4))]))
    assert list(round_trip(space).spaces) == ["z", "a", "m"]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Text(3), "expected one of Box, .* got Text"),
        (Dict(a=Tuple([Text(3)])), "got Text"),
        (Dict({("a", 0): Discrete(2)}), r"strings or integers, got \('a', 0\)"),
        (5, "got int"),
    ],
)
def test_what_cannot_be_written_is_refused(space, message):
    with pytest.raises(TypeError, match=message):
        space_to_json(space)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "Discret", "n": 2}, "got 'Discret'. Did you mean Discrete"),
        ({"n": 2}, "expected one of Box, .* got None"),
        ({"type": "Discrete", "n": 2}, "`Discrete`: field 'dtype' is missing, got"),
        ({"type": "Tuple", "spaces": [{"type": "Boxes"}]}, "Did you mean Box"),
    ],
)
def test_what_cannot_be_read_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        space_from_json(data)
