"""Models around models: all that they do not change themselves is what the inner model says."""

import contextlib

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.config import ModelConfig
from tfpolicy.models import Model, ModelOutput
from tfpolicy.models.wrapper import ObservationWrapper
from tfpolicy.view_requirement import ViewRequirement

OBS = gym.spaces.Box(-1, 1, (2,))


class Inner(Model):
    """Sums what it sees of observations, has a weight, and something to say wherever it can."""

    def __init__(self):
        super().__init__(OBS, gym.spaces.Discrete(3), 3, ModelConfig(), 5)
        self.weight = tf.compat.v1.get_variable("weight", initializer=2.0, use_resource=True)
        self.checked = None

    def __call__(self, columns):
        total = self.weight * (columns["obs"] + columns["obs"]) + columns["before"]
        return ModelOutput(total + columns["t"], None)

    def initial_state(self):
        return [np.ones(4, np.float32)]

    def view_requirements(self):
        return {"before": ViewRequirement("obs", OBS, -1), "t": ViewRequirement(space=OBS)}

    def losses(self, columns):
        return {"loss": columns["new_obs"]}

    def metrics(self, columns):
        return {"metric": columns["obs"]}

    def keras_model(self):
        return "the network"

    def named_networks(self):
        return {"all": [self.weight]}

    def check_observations(self, leaves):
        self.checked = leaves


class Tenfold(ObservationWrapper):
    """Shows ten times the observation, by a variable of its own; counts how often it is asked."""

    def __init__(self, inner):
        super().__init__(inner, OBS)
        self.factor = tf.compat.v1.get_variable("factor", initializer=10.0, use_resource=True)
        self.num_calls = 0

    def inner_observation(self, observation):
        self.num_calls += 1
        return self.factor * observation


@contextlib.contextmanager
def made():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inner = Inner()
        model = Tenfold(inner)
        session.run([inner.weight.initializer, model.factor.initializer])
        yield session, inner, model


COLUMNS = {"obs": 1.0, "new_obs": 3.0, "before": 0.5, "t": 0.25}


def test_observations_are_changed_wherever_the_inner_model_sees_them_and_nothing_else_is():
    with made() as (session, _, model):
        columns = {name: tf.constant(value) for name, value in COLUMNS.items()}
        # 2 * (10 + 10) + 5 + 0.25.
        assert session.run(model(columns).dist_inputs) == 45.25
        assert model.num_calls == 2  # One for each column, however often it is read.
        assert session.run(model.losses(columns)["loss"]) == 30.0
        assert session.run(model.metrics(columns)["metric"]) == 10.0
        assert set(columns) == set(COLUMNS)


def test_the_rest_is_what_the_inner_model_says():
    with made() as (_, inner, model):
        assert model.observation_space is OBS
        for name in ("action_space", "num_outputs", "config", "seed"):
            assert getattr(model, name) is getattr(inner, name)
        assert model.initial_state()[0].tolist() == [1.0] * 4
        assert model.view_requirements() == inner.view_requirements()
        assert set(model.observation_views()) == {"before"}
        assert model.keras_model() == "the network"
        assert model.named_networks() == {"all": [inner.weight]}
        model.check_observations([7])
        assert inner.checked == [7]


def test_both_models_read_what_they_are_handed():
    with made() as (session, inner, model):
        columns = {name: tf.constant(value) for name, value in COLUMNS.items()}
        variables, values = [inner.weight, model.factor], [tf.constant(1.0), tf.constant(100.0)]
        with model.reading(variables, values) as readings:
            assert readings[0] is values[0] and readings[1] is values[1]
            # 1 * (100 + 100) + 50 + 0.25.
            assert session.run(model(columns).dist_inputs) == 250.25
        assert inner.weight is variables[0] and model.factor is variables[1]


def test_a_wrapper_answers_for_the_inner_model_in_everything():
    # A method that is new to models has to be passed on, too.
    public = {name for name in vars(Model) if not name.startswith("_")}
    assert public - {"layer_seed"} <= set(vars(ObservationWrapper))
