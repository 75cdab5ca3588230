"""Batches enter the moments of an observation filter: which rows, and how they are counted."""

import gymnasium as gym
import numpy as np
import pytest
from small_policies import Recurrent

from tfpolicy.config import ModelConfig
from tfpolicy.graph.filter_statistics import FilterStatistics
from tfpolicy.graph.session import GraphSession
from tfpolicy.models.filtered import Filtered, leaves_to_filter
from tfpolicy.sample_batch import SampleBatch

S = gym.spaces
OBS = S.Dict(
    a=S.Box(-np.inf, np.inf, (2,)), b=S.Box(0, 50, (), np.int64), kind=S.Discrete(9, start=1)
)
NAMES = ["count", "obs_a/mean", "obs_a/variance", "obs_b/mean", "obs_b/variance"]


class Machine:
    """Statistics of a filter in a session of their own."""

    def __init__(self, space):
        self.session = GraphSession()
        with self.session.building():
            inner = Recurrent(space, S.Discrete(2), 2, ModelConfig(fcnet_hiddens=(2,)), 0)
            model = Filtered(inner, leaves_to_filter(space), 10.0)
        self.session.initialize(model.variables)
        self.statistics = FilterStatistics(self.session, model)
        self.session.finalize()
        self._variables = model.variables

    def enter(self, batch):
        update = self.statistics.update(batch)
        self.statistics.assign(update)
        return update

    @property
    def moments(self):
        values = self.session.read(self._variables)
        return {name.removeprefix("observation_filter/"): v for name, v in values.items()}


@pytest.fixture
def machine():
    made = Machine(OBS)
    yield made
    made.session.close()


def batch(rows, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "obs": {
            "a": rng.normal([3, -50], [2, 7], (rows, 2)).astype(np.float32),
            "b": rng.integers(0, 50, rows),
            "kind": rng.integers(1, 10, rows),
        }
    }


def assert_moments(found, batches, rows=slice(None)):
    a, b = (np.concatenate([each["obs"][k] for each in batches])[rows] for k in ("a", "b"))
    a = a.astype(np.float64)
    assert list(found) == NAMES and found["count"] == len(a)
    expected = [len(a), a.mean(axis=0), a.var(axis=0), b.mean(), b.var()]
    for name, value in zip(NAMES, expected, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_batches_of_any_size_make_the_moments_of_all_rows(machine):
    batches = [batch(rows, rows) for rows in (5, 1, 200)]
    for each in batches:
        update = machine.enter(each)
        assert update.num_rows_not_finite == 0
    assert_moments(machine.moments, batches)


def test_an_update_knows_both_sides_and_changes_nothing_before_it_is_assigned(machine):
    machine.enter(batch(5))
    before = machine.moments
    update = machine.statistics.update(batch(9, 1))
    assert_same(machine.moments, before)
    for value, expected in zip(update.before, before.values(), strict=True):
        np.testing.assert_array_equal(value, expected)
    machine.statistics.assign(update)
    assert_moments(machine.moments, [batch(5), batch(9, 1)])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_stays_out_with_all_of_its_leaves(machine, bad):
    rows = batch(6)
    rows["obs"]["a"][2, 1] = rows["obs"]["a"][5, 0] = bad
    assert machine.enter(rows).num_rows_not_finite == 2
    assert_moments(machine.moments, [rows], [0, 1, 3, 4])


def test_a_batch_of_nothing_finite_leaves_the_moments(machine):
    rows = batch(3)
    rows["obs"]["a"][:] = np.nan
    for good in (None, batch(7)):
        if good is not None:
            machine.enter(good)
        before = machine.moments
        assert machine.enter(rows).num_rows_not_finite == 3
        assert_same(machine.moments, before)


def test_what_float32_cannot_hold_counts_as_infinite():
    made = Machine(S.Box(-np.inf, np.inf, (1,), np.float64))
    update = made.enter({"obs": np.array([[1e300], [2.0], [4.0]])})
    assert update.num_rows_not_finite == 1
    assert made.moments["obs/mean"] == 3.0 and made.moments["obs/variance"] == 1.0
    made.session.close()


def test_rows_that_only_warm_up_a_state_do_not_count(machine):
    rows = {**batch(6), "burn_in": np.array([0, 1, 0, 0, 1, 0], bool)}
    rows["obs"]["a"][1] = np.nan
    assert machine.enter(rows).num_rows_not_finite == 0
    assert_moments(machine.moments, [rows], [0, 2, 3, 5])


def test_observations_may_come_in_any_form_that_acting_takes(machine):
    rows = batch(4)["obs"]
    machine.enter(SampleBatch({"obs": rows, "actions": np.zeros(4)}))
    machine.enter({"obs": [{k: v[i] for k, v in rows.items()} for i in range(4)]})
    assert_moments(machine.moments, [batch(4), batch(4)])


def test_a_batch_without_observations_or_with_others_is_refused(machine):
    with pytest.raises(KeyError, match="lacks `obs`, whose mean .* It has: actions"):
        machine.enter({"actions": np.zeros(3)})
    with pytest.raises(ValueError, match=r"`obs_a`: expected \(B, 2\), got \(3, 3\)"):
        machine.enter({"obs": {**batch(3)["obs"], "a": np.zeros((3, 3), np.float32)}})
    assert machine.moments["count"] == 0
