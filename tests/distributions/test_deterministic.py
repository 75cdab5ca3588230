import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Discrete

from tfpolicy.distributions import Deterministic

SPACE = Box(-1, 1, (2, 2))


def test_the_inputs_are_the_actions(evaluate):
    def values(x, seed):
        p = Deterministic(x, SPACE)
        return p.mode(), p.sample(seed)

    inputs = np.arange(12).reshape(3, 4)
    for actions in evaluate(values, inputs, np.int32([1, 2])):
        np.testing.assert_array_equal(actions, inputs.reshape(3, 2, 2))


def test_log_prob_entropy_and_kl_are_zero(evaluate):
    def values(x):
        p = Deterministic(x, SPACE)
        return p.log_prob(p.mode()), p.entropy(), p.kl(Deterministic(x + 1.0, SPACE))

    for value in evaluate(values, np.ones((3, 4))):
        np.testing.assert_array_equal(value, np.zeros(3))


def test_gradients_flow_through_actions_only(evaluate):
    inputs, actions = np.ones((3, 4)), np.ones((3, 2, 2))
    of_mode = evaluate.gradients(lambda x: Deterministic(x, SPACE).mode(), inputs)
    of_logp = evaluate.gradients(lambda x: Deterministic(x, SPACE).log_prob(actions), inputs)
    np.testing.assert_array_equal(of_mode, [inputs])
    assert of_logp == [None]


def test_other_spaces_are_refused():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="expects a float Box, got Disc"):
        Deterministic(tf.zeros([1, 2]), Discrete(2))
