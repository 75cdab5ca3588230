"""Sampling from the policy, after a random start."""

import functools

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from tfpolicy.exploration import StochasticSampling

PROBABILITIES = np.array([0.7, 0.2, 0.1])
ROWS = 10000
LOGITS = np.tile(np.log(PROBABILITIES), (ROWS, 1))


def starting_random(timesteps):
    return functools.partial(StochasticSampling, random_timesteps=timesteps)


def test_actions_follow_the_policy_and_carry_its_log_prob(actor, assert_same_law):
    actions, logp = actor(StochasticSampling, Discrete(3), LOGITS)()
    assert actions.dtype == np.int64
    assert_same_law(actions, dict(enumerate(PROBABILITIES)))
    np.testing.assert_allclose(logp, np.log(PROBABILITIES)[actions], rtol=1e-5)


def test_only_the_policy_is_sampled_when_there_is_no_random_start(actor):
    act = actor(StochasticSampling, Discrete(3), LOGITS)
    assert act.exploration.scalars(0) == {}
    assert not act.op_types() & {"StatelessRandomUniformV2", "SelectV2"}


def test_the_seed_alone_decides_the_draw(actor):
    act = actor(StochasticSampling, Discrete(3), LOGITS)
    first, again, other = act(seed=(1, 2)), act(seed=(1, 2)), act(seed=(1, 3))
    np.testing.assert_array_equal(first[0], again[0])
    assert (first[0] != other[0]).any()


def test_the_start_is_uniform_up_to_an_exact_timestep(actor, assert_same_law):
    act = actor(starting_random(100), Discrete(3), LOGITS)
    assert [act.exploration.scalars(t)["starting"] for t in (0, 99, 100, 101)] == [1, 1, 0, 0]
    actions, logp = act(timestep=99)
    assert_same_law(actions, dict.fromkeys(range(3), 1 / 3))
    np.testing.assert_allclose(logp, np.log(1 / 3), rtol=1e-6)
    actions, logp = act(timestep=100)
    assert_same_law(actions, dict(enumerate(PROBABILITIES)))
    np.testing.assert_allclose(logp, np.log(PROBABILITIES)[actions], rtol=1e-5)


def test_the_start_of_a_box_is_uniform_between_its_bounds(actor):
    space = Box(np.array([-1, 2], np.float32), np.array([1, 6], np.float32))
    act = actor(starting_random(1), space, np.zeros((ROWS, 4)))
    actions, logp = act(timestep=0)
    assert actions.shape == (ROWS, 2)
    assert all(row in space for row in actions)
    np.testing.assert_allclose(actions.mean(axis=0), [0, 4], atol=0.06)
    # The density is 1/2 · 1/4.
    np.testing.assert_allclose(logp, np.log(1 / 8), rtol=1e-6)
    actions, _ = act(timestep=1)
    np.testing.assert_allclose(actions.std(axis=0), [1, 1], rtol=0.04)


@pytest.mark.parametrize("timesteps", [-1, 1.5, True])
def test_a_start_of_no_whole_length_is_refused(actor, timesteps):
    with pytest.raises(ValueError, match="`random_timesteps`: expected a whole number >= 0"):
        actor(starting_random(timesteps), Discrete(3), LOGITS)
