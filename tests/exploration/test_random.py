"""Uniform actions over every kind of space."""

import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from scipy import stats

from tfpolicy.distributions import Deterministic, distribution_for
from tfpolicy.exploration import Random
from tfpolicy.exploration.uniform import uniform_actions
from tfpolicy.ops.masking import MASKED_LOGIT
from tfpolicy.spaces import flatten, leaf_spaces, unbatch

ROWS = 6000
SHARED = [
    (Discrete(4, start=-1), -np.log(4)),
    (MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [-1, 7]]), -np.log(120)),
    (MultiDiscrete([3, 3], dtype=np.int32), -np.log(9)),
    (MultiBinary([2, 2]), -np.log(16)),
    (Box(-3, 4, (2,), np.int8), -np.log(64)),
    (Box(-1, 1, (2,)), -np.log(4)),
    (Box(0, 10, (), np.float64), -np.log(10)),
    (Box(5, 5, (1,)), 0.0),
]


class Constant(Deterministic):
    """A family for any space, whose inputs are no logits."""

    @classmethod
    def check_space(cls, space):
        pass


@pytest.fixture
def draw():
    def run(space, seed=(3, 4)):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            inputs = tf.zeros([ROWS, 1])
            distribution = Constant(inputs, Box(-1, 1, (1,)))
            return session.run(uniform_actions(distribution, space, tf.constant(seed)))

    return run


def assert_uniform(space, actions):
    """A χ² test of each dimension of a leaf, over all values or over ten bins."""
    flat = actions.reshape(len(actions), -1)
    for column in flat.T:
        if flat.dtype.kind == "f":
            if column.min() == column.max():
                continue
            low, high = float(space.low.min()), float(space.high.max())
            counts, _ = np.histogram(column, bins=10, range=(low, high))
        else:
            values, counts = np.unique(column, return_counts=True)
            assert len(values) == values[-1] - values[0] + 1
        assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("space", "expected_logp"), SHARED, ids=str)
def test_every_leaf_is_uniform_whatever_the_family(draw, space, expected_logp):
    actions, logp = draw(space)
    assert actions.dtype == (np.float32 if space.dtype.kind == "f" else space.dtype)
    assert all(np.asarray(row, space.dtype) in space for row in actions[:200])
    assert_uniform(space, actions)
    assert logp.dtype == np.float32
    np.testing.assert_allclose(logp, np.full(ROWS, expected_logp), rtol=1e-6)


@pytest.mark.parametrize(("space", "expected_logp"), SHARED[:6], ids=str)
def test_every_family_of_a_policy_is_explored_uniformly(actor, space, expected_logp):
    inputs = np.tile(np.linspace(-9, 9, distribution_for(space).num_inputs), (ROWS, 1))
    act = actor(Random, space, inputs)
    assert act.exploration.scalars(0) == {}
    actions, logp = act()
    assert actions.dtype == space.dtype
    assert_uniform(space, actions)
    np.testing.assert_allclose(logp, np.full(ROWS, expected_logp), rtol=1e-5)


def test_masked_choices_are_left_out(actor, assert_same_law):  # e15
    logits = np.tile([5.0, MASKED_LOGIT, 0.0, MASKED_LOGIT + 7, -np.inf], (ROWS, 1))
    actions, logp = actor(Random, Discrete(5), logits)()
    assert_same_law(actions, {0: 0.5, 1: 0, 2: 0.5, 3: 0, 4: 0})
    np.testing.assert_allclose(logp, np.log(0.5), rtol=1e-6)


def test_open_boxes_are_sampled_like_gymnasium_does(draw):
    inf = np.inf
    space = Box(np.array([0, 2, -inf, -inf], np.float32), np.array([4, inf, -3, inf], np.float32))
    actions, logp = draw(space)
    laws = [stats.uniform(0, 4), stats.expon(2), stats.expon(3), stats.norm()]
    # Below the bound -3 lies the mirror image of what lies above 3.
    columns = actions.astype(np.float64).T * [[1], [1], [-1], [1]]
    for column, law in zip(columns, laws, strict=True):
        assert stats.kstest(column, law.cdf).pvalue > 1e-4
    expected = sum(law.logpdf(column) for column, law in zip(columns, laws, strict=True))
    np.testing.assert_allclose(logp, expected, rtol=1e-4, atol=1e-4)


def test_nested_actions_are_drawn_leaf_by_leaf(draw):  # e10
    space = Dict(a=Tuple([Discrete(3), Discrete(3)]), b=Box(-1, 1, (2,)))
    actions, logp = draw(space)
    assert all(action in space for action in unbatch(actions)[:50])
    for leaf, column in zip(leaf_spaces(space, "a").values(), flatten(space, actions), strict=True):
        assert_uniform(leaf, column)
    np.testing.assert_allclose(logp, np.full(ROWS, -np.log(3 * 3 * 4)), rtol=1e-6)
    first, second = actions["a"]
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(ROWS)


def test_the_seed_alone_decides_the_draw(draw):
    space = Box(-1, 1, (2,))
    np.testing.assert_array_equal(draw(space)[0], draw(space)[0])
    assert (draw(space)[0] != draw(space, (3, 5))[0]).all()


def test_a_nested_policy_is_explored_uniformly_and_within_its_masks(actor, assert_same_law):  # e15
    space = Dict(a=Discrete(3), b=Box(-1, 1, (1,)), c=MultiDiscrete([2, 2]))
    inputs = np.tile([5.0, MASKED_LOGIT, 0.0, 3.0, 1.0, 0.0, 9.0, MASKED_LOGIT, 0.0], (ROWS, 1))
    actions, logp = actor(Random, space, inputs)()
    assert_same_law(actions["a"], {0: 0.5, 1: 0, 2: 0.5})
    assert_uniform(space["b"], actions["b"])
    assert_same_law(actions["c"][:, 0], {0: 0.5, 1: 0.5})
    assert set(actions["c"][:, 1]) == {1}
    np.testing.assert_allclose(logp, np.full(ROWS, -np.log(2 * 2 * 2)), rtol=1e-5)


def test_a_simplex_is_explored_uniformly(actor):
    space = Box(-1, 1, (3,))
    actions, logp = actor(Random, space, np.zeros((ROWS, 3)), "dirichlet")()
    shares = (actions + 1) / 2
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)
    assert stats.kstest(shares[:, 0], stats.beta(1, 2).cdf).pvalue > 1e-4
    np.testing.assert_allclose(logp, np.full(ROWS, np.log(2) - 2 * np.log(2)), rtol=1e-5)
