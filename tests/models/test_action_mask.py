"""Which masks fit which actions, and which logits they leave."""

import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tfpolicy.config import ModelConfig
from tfpolicy.distributions import Categorical, distribution_for
from tfpolicy.models.action_mask import action_mask_for
from tfpolicy.spaces import flatten

OBS = Box(-1, 1, (2,))
NESTED = Dict(
    power=Box(-1, 1, (1,)), then=Tuple([MultiBinary(2), MultiDiscrete([2, 3])]), way=Discrete(2)
)


def mask_for(action_space, mask_space, custom=None, **config):
    space = Dict(action_mask=mask_space, observations=OBS)
    return action_mask_for(space, distribution_for(action_space, custom), ModelConfig(**config))


def observations(mask, rows):
    return {"action_mask": mask, "observations": np.zeros((rows, 2), np.float32)}


def allowed(found, mask, rows):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors = tf.nest.map_structure(tf.constant, observations(mask, rows))
        return session.run(found.allowed(tensors))


@pytest.mark.parametrize(
    "mask_space",
    [
        MultiBinary(3),
        Box(0, 1, (3,)),
        Box(0, 1, (3,), np.float64),
        Box(0, 1, (3,), np.int64),
        Box(0, 1, (3,), np.bool_),
        MultiDiscrete([2, 2, 2]),
    ],
    ids=str,
)
def test_a_discrete_action_takes_any_binary_mask(mask_space):
    found = mask_for(Discrete(3, start=5), mask_space)
    mask = np.array([[0, 1, 1], [1, 0, 0]], mask_space.dtype)
    np.testing.assert_array_equal(allowed(found, mask, 2), mask.astype(bool))
    assert found.inner_space == OBS


@pytest.mark.parametrize(
    "nvec, mask_space, mask, expected",
    [
        # Choices of 2 and 3 values, side by side or one mask each.
        ([2, 3], MultiBinary(5), [[1, 0, 0, 1, 1]], [[1, 0, 0, 1, 1]]),
        (
            [2, 3],
            Tuple([MultiBinary(2), MultiBinary(3)]),
            ([[1, 0]], [[0, 1, 1]]),
            [[1, 0, 0, 1, 1]],
        ),
        # Of equal number: one row each, too.
        ([2, 2], MultiBinary([2, 2]), [[[1, 0], [0, 1]]], [[1, 0, 0, 1]]),
        ([[2, 2]], MultiBinary([1, 2, 2]), [[[[1, 0], [0, 1]]]], [[1, 0, 0, 1]]),
        ([[2, 3]], MultiBinary(5), [[1, 0, 0, 1, 1]], [[1, 0, 0, 1, 1]]),
    ],
    ids=str,
)
def test_a_multi_discrete_action_takes_masks_of_its_choices(nvec, mask_space, mask, expected):
    found = mask_for(MultiDiscrete(nvec), mask_space)
    mask = tuple(map(np.int8, mask)) if isinstance(mask, tuple) else np.int8(mask)
    np.testing.assert_array_equal(allowed(found, mask, 1), np.array(expected, bool))


@pytest.mark.parametrize(
    "mask_space, mask, expected",
    [
        # The inputs: 2 of `power`, 2 of the bits, 2 + 3 of the choices, 2 of `way`.
        (
            Dict(then=Tuple([MultiBinary(5)]), way=MultiBinary(2)),
            {"then": (np.int8([[0, 1, 1, 0, 0]]),), "way": np.int8([[1, 0]])},
            [[1, 1, 1, 1, 0, 1, 1, 0, 0, 1, 0]],
        ),
        # A mask may be missing.
        (
            Dict(way=MultiBinary(2)),
            {"way": np.int8([[0, 1]])},
            [[1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1]],
        ),
    ],
    ids=["all", "one"],
)
def test_a_nested_action_takes_a_mask_of_its_structure(mask_space, mask, expected):
    found = mask_for(NESTED, mask_space)
    np.testing.assert_array_equal(allowed(found, mask, 1), np.array(expected, bool))


def test_rows_without_a_legal_action_are_named():
    found = mask_for(Discrete(3), MultiBinary(3))
    mask = np.ones((8, 3), np.int8)
    found.check(flatten(found.observation_space, observations(mask, 8)))
    mask[4] = 0
    with pytest.raises(ValueError, match="`obs_action_mask`: .* of the 3 actions .* in row 4\\.$"):
        found.check(flatten(found.observation_space, observations(mask, 8)))
    mask[:] = 0
    with pytest.raises(ValueError, match=r"is in rows 0, 1, 2, 3, 4, \.\.\.\.$"):
        found.check(flatten(found.observation_space, observations(mask, 8)))


@pytest.mark.parametrize(
    "mask_space, mask, message",
    [
        (
            Dict(then=Tuple([MultiBinary(5)])),
            {"then": (np.int8([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]),)},
            "`obs_action_mask_then_0`: .* of the 3 actions of choice 1 must .* in row 1",
        ),
        (
            Dict(then=Tuple([Tuple([MultiBinary(2), MultiBinary(3)])])),
            {"then": ((np.int8([[0, 0], [1, 0]]), np.int8([[0, 1, 0], [1, 0, 0]])),)},
            "`obs_action_mask_then_0_0`: .* of the 2 actions of choice 0 must .* in row 0",
        ),
    ],
    ids=["flat", "tuple"],
)
def test_every_choice_needs_a_legal_value(mask_space, mask, message):
    found = mask_for(NESTED, mask_space)
    with pytest.raises(ValueError, match=message):
        found.check(flatten(found.observation_space, observations(mask, 2)))


def test_other_names_and_none_are_possible():
    space = Dict(legal=MultiBinary(2), board=OBS)
    dist_class = distribution_for(Discrete(2))
    assert action_mask_for(space, dist_class, ModelConfig()) is None
    named = ModelConfig(action_mask_key="legal", observations_key="board")
    assert action_mask_for(space, dist_class, named).inner_space == OBS
    default = Dict(action_mask=MultiBinary(2), observations=OBS)
    assert action_mask_for(default, dist_class, ModelConfig(action_mask_key=None)) is None
    assert action_mask_for(OBS, dist_class, ModelConfig()) is None


class WholePair(Categorical):
    """A family over a pair as a whole."""

    @classmethod
    def check_space(cls, space):
        pass

    @staticmethod
    def num_inputs(space):
        return 4


PAIR = Tuple([Discrete(2), Discrete(2)])


@pytest.mark.parametrize(
    "action_space, mask_space, custom, message",
    [
        (
            Discrete(3),
            MultiBinary(4),
            None,
            r"\['action_mask'\]`: expected 0 and 1 of shape .3,., g",
        ),
        (Discrete(3), Box(-1, 1, (3,)), None, "expected 0 and 1 of shape"),
        (Discrete(3), MultiDiscrete([3, 3, 3]), None, "expected 0 and 1 of shape"),
        (Discrete(3), Discrete(3), None, "expected 0 and 1 of shape"),
        (MultiDiscrete([2, 3]), MultiBinary([2, 3]), None, r"of shape .5,., got"),
        (MultiDiscrete([2, 2]), MultiBinary(3), None, r"of shape .4,. or .2, 2., got"),
        (MultiDiscrete([2, 3]), Tuple([MultiBinary(3), MultiBinary(2)]), None, "got Tuple"),
        (Box(-1, 1, (2,)), MultiBinary(2), None, "Only Discrete and MultiDiscrete .* got Box"),
        (NESTED, MultiBinary(2), None, r"expected a Dict with keys out of \['then', 'way'\]"),
        (NESTED, Dict(power=MultiBinary(1)), None, r"keys out of \['then', 'way'\], got Dict"),
        (NESTED, Dict(then=MultiBinary(5)), None, r"\['then'\]`: expected a Tuple for .* \[1\]"),
        (PAIR, Tuple([MultiBinary(2)]), None, r"expected a Tuple for the items \[0, 1\]"),
        (PAIR, Tuple([MultiBinary(2)] * 2), WholePair, "WholePair takes the whole of Tuple"),
    ],
)
def test_masks_that_do_not_fit_are_refused(action_space, mask_space, custom, message):
    with pytest.raises(ValueError, match=message):
        mask_for(action_space, mask_space, custom)


def test_a_mask_without_an_observation_or_with_more_beside_it_is_refused():
    dist_class = distribution_for(Discrete(2))
    for space in (
        Dict(action_mask=MultiBinary(2), observation=OBS),
        Dict(action_mask=MultiBinary(2), observations=OBS, extra=OBS),
    ):
        with pytest.raises(ValueError, match="beside 'observations' alone, got .*action_mask_key"):
            action_mask_for(space, dist_class, ModelConfig())
