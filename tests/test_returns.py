"""Returns against slow references in the notation of the papers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpolicy.returns import discounted_returns, gae, n_step_targets, next_values_from

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}

# Two episodes in one fragment: three steps to a termination, then three to a time limit.
REWARDS = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
VALUES = np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
NEXT_VALUES = np.array([20.0, 30.0, 99.0, 50.0, 60.0, 70.0])
TERMINATEDS = np.array([False, False, True, False, False, False])
TRUNCATEDS = np.array([False, False, False, False, False, True])


def slow_gae(r, v, v_next, terminated, truncated, gamma, lambda_):
    """Equation 16 as a double loop: Â_t = Σ_l (γλ)^l δ_{t+l}, stopped by the end of the episode."""
    advantages = np.zeros(len(r))
    for t in range(len(r)):
        for l in range(len(r) - t):  # noqa: E741 - the paper's letter
            bootstrap = 0.0 if terminated[t + l] else v_next[t + l]
            delta = r[t + l] + gamma * bootstrap - v[t + l]
            advantages[t] += (gamma * lambda_) ** l * delta
            if terminated[t + l] or truncated[t + l]:
                break
    return advantages


def slow_n_step(r, v_next, terminated, truncated, gamma, n):
    """G_t = Σ_k γ^k r_{t+k} + γ^m V(s'), stopped after n rewards or by the end of the episode."""
    targets = np.zeros(len(r))
    for t in range(len(r)):
        for k in range(min(n, len(r) - t)):
            targets[t] += gamma**k * r[t + k]
            ended = terminated[t + k] or truncated[t + k]
            if ended or k + 1 == min(n, len(r) - t):
                targets[t] += 0.0 if terminated[t + k] else gamma ** (k + 1) * v_next[t + k]
                break
    return targets


@st.composite
def fragments(draw, columns=None):
    """Draws rewards, values, next values, terminateds and truncateds of `[T]` or `[T, columns]`."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length = draw(st.integers(1, 12))
    shape = (length,) if columns is None else (length, columns)
    p_end = draw(st.sampled_from([0.0, 0.2, 0.7]))
    floats = [rng.normal(size=shape) for _ in range(3)]
    return (*floats, rng.random(shape) < p_end, rng.random(shape) < p_end)


fractions = st.sampled_from([0.0, 0.3, 0.95, 1.0])


def test_two_episodes_by_hand():
    # Case i7. With γ = λ = 1/2:
    # δ = [1 + 10 - 10, 2 + 15 - 20, 3 + 0 - 30, 4 + 25 - 40, 5 + 30 - 50, 6 + 35 - 60]
    #   = [1, -3, -27, -11, -15, -19], and Â_t = δ_t + Â_{t+1} / 4 within an episode:
    # Â_2 = -27, Â_1 = -3 - 6.75 = -9.75, Â_0 = 1 - 2.4375 = -1.4375;
    # Â_5 = -19, Â_4 = -15 - 4.75 = -19.75, Â_3 = -11 - 4.9375 = -15.9375.
    advantages, targets = gae(
        REWARDS, VALUES, NEXT_VALUES, TERMINATEDS, TRUNCATEDS, gamma=0.5, lambda_=0.5
    )
    np.testing.assert_array_equal(
        advantages, np.float32([-1.4375, -9.75, -27.0, -15.9375, -19.75, -19.0])
    )
    np.testing.assert_array_equal(targets, np.float32([8.5625, 10.25, 3.0, 24.0625, 30.25, 41.0]))


def test_discounted_returns_by_hand():
    # γ = 1/2: 3; 2 + 1.5; 1 + 1.75 | 6; 5 + 3; 4 + 4.
    without_values = discounted_returns(REWARDS, TERMINATEDS, TRUNCATEDS, gamma=0.5)
    np.testing.assert_array_equal(without_values, np.float32([2.75, 3.5, 3.0, 8.0, 8.0, 6.0]))
    # The time limit bootstraps from 70: 6 + 35 = 41; 5 + 20.5; 4 + 12.75.
    with_values = discounted_returns(REWARDS, TERMINATEDS, TRUNCATEDS, 0.5, NEXT_VALUES)
    np.testing.assert_array_equal(with_values, np.float32([2.75, 3.5, 3.0, 16.75, 25.5, 41.0]))


def test_n_step_targets_by_hand():
    # γ = 1/2, n = 2: 1 + 1 + 30/4; 2 + 1.5; 3 | 4 + 2.5 + 60/4; 5 + 3 + 70/4; 6 + 35.
    targets = n_step_targets(REWARDS, NEXT_VALUES, TERMINATEDS, TRUNCATEDS, gamma=0.5, n=2)
    np.testing.assert_array_equal(targets, np.float32([9.5, 3.5, 3.0, 21.5, 25.5, 41.0]))


@settings(max_examples=60, deadline=None)
@given(fragment=fragments(), gamma=fractions, lambda_=fractions)
def test_gae_equals_the_sum_of_the_paper(fragment, gamma, lambda_):
    r, v, v_next, terminated, truncated = fragment
    advantages, targets = gae(r, v, v_next, terminated, truncated, gamma, lambda_)
    expected = slow_gae(r, v, v_next, terminated, truncated, gamma, lambda_)
    np.testing.assert_allclose(advantages, expected, **TOLERANCE)
    np.testing.assert_allclose(targets, expected + v, **TOLERANCE)


@settings(max_examples=60, deadline=None)
@given(fragment=fragments(), gamma=fractions, n=st.integers(1, 15))
def test_n_step_targets_equal_the_definition(fragment, gamma, n):
    r, _, v_next, terminated, truncated = fragment
    np.testing.assert_allclose(
        n_step_targets(r, v_next, terminated, truncated, gamma, n),
        slow_n_step(r, v_next, terminated, truncated, gamma, n),
        **TOLERANCE,
    )


@settings(max_examples=60, deadline=None)
@given(fragment=fragments(), gamma=fractions)
def test_lambda_one_gives_the_return_minus_the_value(fragment, gamma):
    r, v, final_values, terminated, truncated = fragment
    # The sum of TD errors telescopes where V(s'_t) is V(s_{t+1}).
    v_next = next_values_from(v, final_values[-1], truncated, final_values)
    advantages, targets = gae(r, v, v_next, terminated, truncated, gamma, lambda_=1.0)
    returns = discounted_returns(r, terminated, truncated, gamma, v_next)
    np.testing.assert_allclose(advantages, returns - v, **TOLERANCE)
    np.testing.assert_allclose(targets, returns, **TOLERANCE)


@settings(max_examples=60, deadline=None)
@given(fragment=fragments(), gamma=fractions)
def test_lambda_zero_gives_the_td_error(fragment, gamma):
    r, v, v_next, terminated, truncated = fragment
    advantages, targets = gae(r, v, v_next, terminated, truncated, gamma, lambda_=0.0)
    np.testing.assert_allclose(
        advantages, r + gamma * np.where(terminated, 0.0, v_next) - v, **TOLERANCE
    )
    one_step = n_step_targets(r, v_next, terminated, truncated, gamma, n=1)
    np.testing.assert_allclose(targets, one_step, **TOLERANCE)


@settings(max_examples=30, deadline=None)
@given(fragment=fragments(), gamma=fractions)
def test_n_step_targets_beyond_the_fragment_are_its_returns(fragment, gamma):
    r, _, v_next, terminated, truncated = fragment
    np.testing.assert_allclose(
        n_step_targets(r, v_next, terminated, truncated, gamma, n=len(r) + 3),
        discounted_returns(r, terminated, truncated, gamma, v_next),
        **TOLERANCE,
    )


@settings(max_examples=30, deadline=None)
@given(fragment=fragments(columns=3), gamma=fractions, lambda_=fractions)
def test_fragments_side_by_side_equal_one_at_a_time(fragment, gamma, lambda_):
    r, v, v_next, terminated, truncated = fragment
    together = (
        *gae(r, v, v_next, terminated, truncated, gamma, lambda_),
        discounted_returns(r, terminated, truncated, gamma, v_next),
        n_step_targets(r, v_next, terminated, truncated, gamma, 3),
        next_values_from(v, v_next[-1], truncated, v_next),
    )
    for i in range(3):
        r_i, v_i, v_next_i, terminated_i, truncated_i = (column[:, i] for column in fragment)
        alone = (
            *gae(r_i, v_i, v_next_i, terminated_i, truncated_i, gamma, lambda_),
            discounted_returns(r_i, terminated_i, truncated_i, gamma, v_next_i),
            n_step_targets(r_i, v_next_i, terminated_i, truncated_i, gamma, 3),
            next_values_from(v_i, v_next_i[-1], truncated_i, v_next_i),
        )
        for of_all, of_one in zip(together, alone, strict=True):
            np.testing.assert_array_equal(of_all[:, i], of_one)


def test_two_fragments_of_one_episode_equal_the_whole_at_lambda_one():
    # Case i10: the end of a fragment is no end of the episode.
    rng = np.random.default_rng(0)
    r, v = rng.normal(size=(2, 8))
    none, terminated = np.zeros(8, bool), np.arange(8) == 7
    v_next = next_values_from(v, 0.0)
    whole = discounted_returns(r, terminated, none, 0.9, v_next)
    second = discounted_returns(r[5:], terminated[5:], none[5:], 0.9, v_next[5:])
    v_next_of_first = np.append(v_next[:4], second[0])
    first = discounted_returns(r[:5], none[:5], none[:5], 0.9, v_next_of_first)
    np.testing.assert_allclose(np.concatenate([first, second]), whole, **TOLERANCE)


def test_an_endless_episode_is_worth_the_geometric_series():
    # With r = 1 and V = 1 / (1 - γ) everywhere nothing is better or worse than expected.
    ones, no = np.ones(50), np.zeros(50, bool)
    advantages, targets = gae(ones, 10 * ones, 10 * ones, no, no, gamma=0.9, lambda_=0.7)
    np.testing.assert_allclose(advantages, 0.0, atol=1e-6)
    np.testing.assert_allclose(targets, 10.0, rtol=1e-6)


def test_truncated_fragment_bootstraps_from_the_value_of_the_final_observation():
    # Cases i6 and i9: V(s'_t) = 7, neither V(s_t) = 2 nor zero.
    advantages, _ = gae([1.0], [2.0], [7.0], [False], [True], gamma=0.5, lambda_=0.9)
    np.testing.assert_allclose(advantages, [1.0 + 3.5 - 2.0])


@pytest.mark.parametrize("end", ["terminateds", "truncateds"])
def test_nothing_leaks_over_an_end(end):
    # Case i6: whatever happens in the second episode, the first one gets the same advantages.
    ends = {"terminateds": np.zeros(6, bool), "truncateds": np.zeros(6, bool)}
    ends[end][2] = True
    changed = np.where(np.arange(6) > 2, 1000.0, REWARDS)
    first, _ = gae(REWARDS, VALUES, NEXT_VALUES, **ends, gamma=0.9, lambda_=0.9)
    second, _ = gae(changed, VALUES, NEXT_VALUES, **ends, gamma=0.9, lambda_=0.9)
    np.testing.assert_array_equal(first[:3], second[:3])
    assert not np.array_equal(first[3:], second[3:])


def test_termination_wins_over_truncation_at_the_same_step():
    advantages, targets = gae([1.0], [0.0], [7.0], [True], [True], gamma=1.0, lambda_=1.0)
    np.testing.assert_array_equal(advantages, [1.0])
    np.testing.assert_array_equal(targets, [1.0])
    np.testing.assert_array_equal(discounted_returns([1.0], [True], [True], 1.0, [7.0]), [1.0])
    np.testing.assert_array_equal(n_step_targets([1.0], [7.0], [True], [True], 1.0, 5), [1.0])


def test_value_after_a_termination_is_never_read():
    nan = np.where(TERMINATEDS, np.nan, NEXT_VALUES)
    for result in (
        *gae(REWARDS, VALUES, nan, TERMINATEDS, TRUNCATEDS, 0.9, 0.9),
        discounted_returns(REWARDS, TERMINATEDS, TRUNCATEDS, 0.9, nan),
        n_step_targets(REWARDS, nan, TERMINATEDS, TRUNCATEDS, 0.9, 3),
    ):
        assert np.isfinite(result).all()


def test_sums_run_in_float64_and_come_out_in_float32():
    # In float32, 2**24 + 1 is 2**24: the ones would be lost.
    rewards = np.ones(101, np.float32)
    rewards[-1] = 2**24
    no = np.zeros(101, bool)
    returns = discounted_returns(rewards, no, no, gamma=1.0)
    assert returns.dtype == np.float32
    assert returns[0] == 2**24 + 100


def test_arguments_are_left_alone():
    arguments = [REWARDS, VALUES, NEXT_VALUES, TERMINATEDS, TRUNCATEDS]
    before = [argument.copy() for argument in arguments]
    gae(*arguments, gamma=0.9, lambda_=0.9)
    for argument, copied in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(argument, copied)


def test_next_values_are_the_values_one_step_later():
    result = next_values_from([1.0, 2.0, 3.0], bootstrap=9.0)
    np.testing.assert_array_equal(result, np.float32([2.0, 3.0, 9.0]))
    assert result.dtype == np.float32


def test_next_values_at_a_truncation_are_the_final_ones():
    result = next_values_from(
        [1.0, 2.0, 3.0],
        bootstrap=9.0,
        truncateds=[False, True, False],
        final_values=[np.nan, 7.0, np.nan],
    )
    np.testing.assert_array_equal(result, np.float32([2.0, 7.0, 9.0]))


def test_no_steps_give_no_returns():
    empty, no = np.zeros(0), np.zeros(0, bool)
    assert discounted_returns(empty, no, no, 0.9).shape == (0,)
    assert gae(empty, empty, empty, no, no, 0.9, 0.9)[0].shape == (0,)
    assert n_step_targets(empty, empty, no, no, 0.9, 3).shape == (0,)
    assert next_values_from(empty, 1.0).shape == (0,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 1.5}, "`gamma` must be in"),
        ({"lambda_": -0.1}, "`lambda_` must be in"),
        ({"rewards": 1.0}, "`rewards`: expected shape"),
        ({"rewards": np.zeros((2, 2, 2))}, "`rewards`: expected shape"),
        ({"values": np.zeros((6, 1))}, r"`values`: expected shape \(6,\), got \(6, 1\)"),
        ({"next_values": np.zeros(5)}, "`next_values`: expected shape"),
        ({"terminateds": False}, "`terminateds`: expected shape"),
        ({"truncateds": [True]}, "`truncateds`: expected shape"),
    ],
)
def test_gae_refuses(change, message):
    arguments = {
        "rewards": REWARDS,
        "values": VALUES,
        "next_values": NEXT_VALUES,
        "terminateds": TERMINATEDS,
        "truncateds": TRUNCATEDS,
        "gamma": 0.9,
        "lambda_": 0.9,
    }
    with pytest.raises(ValueError, match=message):
        gae(**{**arguments, **change})


def test_n_step_targets_refuse_zero_steps():
    with pytest.raises(ValueError, match="`n` must be positive, got 0"):
        n_step_targets(REWARDS, NEXT_VALUES, TERMINATEDS, TRUNCATEDS, 0.9, n=0)


def test_next_values_refuse_truncations_without_final_values():
    with pytest.raises(ValueError, match="go together"):
        next_values_from([1.0, 2.0], 3.0, truncateds=[True, False])
    with pytest.raises(ValueError, match="`bootstrap`: expected shape"):
        next_values_from([1.0, 2.0], bootstrap=[3.0])
