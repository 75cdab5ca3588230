import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tfpolicy.distributions import (
    FAMILIES,
    Bernoulli,
    Beta,
    Categorical,
    Deterministic,
    DiagGaussian,
    Dirichlet,
    Family,
    GumbelSoftmax,
    JointActionDistribution,
    MultiCategorical,
    SquashedGaussian,
    distribution_for,
)


@pytest.mark.parametrize(
    "space, custom, family, num_inputs",
    [
        (Discrete(5), None, Categorical, 5),
        (MultiDiscrete([[2, 3], [4, 5]]), None, MultiCategorical, 14),
        (Box(0, 3, (2,), np.uint8), None, MultiCategorical, 8),
        (Box(-128, 127, (2,), np.int8), None, MultiCategorical, 512),
        (MultiBinary([2, 3]), None, Bernoulli, 6),
        (Box(-np.inf, np.inf, (2, 3)), None, DiagGaussian, 12),
        (Box(-1, 1, (), np.float64), None, DiagGaussian, 2),
        (Box(-1, 1, (3,)), "diag_gaussian", DiagGaussian, 6),
        (Box(-1, 1, (3,)), "squashed_gaussian", SquashedGaussian, 6),
        (Box(-1, 1, (3,)), "beta", Beta, 6),
        (Box(-1, 1, (3,)), "deterministic", Deterministic, 3),
        (Box(-1, 1, (3,)), "dirichlet", Dirichlet, 3),
        (Box(-1, 1, (3,)), "gumbel_softmax", GumbelSoftmax, 3),
        (Box(-1, 1, (3,)), Beta, Beta, 6),
    ],
    ids=str,
)
def test_family_and_inputs_follow_from_the_space(space, custom, family, num_inputs):
    distribution = distribution_for(space, custom)
    assert distribution.family is family
    assert distribution.space is space
    assert distribution.num_inputs == num_inputs
    with tf.Graph().as_default():
        assert type(distribution(tf.zeros([1, num_inputs]))) is family


def test_a_subclass_of_the_user_is_taken():
    class Sharp(Categorical):
        """A categorical at temperature ½."""

        def __init__(self, inputs, space):
            super().__init__(2.0 * inputs, space)

    distribution = distribution_for(Discrete(2), Sharp)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        logp = session.run(distribution(tf.constant([[0.5, 0.0]])).log_prob([0]))
    np.testing.assert_allclose(logp, [-np.log1p(np.exp(-1.0))], rtol=1e-6)


def test_equal_choices_are_equal_and_hashable():
    first, second = (distribution_for(Box(-1, 1, (3,))) for _ in "12")
    assert first == second
    assert first != distribution_for(Box(-1, 1, (3,)), "beta")


def test_every_name_is_that_of_its_class():
    for name, family in FAMILIES.items():
        assert name.replace("_", "") == family.__name__.lower()


@pytest.mark.parametrize(
    "space, custom, error, message",
    [
        (Discrete(2), "squashed_gausian", ValueError, "Did you mean 'squashed_gaussian'"),
        (Discrete(2), "xyz", ValueError, "one of bernoulli, beta, .*, got 'xyz'.$"),
        (Discrete(2), "beta", ValueError, "Beta expects a float Box, got Discrete"),
        (Box(-np.inf, 1, (1,)), "beta", ValueError, "none in dimension 0"),
        (Discrete(2), int, TypeError, "a subclass of Family, got <class 'int'>"),
        (Discrete(2), 3, TypeError, "a subclass of Family, got 3"),
        (gym.spaces.Text(3), None, ValueError, "Box, .* or Dict or Tuple of these, got Text"),
        (Tuple([Discrete(2)]), "beta", ValueError, r"Beta fits neither Tuple\(.*\) nor one of its"),
        (Tuple([Box(-99, 99, (99,), np.int8)]), None, ValueError, "at most 4096"),
        (Box(-1, 1, (2, 0)), None, ValueError, "at least one element, got Box"),
        (Tuple([Box(0, 1, (0,), bool)]), None, ValueError, "at least one element, got Box"),
    ],
)
def test_choices_that_do_not_fit_are_refused(space, custom, error, message):
    with pytest.raises(error, match=message):
        distribution_for(space, custom)


NESTED = Dict(
    speed=Box(-1, 1, (2,)),
    then=Tuple([Discrete(3), MultiDiscrete([2, 2]), Box(-np.inf, np.inf, (1,)), MultiBinary(2)]),
)


@pytest.mark.parametrize(
    "custom, families",
    [
        (None, [DiagGaussian, Categorical, MultiCategorical, DiagGaussian, Bernoulli]),
        # The unbounded box, too, keeps its own family.
        ("beta", [Beta, Categorical, MultiCategorical, DiagGaussian, Bernoulli]),
        ("categorical", [DiagGaussian, Categorical, MultiCategorical, DiagGaussian, Bernoulli]),
    ],
)
def test_a_nested_space_gets_a_family_for_each_leaf(custom, families):
    distribution = distribution_for(NESTED, custom)
    assert isinstance(distribution, JointActionDistribution)
    assert [part.family for part in distribution.parts] == families
    assert distribution.num_inputs == 4 + 3 + 4 + 2 + 2
    assert distribution == distribution_for(NESTED, custom)


class Whole(Categorical):
    """Takes any space as a whole."""

    @classmethod
    def check_space(cls, space):
        pass

    @staticmethod
    def num_inputs(space):
        return 7


def test_a_class_that_takes_the_nested_space_gets_the_whole_of_it():
    distribution = distribution_for(NESTED, Whole)
    assert distribution.parts == (distribution,)
    assert distribution.family is Whole and distribution.space is NESTED
    assert distribution.num_inputs == 7


def test_options_go_to_the_leaves_that_have_them():
    distribution = distribution_for(NESTED, None, {"temperature": 2.0})
    has_option = [dict(part.options) == {"temperature": 2.0} for part in distribution.parts]
    assert has_option == [False, True, True, False, False]
    assert distribution != distribution_for(NESTED)
    with tf.Graph().as_default():
        np.testing.assert_array_equal(
            distribution_for(Discrete(3), None, {"temperature": 2.0})(tf.ones([1, 3])).logits.shape,
            [1, 3],
        )


@pytest.mark.parametrize(
    "space, custom, options, message",
    [
        (
            Discrete(2),
            None,
            {"temprature": 2.0},
            "Unknown option 'temprature' of Categorical; kn.*",
        ),
        (Box(-1, 1, (2,)), None, {"temperature": 2.0}, "DiagGaussian; known: none."),
        (NESTED, None, {"x": 1}, "DiagGaussian, Categorical, .*; known: temperature."),
    ],
)
def test_options_that_no_family_has_are_refused(space, custom, options, message):
    with pytest.raises(ValueError, match=message):
        distribution_for(space, custom, options)


def test_a_family_is_what_a_subclass_must_be():
    assert all(issubclass(family, Family) for family in FAMILIES.values())
