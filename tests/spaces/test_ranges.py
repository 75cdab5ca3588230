import numpy as np
import pytest
from gymnasium import spaces as S

from tfpolicy.spaces import batch_observations, check_in_bounds, check_in_range

INSIDE = [
    (S.Discrete(3), [0, 2]),
    (S.Discrete(3, start=-1), [-1, 1]),
    (S.MultiDiscrete([2, 3]), [[1, 2]]),
    (S.MultiDiscrete([2, 3], start=[5, 0]), [[6, 2]]),
    (S.MultiBinary(2), [[0, 1]]),
    (S.Box(0, 1, (1,), np.float32), [[7.0]]),
]
OUTSIDE = [
    (S.Discrete(3), [0, 3], "row 1 is 3"),
    (S.Discrete(3), [-1], "row 0 is -1"),
    (S.Discrete(3, start=-1), [2], "row 0 is 2"),
    (S.MultiDiscrete([2, 3]), [[1, 2], [2, 0]], "row 1"),
    (S.MultiDiscrete([2, 3], start=[5, 0]), [[0, 0]], "row 0"),
    (S.MultiBinary(2), [[0, 1], [7, 0]], "row 1"),
]


@pytest.mark.parametrize(("space", "values"), INSIDE, ids=str)
def test_values_of_the_space_pass_and_boxes_always_do(space, values):
    check_in_range(space, np.array(values), "obs")


def test_boxes_are_checked_on_request():
    space = S.Box(np.int8([0, -3]), np.int8([9, 3]), dtype=np.int8)
    check_in_bounds(space, np.array([[9, -3]]), "actions")
    with pytest.raises(ValueError, match=r"`actions`: row 1 is \[ 9 -4\], outside of Box"):
        check_in_bounds(space, np.array([[9, -3], [9, -4]]), "actions")


@pytest.mark.parametrize(("space", "values", "text"), OUTSIDE, ids=str)
def test_the_row_of_a_value_outside_is_named(space, values, text):
    with pytest.raises(ValueError, match=f"`obs`: {text}.*outside of"):
        check_in_range(space, np.array(values), "obs")


@pytest.mark.parametrize(("space", "values", "text"), OUTSIDE, ids=str)
def test_observations_outside_are_refused_as_arrays_and_as_lists(space, values, text):
    for form in (values, np.array(values, space.dtype)):
        with pytest.raises(ValueError, match=text):
            batch_observations(space, form)


def test_a_leaf_outside_is_named_by_its_path():
    space = S.Dict(kind=S.Discrete(2), pose=S.Box(-1, 1, (1,), np.float32))
    batch = {"kind": np.array([5]), "pose": np.zeros((1, 1), np.float32)}
    with pytest.raises(ValueError, match="`obs_kind`: row 0 is 5"):
        batch_observations(space, batch)
