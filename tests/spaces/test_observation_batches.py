"""Observations in every form that environments and users hand over."""

import timeit

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tfpolicy.spaces import batch_observations

BOX = Box(-10, 10, (4,))
DICT = Dict(image=Box(0, 255, (2, 2, 1), np.uint8), speed=BOX, where=Tuple([Discrete(3), BOX]))
ROWS = [DICT.sample() for _ in range(3)]
COLUMNS = {
    "where": (
        np.array([row["where"][0] for row in ROWS]),
        np.stack([row["where"][1] for row in ROWS]),
    ),
    "speed": np.stack([row["speed"] for row in ROWS]),
    "image": np.stack([row["image"] for row in ROWS]),
}
LEAVES = [COLUMNS["image"], COLUMNS["speed"], *COLUMNS["where"]]


def assert_same(arrays, expected):
    assert [(a.dtype, a.shape) for a in arrays] == [(e.dtype, e.shape) for e in expected]
    for array, wanted in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(array, wanted)


def test_an_array_that_fits_is_passed_on_without_a_copy():
    obs = np.zeros((3, 4), np.float32)
    assert batch_observations(BOX, obs)[0] is obs


@pytest.mark.parametrize("obs", [COLUMNS, ROWS, tuple(ROWS)], ids=["columns", "list", "tuple"])
def test_nested_observations_become_one_array_a_leaf_in_the_order_of_the_space(obs):  # j10, e21
    assert_same(batch_observations(DICT, obs), LEAVES)


def test_a_tuple_is_one_batch_an_item_and_a_list_one_observation_an_item():
    space = Tuple([Discrete(5), Discrete(5)])
    tuple_of_batches = batch_observations(space, (np.array([1, 2]), np.array([3, 4])))
    list_of_observations = batch_observations(space, [(1, 3), (2, 4)])
    assert_same(tuple_of_batches, [np.array([1, 2]), np.array([3, 4])])
    assert_same(list_of_observations, tuple_of_batches)


def test_rows_and_columns_mix_at_different_depths():
    obs = {**COLUMNS, "where": [row["where"] for row in ROWS]}
    assert_same(batch_observations(DICT, obs), LEAVES)


@pytest.mark.parametrize(
    ("space", "obs", "dtype"),
    [
        (BOX, np.ones((2, 4), np.float64), np.float32),  # a13, e18
        (BOX, np.ones((2, 4), np.int64), np.float32),
        (BOX, [[1, 2, 3, 4]], np.float32),
        (BOX, np.full((1, 4), np.inf), np.float32),
        (BOX, np.full((1, 4), np.nan), np.float32),
        (Box(-1, 1, (1,), np.float64), np.ones((2, 1), np.float32), np.float64),
        (Discrete(3), [0, 2], np.int64),
        (Discrete(3), np.array([0, 2], np.int32), np.int64),
        (Box(0, 255, (1,), np.uint8), np.array([[0], [255]]), np.uint8),
        (MultiBinary(2), np.array([[True, False]]), np.int8),
        (Box(0, 1, (1,), bool), np.array([[0], [1]]), np.bool_),
        (MultiDiscrete([[2, 3], [4, 5]]), np.zeros((3, 2, 2), np.uint64), np.int64),
        (Box(0, 255, (1,), np.uint8), np.zeros((0, 1), np.int64), np.uint8),
    ],
)
def test_values_that_fit_are_cast_to_the_dtype_of_the_space(space, obs, dtype):
    (array,) = batch_observations(space, obs)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, obs)


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (Discrete(3), np.array([0.0, 1.0]), "expected int64, got float64"),
        (Box(0, 255, (1,), np.uint8), np.array([[256]]), "expected uint8, got int64"),
        (Box(0, 255, (1,), np.uint8), np.array([[-1]]), "expected uint8, got int64"),
        (Box(0, 1, (1,), bool), np.array([[2]]), "expected bool, got int64"),
        (Discrete(3), np.array([2**63], np.uint64), "expected int64, got uint64"),
        (BOX, np.full((1, 4), 1e300), "expected float32, got float64"),
        (Box(-1, 1, (1,), np.float16), np.array([[70000]]), "expected float16, got int64"),
        (BOX, np.array([["a", "b", "c", "d"]]), "expected float32, got <U1"),
        (BOX, np.zeros((1, 4), complex), "expected float32, got complex128"),
    ],
)
def test_values_that_do_not_fit_are_refused(space, obs, message):
    with pytest.raises(ValueError, match=f"`obs`: {message}"):
        batch_observations(space, obs)


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (BOX, np.zeros(4, np.float32), r"expected \(B, 4\), got \(4,\)"),
        (BOX, np.zeros((2, 3), np.float32), r"expected \(B, 4\), got \(2, 3\)"),
        (Box(0, 1, (432,)), [0.0] * 432, r"expected \(B, 432\), got \(432,\)"),  # e24
        (Discrete(3), 1, r"expected \(B,\), got \(\)"),
        (Discrete(3), np.array(1), r"expected \(B,\), got \(\)"),
        (BOX, [[1, 2, 3, 4], [1, 2]], r"expected \(B, 4\), got rows of unequal shapes"),
        (DICT, np.zeros((2, 4)), "expected a mapping of batches or a list .* got ndarray"),
        (DICT, [], r"expected a mapping of batches or a list .* got \[\]"),
        (Tuple([BOX]), {"a": 0}, "expected a tuple of batches or a list .* got dict"),
    ],
)
def test_misshaped_observations_are_refused(space, obs, message):
    with pytest.raises(ValueError, match=f"`obs`: {message}"):
        batch_observations(space, obs)


@pytest.mark.parametrize(
    ("obs", "error", "message"),
    [
        ({**COLUMNS, "speed": np.zeros(4)}, ValueError, r"`obs_speed`: expected \(B, 4\)"),
        ({**COLUMNS, "speed": [["x"] * 4] * 3}, ValueError, "`obs_speed`: expected float32"),
        ({**COLUMNS, "speed": np.zeros((2, 4))}, ValueError, "as many rows .*'obs_speed': 2"),
        ({"speed": 0, "image": 0}, KeyError, r"`obs`.*\['where'\] are missing"),
        ([ROWS[0], {"speed": 0}], KeyError, r"`obs\[1\]`.*\['image', 'where'\] are missing"),
    ],
)
def test_the_leaf_at_fault_is_named(obs, error, message):
    with pytest.raises(error, match=message):
        batch_observations(DICT, obs)


def test_other_columns_are_called_by_their_name():
    with pytest.raises(ValueError, match=r"`new_obs`: expected \(B, 4\)"):
        batch_observations(BOX, np.zeros(4), "new_obs")


def test_the_common_case_costs_no_more_than_a_few_attribute_lookups():
    obs = np.zeros((1, 4), np.float32)

    def slowdown():
        lookups = min(timeit.repeat(lambda: (obs.shape[1:], obs.ndim, obs.dtype), number=2000))
        return min(timeit.repeat(lambda: batch_observations(BOX, obs), number=2000)) / lookups

    # About 2; a general path costs some 30. Only ratios mean anything on a shared machine.
    assert min(slowdown() for _ in range(3)) < 10
