"""A model around a model that normalizes observations, whatever the model reads them as."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.config import ModelConfig
from tfpolicy.models import Model, ModelOutput
from tfpolicy.models.filtered import Filtered, leaves_to_filter
from tfpolicy.spaces import flatten, unflatten
from tfpolicy.view_requirement import ViewRequirement

S = gym.spaces
OBS = S.Dict(
    {
        "position": S.Box(-np.inf, np.inf, (2,)),
        "image": S.Box(0, 255, (2, 2, 1), np.uint8),
        "counts": S.Box(0, 1000, (), np.int32),
        "kind": S.Discrete(3),
        "grid": S.Tuple((S.Box(0, 9, (2, 2), np.uint8), S.MultiBinary(2))),
    }
)


@pytest.mark.parametrize(
    "space",
    [
        S.Box(-1, 1, (3,)),
        S.Box(-1, 1, (), np.float64),
        S.Box(-1, 1, (2,), np.float16),
        S.Box(-5, 5, (3,), np.int64),
        S.Box(0, 9, (4,), np.uint8),
        S.Box(0, 1, (8, 8, 3), np.float32),
    ],
    ids=str,
)
def test_boxes_of_numbers_are_filtered(space):
    assert leaves_to_filter(space) == {"obs": 0}


@pytest.mark.parametrize(
    "space",
    [
        S.Discrete(4),
        S.MultiDiscrete([2, 3]),
        S.MultiBinary(3),
        S.Box(0, 255, (8, 8, 3), np.uint8),
        S.Box(0, 1, (3,), np.bool_),
        S.Box(-1, 1, (0,)),
    ],
    ids=str,
)
def test_what_is_encoded_or_scaled_already_is_not_filtered(space):
    with pytest.raises(ValueError, match=r"nothing to normalize in observations of .*'NoFilter'"):
        leaves_to_filter(space)
    beside = S.Tuple((space, S.Box(-1, 1, (1,))))
    assert leaves_to_filter(beside) == {"obs_1": 1}


def test_leaves_are_those_of_the_space_in_its_order():
    # Keys of a Dict are sorted: counts, grid, image, kind, position.
    assert list(OBS) == ["counts", "grid", "image", "kind", "position"]
    assert leaves_to_filter(OBS) == {"obs_counts": 0, "obs_grid_0": 1, "obs_position": 5}


def test_nothing_below_a_key_that_is_left_out_is_filtered():
    mask = S.Dict(a=S.Box(0, 1, (3,)), b=S.Tuple((S.Box(0, 1, (2,)),)))
    space = S.Dict(action_mask=mask, observations=S.Box(-1, 1, (4,)))
    assert leaves_to_filter(space, without="action_mask") == {"obs_observations": 2}
    assert len(leaves_to_filter(space)) == 3


class Spy(Model):
    """Has two views of observations and one of actions, and gives what it sees of all of them."""

    def __call__(self, columns):
        names = ("obs", "new_obs", "frames", "prev_actions", "rewards")
        self.seen = {name: columns[name] for name in names if name in columns}
        return ModelOutput(tf.zeros([1, 1]), None)

    def losses(self, columns):
        self.loss_seen = columns["obs"]
        return {}

    def view_requirements(self):
        return {
            "frames": ViewRequirement("obs", OBS, "-2:0"),
            "prev_actions": ViewRequirement("actions", S.Box(-1, 1, (2,)), -1),
        }


def values_of(lead, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "counts": rng.integers(0, 1000, lead).astype(np.int32),
        "grid": (
            rng.integers(0, 9, (*lead, 2, 2)).astype(np.uint8),
            rng.integers(0, 2, (*lead, 2)).astype(np.int8),
        ),
        "image": rng.integers(0, 256, (*lead, 2, 2, 1)).astype(np.uint8),
        "kind": rng.integers(0, 3, lead),
        "position": rng.normal(100, 3, (*lead, 2)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def seen():
    """The moments of a filter, and what a model saw in each column."""
    moments = {
        "count": np.int64(7),
        "obs_counts/mean": np.float64(300.0),
        "obs_counts/variance": np.float64(10000.0),
        "obs_grid_0/mean": np.array([[1.0, 2.0], [3.0, 4.0]]),
        "obs_grid_0/variance": np.array([[1.0, 4.0], [0.0, 9.0]]),
        "obs_position/mean": np.array([100.0, 110.0]),
        "obs_position/variance": np.array([9.0, 1.0]),
    }
    columns = {"obs": values_of((4,)), "new_obs": values_of((4,), 1), "frames": values_of((4, 3))}
    columns["prev_actions"] = np.float32([[50.0, -50.0]])
    columns["rewards"] = np.float32([1000.0])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        spy = Spy(OBS, S.Discrete(2), 1, ModelConfig(), 0)
        model = Filtered(spy, leaves_to_filter(OBS), 2.0)
        assert list(model.moments) == list(moments)
        session.run([variable.initializer for variable in model.variables])
        for name, value in moments.items():
            session.run(model.moments[name].assign(value))
        model(tf.nest.map_structure(tf.constant, columns))
        return moments, columns, session.run(spy.seen)


def expected(moments, observation):
    values = flatten(OBS, observation)
    for leaf, index in leaves_to_filter(OBS).items():
        std = np.sqrt(moments[f"{leaf}/variance"])
        std = np.where(std > 0, std, 1.0)
        values[index] = np.clip((values[index] - moments[f"{leaf}/mean"]) / std, -2.0, 2.0)
    return unflatten(OBS, values)


@pytest.mark.parametrize("name", ["obs", "new_obs", "frames"])
def test_every_column_of_observations_is_normalized_alike(seen, name):
    moments, columns, found = seen
    pairs = zip(
        flatten(OBS, found[name]), flatten(OBS, expected(moments, columns[name])), strict=True
    )
    for value, reference in pairs:
        np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-5)
    assert found[name]["position"].dtype == found[name]["counts"].dtype == np.float32
    for leaf in ("image", "kind"):
        assert found[name][leaf].dtype == columns[name][leaf].dtype


@pytest.mark.parametrize("name", ["prev_actions", "rewards"])
def test_other_columns_pass_through(seen, name):
    np.testing.assert_array_equal(seen[2][name], seen[1][name])


def test_a_model_sees_what_it_is_handed_for_the_moments():
    space = S.Box(-np.inf, np.inf, (1,))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        spy = Spy(space, S.Discrete(2), 1, ModelConfig(), 0)
        model = Filtered(spy, leaves_to_filter(space), None)
        count, mean, variance = model.variables
        session.run([variable.initializer for variable in model.variables])
        columns = {"obs": tf.constant([[9.0]])}
        handed = [tf.constant(np.int64(3)), tf.constant([5.0], tf.float64)]
        with model.reading([count, mean], handed) as readings:
            model(columns)
        assert all(reading is value for reading, value in zip(readings, handed, strict=True))
        assert model.moments["obs/mean"] is mean and model.moments["obs/variance"] is variance
        assert session.run(spy.seen["obs"]).tolist() == [[4.0]]
        model(columns)
        assert session.run(spy.seen["obs"]).tolist() == [[9.0]]
        model.losses(columns)
        assert session.run(spy.loss_seen).tolist() == [[9.0]]


def test_moments_are_variables_that_are_not_trained():
    with tf.Graph().as_default() as graph:
        model = Filtered(Spy(OBS, S.Discrete(2), 1, ModelConfig(), 0), leaves_to_filter(OBS), 1.0)
        keys = tf.compat.v1.GraphKeys
        assert graph.get_collection(keys.TRAINABLE_VARIABLES) == []
        assert graph.get_collection(keys.GLOBAL_VARIABLES) == model.variables
        names = [variable.name for variable in model.variables]
        assert names[:2] == ["observation_filter/count:0", "observation_filter/obs_counts/mean:0"]
