import dataclasses

import numpy as np
import pytest

from tfpolicy.schedules import Constant, Exponential, Linear, Piecewise, make_schedule


def values(schedule, *times):
    return [schedule.value(t) for t in times]


def test_constant_is_the_same_at_all_times():
    assert values(Constant(0.3), 0, 10, 10**9) == [0.3] * 3


def test_piecewise_interpolates_and_is_flat_outside():
    schedule = Piecewise(((10, 1.0), (20, 3.0), (40, 2.0)))
    assert values(schedule, 0, 10, 15, 20, 30, 40, 10**9) == [1.0, 1.0, 2.0, 3.0, 2.5, 2.0, 2.0]


def test_linear_reaches_both_ends_exactly_and_stays():
    schedule = Linear(schedule_timesteps=100, final_p=0.02, initial_p=1.0)
    assert values(schedule, 0, 50, 100, 101) == [1.0, pytest.approx(0.51), 0.02, 0.02]


def test_exponential_decays_by_the_rate_every_schedule_timesteps():
    schedule = Exponential(schedule_timesteps=10, initial_p=2.0, decay_rate=0.25)
    assert values(schedule, 0, 5, 10, 20) == pytest.approx([2.0, 1.0, 0.5, 0.125])


def test_linear_equals_its_piecewise_form():
    linear = Linear(schedule_timesteps=70, final_p=-0.5, initial_p=0.25)
    piecewise = Piecewise(((0, 0.25), (70, -0.5)))
    times = range(0, 100, 3)
    np.testing.assert_allclose(values(linear, *times), values(piecewise, *times), atol=1e-12)


@pytest.mark.parametrize(
    ("schedule", "lowest"),
    [
        (Constant(-2), -2.0),
        (Piecewise(((0, 1), (10, -3), (20, 2))), -3.0),
        (Linear(10, final_p=0.5, initial_p=-1), -1.0),
        (Linear(10, final_p=0, initial_p=2), 0.0),
        (Exponential(10, 2.0, decay_rate=0.5), 0.0),
        (Exponential(10, 2.0, decay_rate=1.0), 2.0),
        (Exponential(10, 2.0, decay_rate=3.0), 2.0),
        (Exponential(10, -2.0, decay_rate=0.5), -2.0),
        (Exponential(10, -2.0, decay_rate=3.0), -np.inf),
    ],
    ids=str,
)
def test_the_lowest_value_is_that_of_all_times(schedule, lowest):
    assert schedule.lowest() == lowest
    least = min(values(schedule, *range(1000)))
    assert lowest <= least <= max(lowest, -1e9) + 1e-9


@pytest.mark.parametrize(
    "schedule",
    [Constant(1), Piecewise(((0, 1), (10, 2))), Linear(10, 0, 1), Exponential(10, 1)],
)
def test_values_are_plain_floats_also_for_numpy_timesteps(schedule):
    assert type(schedule.value(0)) is float
    assert type(schedule.value(np.int64(5))) is float


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (0.5, Constant(0.5)),
        (1, Constant(1.0)),
        (np.float32(0.5), Constant(0.5)),
        ([[0, 1.0], [1e6, 0.1]], Piecewise(((0, 1.0), (1_000_000, 0.1)))),
        (((0, 1.0), (5, 0.1)), Piecewise(((0, 1.0), (5, 0.1)))),
        ({"type": "constant", "level": 2.0}, Constant(2.0)),
        ({"type": "piecewise", "endpoints": [[0, 1.0]]}, Piecewise(((0, 1.0),))),
        ({"type": "linear", "schedule_timesteps": 5, "final_p": 0.1}, Linear(5, 0.1)),
        ({"type": "LinearSchedule", "schedule_timesteps": 5, "final_p": 0.1}, Linear(5, 0.1)),
        ({"type": "exponential", "schedule_timesteps": 5, "initial_p": 1.0}, Exponential(5, 1.0)),
        (Constant(3.0), Constant(3.0)),
    ],
)
def test_make_schedule_reads(spec, expected):
    assert make_schedule(spec) == expected


def test_schedules_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Constant(1.0).level = 2.0


@pytest.mark.parametrize("spec", [None, "0.5", True, {1.0}])
def test_make_schedule_refuses_what_is_no_schedule(spec):
    with pytest.raises(TypeError, match="A schedule is a number"):
        make_schedule(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ([], "at least one"),
        ([0, 1.0], r"expected \(t, value\) pairs, got 0"),
        ([[0, 1.0, 2.0]], r"expected \(t, value\) pairs"),
        (["01"], r"expected \(t, value\) pairs"),
        ([[0, 1.0], [0, 2.0]], r"increasing timesteps from 0, got \[0, 0\]"),
        ([[5, 1.0], [2, 2.0]], "increasing timesteps"),
        ([[-1, 1.0]], "increasing timesteps from 0"),
        ([[0.5, 1.0]], "whole timesteps, got 0.5"),
        ([[0, "a"]], "expected a number, got 'a'"),
        ([[0, float("nan")]], "expected a finite number, got nan"),
        (float("inf"), "expected a finite number, got inf"),
        ({"level": 1.0}, "Unknown schedule type None"),
        ({"type": "linaer"}, "did you mean 'linear'"),
        ({"type": "linear", "final_p": 1.0, "schedule_timestep": 5}, "did you mean 'schedule_time"),
        ({"type": "linear", "final_p": 1.0}, r"needs \['schedule_timesteps'\], got \['final_p'\]"),
        ({"type": "linear", "final_p": 1.0, "schedule_timesteps": 0}, "must be positive, got 0"),
        ({"type": "exponential", "initial_p": 1.0, "schedule_timesteps": -1}, "must be positive"),
        (
            {"type": "exponential", "initial_p": 1.0, "schedule_timesteps": 1, "decay_rate": 0},
            "`decay_rate` must be positive, got 0",
        ),
    ],
)
def test_make_schedule_refuses(spec, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(spec)
