import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp
from gymnasium.spaces import Box, MultiBinary

from tfpolicy.distributions import Bernoulli

BITS = MultiBinary(3)


def test_two_bits_by_hand(evaluate):
    # p = (3/4, 1/2), q = (1/2, 1/2)
    def values(x, y):
        p, q = (Bernoulli(z, MultiBinary(2)) for z in (x, y))
        return p.log_prob([[1, 0]]), p.entropy(), p.kl(q), p.mode()

    logp, entropy, kl, mode = evaluate(values, [[np.log(3), 0.0]], [[0.0, 0.0]])
    np.testing.assert_allclose(logp, [np.log(3 / 4) + np.log(1 / 2)], rtol=1e-6)
    first = -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    np.testing.assert_allclose(entropy, [first + np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(kl, [0.75 * np.log(1.5) + 0.25 * np.log(0.5)], rtol=1e-5)
    np.testing.assert_array_equal(mode, [[1, 0]])


def test_bernoulli_agrees_with_tfp(evaluate):  # j18
    def values(x, y, a):
        p, q = Bernoulli(x, BITS), Bernoulli(y, BITS)
        p_ref, q_ref = (
            tfp.distributions.Independent(tfp.distributions.Bernoulli(z), 1) for z in (x, y)
        )
        return (
            (p.log_prob(a), p_ref.log_prob(a)),
            (p.entropy(), p_ref.entropy()),
            (p.kl(q), p_ref.kl_divergence(q_ref)),
        )

    rng = np.random.default_rng(0)
    inputs, other = rng.normal(0, 3, (2, 50, 3))
    actions = rng.integers(0, 2, (50, 3)).astype(np.int8)
    for value, expected in evaluate(values, inputs, other, actions):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)


def test_tails_keep_their_digits(evaluate):
    # P(a = 1) = e^-z for large negative logits: log(1 - p) ≈ -p, H ≈ p (1 - log p)
    def values(x):
        p = Bernoulli(x, MultiBinary(1))
        return p.log_prob([[0], [1]]), p.entropy()

    p = np.exp(-30.0)
    logp, entropy = evaluate(values, [[-30.0], [30.0]])
    np.testing.assert_allclose(logp, [-p, -p], rtol=1e-5)
    np.testing.assert_allclose(entropy, [p * 31, p * 31], rtol=1e-5)


def test_frequencies_of_samples_are_the_probabilities(evaluate):
    p = np.array([0.1, 0.5, 0.93])
    inputs = np.tile(np.log(p / (1 - p)), (20000, 1))
    bits = evaluate(lambda x, s: Bernoulli(x, BITS).sample(s), inputs, np.int32([1, 2]))
    for k in range(3):
        assert scipy.stats.binomtest(int(bits[:, k].sum()), 20000, p[k]).pvalue > 1e-3


def test_masked_bits_stay_zero(evaluate):  # e15
    inputs = np.tile([[0.0, -1e9, 1e9]], (2000, 1))
    bits = evaluate(lambda x, s: Bernoulli(x, BITS).sample(s), inputs, np.int32([1, 2]))
    assert set(bits[:, 0]) == {0, 1} and set(bits[:, 1]) == {0} and set(bits[:, 2]) == {1}


def test_other_spaces_are_refused():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="expects a MultiBinary space"):
        Bernoulli(tf.zeros([1, 2]), Box(0, 1, (2,), np.int8))
