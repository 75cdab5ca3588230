import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import tensorflow as tf
from gymnasium.spaces import Box

from tfpolicy.distributions import Beta

SPACE = Box(np.float32([-2, 0]), np.float32([6, 0.1]))


def raw(concentrations):
    """Inputs whose 1 + softplus is `concentrations`."""
    return np.log(np.expm1(np.asarray(concentrations, np.float64) - 1.0))


def beta_kl(a, b, a_other, b_other):
    psi, log_beta = scipy.special.digamma, scipy.special.betaln
    return (
        log_beta(a_other, b_other)
        - log_beta(a, b)
        + (a - a_other) * psi(a)
        + (b - b_other) * psi(b)
        + (a_other - a + b_other - b) * psi(a + b)
    )


def test_one_dimension_by_hand(evaluate):
    # Beta(2, 2) on [0, 4]: density 6 x (1 - x) / 4, at x = 1/4: 9/32. Mode: the centre.
    def values(x):
        p = Beta(x, Box(0, 4, (1,)))
        return p.log_prob([[1.0]]), p.mode()

    logp, mode = evaluate(values, raw([[2.0, 2.0]]))
    np.testing.assert_allclose(logp, [np.log(9 / 32)], rtol=1e-5)
    np.testing.assert_allclose(mode, [[2.0]], rtol=1e-6)


def test_beta_agrees_with_scipy(evaluate):
    rng = np.random.default_rng(0)
    a, b, a_other, b_other = rng.uniform(1.05, 30, (4, 40, 2))
    width = SPACE.high - SPACE.low
    x = rng.uniform(0.05, 0.95, (40, 2))

    def values(inputs, other, actions):
        p, q = Beta(inputs, SPACE), Beta(other, SPACE)
        return p.log_prob(actions), p.entropy(), p.kl(q), p.mode()

    logp, entropy, kl, mode = evaluate(
        values, raw(np.hstack([a, b])), raw(np.hstack([a_other, b_other])), SPACE.low + width * x
    )
    reference = scipy.stats.beta(a, b, SPACE.low, width)
    expected_logp = reference.logpdf(SPACE.low + width * x).sum(axis=1)
    np.testing.assert_allclose(logp, expected_logp, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(entropy, reference.entropy().sum(axis=1), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(kl, beta_kl(a, b, a_other, b_other).sum(axis=1), rtol=1e-3)
    np.testing.assert_allclose(mode, SPACE.low + width * (a - 1) / (a + b - 2), rtol=1e-4)


def test_samples_are_beta_distributed(evaluate):
    a, b = np.array([1.5, 4.0]), np.array([3.0, 1.1])
    inputs = np.tile(raw(np.hstack([a, b])), (20000, 1))
    actions = evaluate(lambda x, s: Beta(x, SPACE).sample(s), inputs, np.int32([1, 2]))
    for k in range(2):
        reference = scipy.stats.beta(a[k], b[k], SPACE.low[k], SPACE.high[k] - SPACE.low[k])
        assert scipy.stats.kstest(actions[:, k], reference.cdf).pvalue > 1e-3


def test_values_of_narrow_densities_keep_their_digits(evaluate):
    # Three log Γ of about 60000 each cancel here.
    a, b = 8000.0, 6000.0
    reference = scipy.stats.beta(a, b)
    x = np.float32(reference.mean())

    def values(inputs):
        p = Beta(inputs, Box(0, 1, (1,)))
        return p.log_prob([[x]]), p.entropy()

    logp, entropy = evaluate(values, [[a - 1.0, b - 1.0]])  # softplus is the identity here
    np.testing.assert_allclose(logp, [reference.logpdf(x)], atol=2e-2)
    np.testing.assert_allclose(entropy, [reference.entropy()], atol=2e-2)


def test_lowest_inputs_make_the_density_flat(evaluate):
    def values(x):
        p = Beta(x, SPACE)
        return p.mode(), p.log_prob([[1.0, 0.02]]), p.entropy()

    mode, logp, entropy = evaluate(values, [[-200.0] * 4])
    log_area = np.log(8 * 0.1)
    np.testing.assert_allclose(mode, [[2.0, 0.05]], rtol=1e-5)
    np.testing.assert_allclose(logp, [-log_area], rtol=1e-4)
    np.testing.assert_allclose(entropy, [log_area], rtol=1e-4)


def test_unbounded_dimensions_are_refused():
    space = Box(np.float32([-1, -np.inf]), np.float32([1, 1]))
    with tf.Graph().as_default(), pytest.raises(ValueError, match="none in dimension 1. A diag_g"):
        Beta(tf.zeros([1, 4]), space)
