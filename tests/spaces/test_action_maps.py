"""Actions between the policy's own space and the environment's."""

import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tfpolicy.spaces import (
    action_scaling,
    blank_action,
    clip_action,
    first_action,
    normalize_action,
    normalized_space,
    own_space,
    unbatch,
    unsquash_action,
)

INF = np.inf
MIXED = Box(
    np.array([-2, -INF, 0, -INF], np.float32),
    np.array([4, INF, INF, 1], np.float32),
)
FLOATS = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
INTEGERS = [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64]


def floats_of(dtype, infinite=False):
    return hnp.from_dtype(
        np.dtype(dtype), allow_nan=False, allow_infinity=infinite, allow_subnormal=False
    )


@st.composite
def float_boxes(draw):
    """Boxes of 3 dimensions of any float dtype, each finite, half-infinite or infinite."""
    dtype = draw(st.sampled_from(list(FLOATS.values())))
    ends = draw(hnp.arrays(dtype, (3, 2), elements=floats_of(dtype, infinite=True)))
    low, high = np.minimum(*ends.T), np.maximum(*ends.T)
    low, high = np.where(low == INF, -INF, low), np.where(high == -INF, INF, high)
    return Box(low.astype(dtype), high.astype(dtype), dtype=dtype)


@st.composite
def boxes_with_actions(draw):
    space = draw(float_boxes())
    finite = draw(hnp.arrays(space.dtype, (5, 3), elements=floats_of(space.dtype)))
    return space, np.clip(finite, space.low, space.high)


@given(boxes_with_actions())
def test_unsquash_of_normalize_is_the_action_up_to_rounding(case):
    space, action = case
    again = unsquash_action(normalize_action(action, space), space)
    assert again.dtype == space.dtype
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    # Where nothing is scaled, nothing is rounded either.
    np.testing.assert_array_equal(again[:, ~bounded], action[:, ~bounded])
    # [-1, 1] has a resolution of eps at its ends, of which the range is half as many again.
    low, high = space.low[bounded].astype(float), space.high[bounded].astype(float)
    resolution = np.finfo(space.dtype).eps * (high / 2 - low / 2 + np.abs(low / 2 + high / 2))
    smallest = float(np.finfo(space.dtype).tiny)
    error = np.abs(again[:, bounded].astype(float) / 2 - action[:, bounded].astype(float) / 2)
    assert np.all(error <= resolution + smallest)


@given(boxes_with_actions())
def test_normalized_actions_lie_in_the_normalized_space(case):
    space, action = case
    own = normalized_space(space)
    assert own.dtype == space.dtype
    assert all(row in own for row in normalize_action(action, space))


@pytest.mark.filterwarnings("ignore:overflow")  # To infinity, which is then clipped.
@given(float_boxes(), hnp.arrays(np.float32, (5, 3), elements=floats_of(np.float32, True)))
def test_unsquashed_and_clipped_actions_lie_in_the_space(space, action):
    for act in (unsquash_action, clip_action):
        assert all(row in space for row in act(action, space))


@pytest.mark.filterwarnings("ignore:overflow")
@given(float_boxes())
def test_minus_one_and_one_reach_the_bounds_themselves(space):
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    ends = np.array([[-1.0] * 3, [1.0] * 3], np.float32)
    low, high = unsquash_action(ends, space)
    np.testing.assert_array_equal(low[bounded], space.low[bounded])
    np.testing.assert_array_equal(high[bounded], space.high[bounded])


@given(st.data(), st.sampled_from(INTEGERS))
def test_integer_boxes_are_rounded_and_clipped_in_their_own_dtype(data, dtype):  # e3
    ends = data.draw(hnp.arrays(dtype, (2,), elements=hnp.from_dtype(np.dtype(dtype))))
    space = Box(int(ends.min()), int(ends.max()), (1,), dtype)
    value = data.draw(st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1))
    action = np.array([value])
    for act in (unsquash_action, clip_action):
        result = act(action, space)
        assert result.dtype == dtype
        assert result in space
    if int(ends.min()) <= value <= int(ends.max()) and abs(value) < 2**53:
        assert clip_action(action, space) == np.rint(value)


@given(st.data(), st.sampled_from(INTEGERS))
def test_actions_of_an_integer_box_come_back_unchanged(data, dtype):
    limits = np.iinfo(dtype)
    action = data.draw(hnp.arrays(dtype, (2, 1), elements=hnp.from_dtype(np.dtype(dtype))))
    space = Box(int(limits.min), int(limits.max), (1,), dtype)
    again = unsquash_action(normalize_action(action, space), space)
    assert again.dtype == dtype
    np.testing.assert_array_equal(again, action)


def test_scaling_by_hand():
    # Only the first dimension has two finite bounds: [-2, 4] is 1 ± 3. The others are clipped.
    action = np.array([[0.5, 0.5, 0.5, 0.5], [-1, -9, -9, -9], [7, 9, 9, 9]], np.float32)
    expected = [[2.5, 0.5, 0.5, 0.5], [-2, -9, 0, -9], [4, 9, 9, 1]]
    np.testing.assert_array_equal(unsquash_action(action, MIXED), expected)
    np.testing.assert_array_equal(
        normalize_action(np.array([2.5, 9, 9, 9]), MIXED), np.float32([0.5, 9, 9, 9])
    )


def test_unbounded_dimensions_stay_as_they_are():  # e1
    space = Box(-INF, INF, (2,))
    assert normalized_space(space) == space
    action = np.array([[-3.0, 1e6]], np.float32)
    np.testing.assert_array_equal(unsquash_action(action, space), action)
    np.testing.assert_array_equal(normalize_action(action, space), action)


def test_actions_outside_the_bounds_are_normalized_linearly():  # e7
    space = Box(0, 5, (1,))
    np.testing.assert_allclose(normalize_action(np.array([7.5]), space), [2.0])


def test_a_dimension_of_one_value_is_centred():
    space = Box(3, 3, (1,))
    assert normalize_action(np.array([3.0]), space) == 0
    assert unsquash_action(np.array([0.7], np.float32), space) == 3


def test_bounds_at_the_limits_of_the_dtype_do_not_overflow():
    largest = np.finfo(np.float32).max
    space = Box(-largest, largest, (1,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        half = unsquash_action(np.array([0.5], np.float32), space)
    np.testing.assert_array_equal(half, np.float32([largest / 2]))


def test_scaling_is_computed_in_float32_unless_the_space_is_float64():
    assert [a.dtype for a in action_scaling(Box(0, 1, (2,), np.float16))] == [np.float32] * 2
    assert [a.dtype for a in action_scaling(Box(0, 1, (2,), np.float64))] == [np.float64] * 2


def test_rounding_is_half_to_even():
    space = Box(0, 5, (4,), np.int8)
    np.testing.assert_array_equal(clip_action(np.array([0.5, 1.5, 2.5, 9]), space), [0, 2, 2, 5])


def test_boolean_boxes_are_rounded_to_booleans():
    result = clip_action(np.array([-1.0, 0.4, 0.6, 7.0]), Box(0, 1, (4,), bool))
    assert result.dtype == np.bool_
    np.testing.assert_array_equal(result, [False, False, True, True])


def test_normalized_space_changes_bounded_float_dimensions_only():
    own = normalized_space(MIXED)
    np.testing.assert_array_equal(own.low, [-1, -INF, 0, -INF])
    np.testing.assert_array_equal(own.high, [1, INF, INF, 1])
    for space in (Discrete(3, start=-1), MultiDiscrete([2, 3]), Box(0, 9, (1,), np.int8)):
        assert normalized_space(space) is space


def test_what_a_policy_draws_has_32_bits():
    assert own_space(Box(-3, INF, (2,), np.float16), normalized=False) == Box(-3, INF, (2,))
    nested = Dict(b=Tuple([Box(0, 2, (), np.float16)]), a=Box(0, 2, (1,), np.float64))
    own = own_space(nested, normalized=True)
    assert own == Dict(b=Tuple([Box(-1, 1, ())]), a=Box(-1, 1, (1,), np.float64))
    assert own_space(MIXED, normalized=False) is MIXED


def test_the_first_action_of_a_batch_is_contained_in_the_space():
    space = Dict(speed=Box(0, 1, ()), gear=Tuple([Discrete(3), Box(0, 3, (), np.int64)]))
    batch = {"speed": np.float32([0.5, 2]), "gear": (np.array([1, 9]), np.array([2, 9]))}
    action = first_action(space, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Gymnasium takes a scalar for a Box, with a warning.
        assert action in space
    assert isinstance(action["gear"][0], np.int64)  # As an index or a key.
    assert first_action(MIXED, np.float32([[1, 2, 3, 4], [5, 6, 7, 8]])).tolist() == [1, 2, 3, 4]


NESTED = Dict(
    {
        "steer": Box(-5, 5, (2,), np.float64),
        "gear": Tuple([Discrete(3, start=1), Box(0, 1, (1,), np.int8), Box(0, 2, (1,))]),
        "lights": MultiBinary(2),
    }
)
OWN_BATCH = {
    "lights": np.array([[0, 1], [1, 1]]),
    "gear": (
        np.array([1, 3], np.int32),
        np.array([[0], [1]]),
        np.array([[-1], [0.5]], np.float32),
    ),
    "steer": np.array([[-1, 0], [0.5, 3]], np.float32),
}


def test_nested_actions_are_mapped_leaf_by_leaf():  # e10
    result = unsquash_action(OWN_BATCH, NESTED)
    np.testing.assert_array_equal(result["steer"], [[-5, 0], [2.5, 5]])
    np.testing.assert_array_equal(result["gear"][2], [[0], [1.5]])
    single = unbatch(result)
    assert len(single) == 2
    assert all(action in NESTED for action in single)
    own = normalized_space(NESTED)
    np.testing.assert_array_equal(own["steer"].high, [1, 1])
    assert own["gear"][0] == Discrete(3, start=1)
    assert list(own) == list(NESTED)


def test_single_and_batched_actions_are_treated_alike():
    singles = [unsquash_action(action, NESTED) for action in unbatch(OWN_BATCH)]
    np.testing.assert_equal(singles, unbatch(unsquash_action(OWN_BATCH, NESTED)))
    assert all(action in NESTED for action in singles)


def test_a_single_discrete_action_can_be_a_key():
    assert {2: "right"}[clip_action(np.array(2), Discrete(3))] == "right"
    assert isinstance(unsquash_action(2, Discrete(3)), np.int64)


def test_unbatch_keeps_the_structure():
    batch = {"a": np.array([[1], [2]]), "b": (np.array([3, 4]), [5, 6])}
    first, second = unbatch(batch)
    np.testing.assert_equal(first, {"a": np.array([1]), "b": (3, 5)})
    np.testing.assert_equal(second, {"a": np.array([2]), "b": (4, 6)})


@pytest.mark.parametrize("act", [normalize_action, unsquash_action, clip_action])
def test_actions_of_another_shape_are_refused(act):
    with pytest.raises(ValueError, match=r"`action`: expected \(\.\.\., 4\) .* got \(2, 3\)"):
        act(np.zeros((2, 3)), MIXED)


@pytest.mark.parametrize("act", [normalize_action, unsquash_action, clip_action])
def test_float_actions_for_a_discrete_space_are_refused(act):
    with pytest.raises(TypeError, match="float64"):
        act(np.array([0.5]), Discrete(3))


def test_blank_action_is_what_normalizing_makes_zero():
    space = Dict(
        mixed=MIXED,
        half=Box(1, INF, (2,), np.float64),
        rest=Tuple([Box(2, 9, (2,), np.int8), Discrete(3, start=4), MultiBinary(2)]),
    )
    blank = blank_action(space, normalized=True)
    np.testing.assert_array_equal(blank["mixed"], np.float32([1, 0, 0, 0]))
    assert blank["half"].dtype == np.float64 and blank["rest"][0].dtype == np.int8
    own = normalize_action(blank, space)
    for leaf in (own["mixed"], own["half"], *own["rest"]):
        assert not np.any(leaf)
    assert not blank_action(MIXED, normalized=False).any()
