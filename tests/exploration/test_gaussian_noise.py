"""Noise around the mode: its schedule, its size and its log-probabilities."""

import functools

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from scipy import stats

from tfpolicy.distributions import distribution_for
from tfpolicy.exploration import GaussianNoise

ROWS = 10000
BOX = Box(-1, 1, (2,))
MODE = np.array([0.25, -0.9], np.float32)
INPUTS = np.tile(MODE, (ROWS, 1))


def noise(actor, **options):
    return actor(functools.partial(GaussianNoise, **options), BOX, INPUTS, "deterministic")


def test_scale_at_exact_timesteps():
    exploration = GaussianNoise(BOX, distribution_for(BOX), 100, 0.1, 2.0, 0.5, 300)
    expected = {0: 2.0, 100: 2.0, 250: 1.25, 400: 0.5, 10**9: 0.5}
    assert {t: exploration.scalars(t)["scale"] for t in expected} == pytest.approx(expected)
    assert [exploration.scalars(t)["starting"] for t in (0, 99, 100)] == [1, 1, 0]


def test_defaults_need_no_random_start():
    exploration = GaussianNoise(BOX, distribution_for(BOX))
    assert exploration.scalars(5000) == pytest.approx({"scale": 0.51})


def test_noise_is_normal_around_the_mode_and_not_clipped(actor):  # e6, e7
    act = noise(actor, stddev=0.5, initial_scale=0.4)
    actions, logp = act(timestep=0)
    assert actions.dtype == np.float32
    law = stats.norm(MODE.astype(np.float64), 0.2)
    for index in range(2):
        column = (actions[:, index] - MODE[index]) / 0.2
        assert stats.kstest(column, stats.norm.cdf).pvalue > 1e-4
    assert (actions < -1).any()
    np.testing.assert_allclose(logp, law.logpdf(actions).sum(axis=1), rtol=1e-4, atol=1e-4)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 5 / np.sqrt(ROWS)


def test_the_scale_of_the_timestep_is_used(actor):
    act = noise(actor, stddev=1.0, initial_scale=1.0, final_scale=0.01, scale_timesteps=10)
    spread = {t: (act(timestep=t)[0] - MODE).std() for t in (0, 5, 10)}
    assert spread == pytest.approx({0: 1.0, 5: 0.505, 10: 0.01}, rel=0.05)


def test_without_noise_the_mode_is_certain(actor):
    actions, logp = noise(actor, final_scale=0.0, scale_timesteps=1)(timestep=1)
    np.testing.assert_array_equal(actions, INPUTS)
    np.testing.assert_array_equal(logp, np.zeros(ROWS))


def test_the_start_is_uniform(actor):
    actions, logp = noise(actor, random_timesteps=3)(timestep=2)
    assert stats.kstest(actions.ravel(), stats.uniform(-1, 2).cdf).pvalue > 1e-4
    np.testing.assert_allclose(logp, -np.log(4), rtol=1e-6)


def test_noise_takes_the_shape_of_the_space(actor):
    space = Box(-1, 1, (2, 3), np.float64)
    act = actor(GaussianNoise, space, np.zeros((5, 12)))
    actions, logp = act()
    assert actions.shape == (5, 2, 3)
    expected = stats.norm(0, 0.1).logpdf(actions).sum(axis=(1, 2))
    np.testing.assert_allclose(logp, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stddev": 0.0}, "`stddev`: expected a positive number, got 0.0"),
        ({"initial_scale": -1.0}, "`initial_scale`: expected a number >= 0, got -1.0"),
        ({"final_scale": float("inf")}, "`final_scale`: expected a number >= 0, got inf"),
        ({"scale_timesteps": 0}, "`scale_timesteps`: expected a whole number >= 1, got 0"),
        ({"random_timesteps": -2}, "`random_timesteps`: expected a whole number >= 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GaussianNoise(BOX, distribution_for(BOX), **options)


@pytest.mark.parametrize("space", [Discrete(3), Box(-1, 1, (2,), np.int8)], ids=str)
def test_choices_have_no_noise(space):
    with pytest.raises(ValueError, match="GaussianNoise: expected a float Box"):
        GaussianNoise(space, distribution_for(space))


def test_in_a_nested_space_all_float_boxes_get_noise_and_the_rest_is_sampled(actor):
    space = Dict(a=Discrete(2), b=BOX, c=Box(-1, 1, (1,)))
    # Logits (0, log 3); means 0.25, -0.9 and 0.5 with a log σ that does not matter.
    row = [0.0, np.log(3.0), 0.25, -0.9, 0.0, 0.0, 0.5, 0.0]
    make = functools.partial(GaussianNoise, stddev=0.2)
    actions, logp = actor(make, space, np.tile(row, (ROWS, 1)))()
    assert abs(actions["a"].mean() - 0.75) < 5 * np.sqrt(0.25 / ROWS)
    expected = np.log(np.where(actions["a"] == 1, 0.75, 0.25))
    expected += stats.norm(MODE, 0.2).logpdf(actions["b"]).sum(axis=1)
    expected += stats.norm(0.5, 0.2).logpdf(actions["c"][:, 0])
    np.testing.assert_allclose(logp, expected, rtol=1e-4, atol=1e-4)
    noise = np.concatenate([actions["b"] - MODE, actions["c"] - 0.5], axis=1)
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 5 / np.sqrt(ROWS)


def test_a_simplex_takes_no_noise():
    space = Box(0, 1, (3,))
    with pytest.raises(ValueError, match="GaussianNoise: expected a float Box"):
        GaussianNoise(space, distribution_for(space, "dirichlet"))
