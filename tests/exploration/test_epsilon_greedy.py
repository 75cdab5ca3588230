"""Epsilon-greedy: its schedule, its frequencies and its log-probabilities."""

import functools

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from scipy import stats

from tfpolicy.distributions import distribution_for
from tfpolicy.exploration import EpsilonGreedy
from tfpolicy.ops.masking import MASKED_LOGIT

ROWS = 20000


def constantly(epsilon):
    return functools.partial(EpsilonGreedy, epsilon_schedule=epsilon)


def make(space=None, **options):
    space = space or Discrete(3)
    return EpsilonGreedy(space, distribution_for(space), **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # 1 -> 0.02 in 10000 steps; half-way at 0.51.
        ({}, {0: 1.0, 5000: 0.51, 10000: 0.02, 10**9: 0.02}),
        (
            {"warmup_timesteps": 100, "epsilon_timesteps": 200, "final_epsilon": 0.0},
            {0: 1.0, 100: 1.0, 150: 0.75, 299: 0.005, 300: 0.0, 301: 0.0},
        ),
        ({"initial_epsilon": 0.1, "final_epsilon": 0.5}, {0: 0.1, 2500: 0.2, 10000: 0.5}),
        ({"epsilon_schedule": [[0, 0.4], [10, 0.2]]}, {0: 0.4, 5: 0.3, 10: 0.2, 99: 0.2}),
        ({"epsilon_schedule": 0.3, "initial_epsilon": 1.0}, {0: 0.3, 10**6: 0.3}),
    ],
)
def test_epsilon_at_exact_timesteps(options, expected):
    exploration = make(**options)
    found = {t: exploration.scalars(t)["epsilon"] for t in expected}
    assert found == pytest.approx(expected, abs=1e-12)


def test_state_tells_epsilon_and_the_timestep():
    assert make().get_state(10000) == {"timestep": 10000, "epsilon": 0.02}


def test_frequencies_and_log_probs_of_a_choice(actor, assert_same_law):
    # The greedy action is 2 (start 1): 0.7 + 0.3/3; the others have 0.3/3 each.
    logits = np.tile([0.0, 3.0, 1.0], (ROWS, 1))
    actions, logp = actor(constantly(0.3), Discrete(3, start=1), logits)()
    law = {1: 0.1, 2: 0.8, 3: 0.1}
    assert actions.dtype == np.int64
    assert_same_law(actions, law)
    np.testing.assert_allclose(np.exp(logp), [law[action] for action in actions], rtol=1e-5)


def test_masked_choices_are_never_taken(actor, assert_same_law):  # e15
    # Greedy is 3; uniform over 0, 2, 3.
    logits = np.tile([0.0, MASKED_LOGIT, 0.1, 0.2, -np.inf], (ROWS, 1))
    actions, logp = actor(constantly(0.6), Discrete(5), logits)()
    law = {0: 0.2, 1: 0.0, 2: 0.2, 3: 0.6, 4: 0.0}
    assert_same_law(actions, law)
    np.testing.assert_allclose(np.exp(logp), [law[action] for action in actions], rtol=1e-5)


def test_masks_differ_by_row(actor):
    logits = np.full((ROWS, 4), MASKED_LOGIT)
    allowed = np.arange(ROWS) % 4
    logits[np.arange(ROWS), allowed] = 1.0
    actions, logp = actor(constantly(1.0), Discrete(4), logits)()
    np.testing.assert_array_equal(actions, allowed)
    np.testing.assert_allclose(logp, 0, atol=1e-6)


def test_several_choices_are_greedy_or_uniform_as_a_whole(actor):
    # Greedy is (1, 0), and there are 2 · 3 actions: 0.5 + 0.5/6, and 0.5/6 each.
    logits = np.tile([0, 5, 5, 0, 0], (ROWS, 1))
    actions, logp = actor(constantly(0.5), MultiDiscrete([2, 3]), logits)()
    keys, counts = np.unique(actions, axis=0, return_counts=True)
    assert len(keys) == 6
    for key, share in zip(keys, counts / ROWS, strict=True):
        probability = 0.5 * (tuple(key) == (1, 0)) + 0.5 / 6
        assert abs(share - probability) < 5 * np.sqrt(probability / ROWS)
        np.testing.assert_allclose(
            logp[(actions == key).all(axis=1)], np.log(probability), rtol=1e-5
        )


@pytest.mark.parametrize(
    ("space", "inputs", "greedy"),
    [
        (MultiBinary([2, 2]), [-1, 1, 1, -1], [[0, 1], [1, 0]]),
        (Box(-1, 1, (2,), np.int8), [0, 1, 0, 2, 0, 0], [0, -1]),
    ],
    ids=str,
)
def test_other_choices_mix_too(actor, space, inputs, greedy):
    actions, logp = actor(constantly(0.5), space, np.tile(inputs, (ROWS, 1)))()
    assert actions.dtype == space.dtype
    is_greedy = (actions == np.array(greedy)).reshape(ROWS, -1).all(axis=1)
    actions_in_all = 16 if isinstance(space, MultiBinary) else 9
    probability = 0.5 + 0.5 / actions_in_all
    assert abs(is_greedy.mean() - probability) < 5 * np.sqrt(0.25 / ROWS)
    expected = np.where(is_greedy, probability, 0.5 / actions_in_all)
    np.testing.assert_allclose(np.exp(logp), expected, rtol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_the_ends_are_greedy_and_uniform(actor, assert_same_law, epsilon):
    logits = np.tile([0.0, 1.0], (ROWS, 1))
    act = actor(constantly(epsilon), Discrete(2), logits)
    actions, logp = act()
    assert_same_law(actions, {0: epsilon / 2, 1: 1 - epsilon / 2})
    np.testing.assert_allclose(logp, np.log(0.5) if epsilon else 0, atol=1e-6)


def test_log_probs_of_very_many_choices_do_not_underflow(actor):
    space = MultiDiscrete([10] * 200)
    act = actor(constantly(0.5), space, np.zeros((50, 2000)))
    actions, logp = act()
    is_greedy = (actions == act.mode()).all(axis=1)
    assert 0 < is_greedy.sum() < 50
    expected = np.where(is_greedy, np.log(0.5), np.log(0.5) - 200 * np.log(10))
    np.testing.assert_allclose(logp, expected, rtol=1e-5)


def test_whether_and_what_to_explore_are_independent(actor):
    # With ε = 1/2 and greedy action 0: P(1) = P(2) = 1/6 however the coin came out.
    actions, _ = actor(constantly(0.5), Discrete(3), np.tile([1.0, 0, 0], (ROWS, 1)))()
    shares = np.bincount(actions, minlength=3) / ROWS
    np.testing.assert_allclose(shares, [2 / 3, 1 / 6, 1 / 6], atol=5 * np.sqrt(0.25 / ROWS))


def test_the_seed_alone_decides_the_draw(actor):
    act = actor(constantly(1.0), Discrete(9), np.zeros((100, 9)))
    np.testing.assert_array_equal(act(seed=(1, 2))[0], act(timestep=5, seed=(1, 2))[0])
    assert (act(seed=(1, 2))[0] != act(seed=(2, 2))[0]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial_epsilon": 1.5}, r"`initial_epsilon`: expected values in \[0, 1\], got 1.5"),
        ({"final_epsilon": -0.1}, r"`final_epsilon`: expected values in \[0, 1\]"),
        ({"final_epsilon": float("nan")}, r"`final_epsilon`"),
        ({"epsilon_timesteps": 0}, "`epsilon_timesteps`: expected a whole number >= 1, got 0"),
        ({"warmup_timesteps": -1}, "`warmup_timesteps`: expected a whole number >= 0"),
        ({"space": Box(-1, 1, (2,))}, "EpsilonGreedy: .* got DiagGaussian over Box"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_a_schedule_that_leaves_the_range_is_refused_when_it_does():
    exploration = make(epsilon_schedule=[[0, 1.0], [10, 3.0]])
    assert exploration.scalars(0) == {"epsilon": 1.0}
    with pytest.raises(ValueError, match=r"`epsilon_schedule`: .* got 3.0"):
        exploration.scalars(10)


NESTED = Tuple([Discrete(3), Box(-1, 1, (1,)), MultiDiscrete([2, 2])])


def test_every_leaf_is_greedy_or_uniform_for_itself(actor):
    # Greedy are 1 and (0, 1): 0.6 + 0.4/3 and 0.6 + 0.4/4, independently; the box is N(0.5, 1).
    inputs = np.tile([0.0, 2.0, 1.0, 0.5, 0.0, 3.0, 0.0, 0.0, 3.0], (ROWS, 1))
    (choice, box, pair), logp = actor(constantly(0.4), NESTED, inputs)()
    first, second = choice == 1, (pair == [0, 1]).all(axis=1)
    for share, probability in [
        (first.mean(), 0.6 + 0.4 / 3),
        (second.mean(), 0.6 + 0.4 / 4),
        ((first & second).mean(), (0.6 + 0.4 / 3) * (0.6 + 0.4 / 4)),
    ]:
        assert abs(share - probability) < 5 * np.sqrt(0.25 / ROWS)
    expected = np.log(np.where(first, 0.6 + 0.4 / 3, 0.4 / 3))
    expected += np.log(np.where(second, 0.6 + 0.4 / 4, 0.4 / 4))
    expected += stats.norm(0.5, 1).logpdf(box[:, 0])
    np.testing.assert_allclose(logp, expected, rtol=1e-4, atol=1e-4)


def test_masked_leaves_of_a_nested_action_are_never_taken(actor):  # e15
    space = Dict(a=Discrete(3), b=Discrete(2))
    inputs = np.tile([0.0, MASKED_LOGIT, 1.0, MASKED_LOGIT, 0.0], (ROWS, 1))
    actions, logp = actor(constantly(1.0), space, inputs)()
    assert set(actions["a"]) == {0, 2} and set(actions["b"]) == {1}
    np.testing.assert_allclose(logp, np.log(0.5), rtol=1e-5)


def test_a_nested_action_without_choices_is_refused():
    with pytest.raises(ValueError, match="EpsilonGreedy: .* got DiagGaussian, DiagGaussian over"):
        make(Tuple([Box(-1, 1, (2,)), Box(-1, 1, (1,))]))
