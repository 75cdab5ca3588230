"""Exploration is run as a policy runs it: its ops in a graph, scalars and seed fed."""

import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.distributions import distribution_for


class Actor:
    """Acts on given outputs of a model."""

    def __init__(self, make_exploration, space, inputs, custom_action_dist=None):
        action_dist = distribution_for(space, custom_action_dist)
        self.exploration = make_exploration(space, action_dist)
        self._inputs = np.asarray(inputs, np.float32)
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._placeholder = tf.compat.v1.placeholder(tf.float32, [None, action_dist.num_inputs])
            self._seed = tf.compat.v1.placeholder(tf.int32, [2])
            self._scalars = {
                name: tf.compat.v1.placeholder(tf.float32, [])
                for name in self.exploration.scalars(0)
            }
            distribution = action_dist(self._placeholder)
            self._mode = distribution.mode()
            self._outputs = self.exploration.actions(distribution, self._scalars, self._seed)
        self._session = tf.compat.v1.Session(graph=self._graph)

    def __call__(self, timestep=0, seed=(0, 0)):
        """Returns actions and log-probabilities."""
        scalars = self.exploration.scalars(timestep)
        assert scalars.keys() == self._scalars.keys()
        feeds = {self._scalars[name]: value for name, value in scalars.items()}
        return self._session.run(
            self._outputs, {**feeds, self._placeholder: self._inputs, self._seed: seed}
        )

    def mode(self):
        return self._session.run(self._mode, {self._placeholder: self._inputs})

    def op_types(self):
        return {op.type for op in self._graph.get_operations()}

    def close(self):
        self._session.close()


@pytest.fixture
def actor():
    """Makes actors and closes their sessions."""
    made = []

    def make(*args, **kwargs):
        made.append(Actor(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def assert_same_law():
    """Compares draws with a reference by their means, to five standard errors."""

    def check(draws, probabilities):
        rows = len(draws)
        for value, probability in probabilities.items():
            share = np.mean(np.asarray(draws) == value)
            error = np.sqrt(max(probability * (1 - probability), 1e-12) / rows)
            assert abs(share - probability) <= 5 * error, (value, share, probability)

    return check
