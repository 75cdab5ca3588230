"""Leaves, names, flattening and putting together."""

import re
from collections import OrderedDict

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tfpolicy.spaces import check_supported, flatten, leaf_spaces, map_leaves, unflatten

POSITION = Box(-1, 1, (2,))
NESTED = Dict(
    OrderedDict(
        z=Tuple([Discrete(3), Dict(position=POSITION)]),
        a=MultiBinary(4),
    )
)
NESTED_VALUE = {"a": "bits", "z": ("choice", {"position": "place"})}


def test_a_plain_space_is_its_own_leaf():
    assert leaf_spaces(POSITION, "obs") == {"obs": POSITION}


def test_leaves_are_named_by_their_path_in_the_order_of_the_space():
    leaves = leaf_spaces(NESTED, "obs")
    assert list(leaves) == ["obs_z_0", "obs_z_1_position", "obs_a"]
    assert leaves["obs_z_1_position"] is POSITION


def test_names_are_identifiers_whatever_the_keys():
    space = Dict({"goal/x": POSITION, "dx:0": POSITION, "ä b": POSITION, "class": POSITION})
    names = list(leaf_spaces(space, "obs"))
    assert all(re.fullmatch(r"[A-Za-z][0-9A-Za-z_]*", name) for name in names)
    assert names == ["obs_class", "obs_dx_0", "obs_goal_x", "obs___b"]


def test_colliding_names_get_the_first_free_suffix_and_leave_real_names_alone():
    space = Dict(
        OrderedDict([("a_b", POSITION), ("a", Dict(b=Discrete(2))), ("a/b", Discrete(3))])
        | OrderedDict([("a_b_2", Discrete(4))])
    )
    leaves = leaf_spaces(space, "obs")
    assert leaves == {
        "obs_a_b": POSITION,
        "obs_a_b_3": Discrete(2),
        "obs_a_b_4": Discrete(3),
        "obs_a_b_2": Discrete(4),
    }


def test_order_of_keys_in_a_value_does_not_matter():  # e21
    reordered = dict(reversed(NESTED_VALUE.items()))
    expected = ["choice", "place", "bits"]
    assert flatten(NESTED, NESTED_VALUE) == flatten(NESTED, reordered) == expected


def test_unflatten_is_the_inverse_of_flatten():
    value = NESTED.sample()
    again = unflatten(NESTED, flatten(NESTED, value))
    assert list(again) == ["z", "a"]
    assert isinstance(again["z"], tuple)
    assert again in NESTED
    np.testing.assert_equal(again, value)


def test_unflatten_counts_the_leaves():
    with pytest.raises(ValueError, match="expected 3 values .* got 2"):
        unflatten(NESTED, [1, 2])


def test_map_leaves_walks_several_values_at_once():
    first, second = unflatten(NESTED, [1, 2, 3]), unflatten(NESTED, [10, 20, 30])
    result = map_leaves(lambda leaf, a, b: (leaf.shape, a + b), NESTED, first, second)
    assert result == {"z": (((), 11), {"position": ((2,), 22)}), "a": ((4,), 33)}


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"z": (0, {"position": 0})}, KeyError, r"`value`.*\['a'\] are missing"),
        ({**NESTED_VALUE, "b": 0}, ValueError, r"`value`.*got \['b'\] too"),
        ({"a": 0, "z": (0, {"place": 0})}, KeyError, r"`value\['z'\]\[1\]`.*'position'"),
        ({"a": 0, "z": (0,)}, ValueError, r"`value\['z'\]`: expected 2 items, got 1"),
        ({"a": 0, "z": 5}, ValueError, r"`value\['z'\]`: expected a tuple, got int"),
        ([1, 2], ValueError, r"`value`: expected a mapping, got list"),
    ],
)
def test_a_value_of_another_structure_is_refused_by_path(value, error, message):
    with pytest.raises(error, match=message):
        flatten(NESTED, value)


@pytest.mark.parametrize(
    "space", [POSITION, Discrete(3), MultiDiscrete([2, 3]), MultiBinary(2), NESTED]
)
def test_supported_spaces_pass(space):
    check_supported(space, "observation_space")


@pytest.mark.parametrize(
    ("space", "error", "message"),
    [
        (gym_spaces.Text(5), ValueError, "got Text; encode"),
        (gym_spaces.Sequence(POSITION), ValueError, "got Sequence; pad"),
        (gym_spaces.Graph(POSITION, None), ValueError, "got Graph; pad"),
        (gym_spaces.OneOf([POSITION, Discrete(2)]), ValueError, "got OneOf; use"),
        (Dict(), ValueError, "at least one leaf"),
        ((POSITION, POSITION), TypeError, "expected a gymnasium space, got tuple"),
        (Box(-1, 1, (2,), np.longdouble), ValueError, "float64 or narrower"),
    ],
)
def test_unsupported_spaces_are_refused_with_what_to_do_instead(space, error, message):
    with pytest.raises(error, match=message):
        check_supported(space, "observation_space")


def test_an_unsupported_space_is_named_by_its_path():
    space = Dict(chat=Tuple([POSITION, gym_spaces.Text(5)]))
    with pytest.raises(ValueError, match=re.escape("`observation_space['chat'][1]`")):
        check_supported(space, "observation_space")
