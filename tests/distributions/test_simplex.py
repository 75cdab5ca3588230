"""Dirichlet and Gumbel-softmax actions."""

import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box
from scipy import special, stats

from tfpolicy.distributions import Dirichlet, GumbelSoftmax, distribution_for

UNIT = Box(0, 1, (3,))
WIDE = Box(-2, 4, (3,))
SHARES = np.array([[0.2, 0.5, 0.3], [0.01, 0.01, 0.98], [1 / 3, 1 / 3, 1 / 3]], np.float32)
RAW = np.array([[0.0, 1.0, -2.0], [3.0, -1.0, 5.0], [0.5, 0.5, 0.5]], np.float32)


def values(distribution, inputs, other, actions):
    p, q = distribution(inputs), distribution(other)
    return p.log_prob(actions), p.entropy(), p.kl(q), p.mode()


def draw(evaluate, distribution, inputs):
    return evaluate(lambda x: distribution(x).sample(tf.constant([1, 2])), inputs)


def alphas(raw):
    return 1.0 + np.log1p(np.exp(raw.astype(np.float64)))


def test_dirichlet_agrees_with_scipy(evaluate):
    distribution = distribution_for(UNIT, "dirichlet")
    logp, entropy, kl, mode = evaluate(
        lambda *x: values(distribution, *x), RAW, RAW[::-1].copy(), SHARES
    )
    for row, (alpha, beta) in enumerate(zip(alphas(RAW), alphas(RAW[::-1]), strict=True)):
        law = stats.dirichlet(alpha)
        share = SHARES[row].astype(np.float64)
        assert logp[row] == pytest.approx(law.logpdf(share / share.sum()), abs=1e-4)
        assert entropy[row] == pytest.approx(law.entropy(), abs=1e-5)
        log_b = [special.gammaln(a).sum() - special.gammaln(a.sum()) for a in (alpha, beta)]
        digammas = special.digamma(alpha) - special.digamma(alpha.sum())
        expected = log_b[1] - log_b[0] + ((alpha - beta) * digammas).sum()
        assert kl[row] == pytest.approx(expected, abs=1e-5)
        np.testing.assert_allclose(mode[row], (alpha - 1) / (alpha.sum() - 3), rtol=1e-5)


def test_dirichlet_of_two_shares_is_beta(evaluate):
    # The density of the first share; the second one follows from it.
    raw = RAW[:, :2]
    first = np.array([0.2, 0.7, 0.5], np.float32)
    pair = np.stack([first, 1 - first], axis=1)
    two = distribution_for(Box(0, 1, (2,)), "dirichlet")
    one = distribution_for(Box(0, 1, (1,)), "beta")

    def compared(x):
        p, q = two(x), one(x)
        return p.entropy(), q.entropy(), p.log_prob(pair), q.log_prob(first[:, None])

    entropy, expected_entropy, logp, expected_logp = evaluate(compared, raw)
    np.testing.assert_allclose(entropy, expected_entropy, atol=1e-5)
    np.testing.assert_allclose(logp, expected_logp, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_gumbel_softmax_density_agrees_with_tfp(evaluate, temperature):
    import tensorflow_probability as tfp

    distribution = distribution_for(UNIT, "gumbel_softmax", {"temperature": temperature})

    def compared(x, a):
        reference = tfp.distributions.RelaxedOneHotCategorical(temperature, logits=x)
        return distribution(x).log_prob(a), reference.log_prob(a)

    logp, expected = evaluate(compared, RAW, SHARES)
    np.testing.assert_allclose(logp, expected, rtol=1e-4, atol=1e-4)


def test_gumbel_softmax_density_integrates_to_one(evaluate):
    # Two shares: a density of the first alone. z = (0.5, -0.3), τ = 0.8, bounds -2 and 4.
    distribution = distribution_for(Box(-2, 4, (2,)), "gumbel_softmax", {"temperature": 0.8})
    first = (np.arange(20000) + 0.5) / 20000
    actions = -2 + 6 * np.stack([first, 1 - first], axis=1)
    logits = np.tile([0.5, -0.3], (20000, 1))
    logp = evaluate(lambda x, a: distribution(x).log_prob(a), logits, actions)
    assert np.exp(logp).mean() * 6 == pytest.approx(1.0, abs=2e-3)


def test_the_largest_share_is_the_choice_of_the_logits(evaluate):
    logits = np.tile([0.5, -0.3, 1.1], (40000, 1))
    distribution = distribution_for(UNIT, "gumbel_softmax", {"temperature": 0.4})
    actions = draw(evaluate, distribution, logits)
    shares = np.bincount(actions.argmax(axis=1), minlength=3) / 40000
    np.testing.assert_allclose(shares, special.softmax([0.5, -0.3, 1.1]), atol=0.012)


def test_gumbel_softmax_kl_and_entropy_are_those_of_the_choice(evaluate):
    distribution = distribution_for(UNIT, "gumbel_softmax", {"temperature": 0.7})
    inputs, other = np.repeat(RAW[:2], 2, axis=0), np.repeat(RAW[1:], 2, axis=0)
    _, entropy, kl, _ = evaluate(
        lambda *x: values(distribution, *x), inputs, other, SHARES[[0, 0, 0, 0]]
    )
    p, q = special.softmax(inputs, axis=1), special.softmax(other, axis=1)
    np.testing.assert_allclose(entropy, special.entr(p).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(kl, special.rel_entr(p, q).sum(axis=1), rtol=1e-4)


def test_that_kl_is_a_lower_bound(evaluate):
    distribution = distribution_for(UNIT, "gumbel_softmax", {"temperature": 1.0})
    inputs, other = (np.tile(RAW[row], (20000, 1)) for row in (0, 2))
    actions = draw(evaluate, distribution, inputs)
    logp, _, kl, _ = evaluate(lambda *x: values(distribution, *x), inputs, other, actions)
    logq = evaluate(lambda x, a: distribution(x).log_prob(a), other, actions)
    assert 0.05 < kl[0] < (logp - logq).mean()


def test_gradients_flow_from_a_gumbel_softmax_sample_into_the_logits(evaluate):
    distribution = distribution_for(UNIT, "gumbel_softmax")
    (gradient,) = evaluate.gradients(
        lambda x: distribution(x).sample(tf.constant([1, 2]))[:, 0], RAW
    )
    assert (gradient[:, 0] > 0).all() and (gradient[:, 1:] < 0).all()


@pytest.mark.parametrize("custom", ["dirichlet", "gumbel_softmax"])
@pytest.mark.parametrize("space", [UNIT, WIDE, Box(-1, 1, (5,))], ids=str)
def test_actions_are_shares_of_a_whole_within_the_bounds(evaluate, custom, space):
    distribution = distribution_for(space, custom)
    inputs = np.random.default_rng(0).normal(0, 8, (500, space.shape[0])).astype(np.float32)
    modes = evaluate(lambda x: distribution(x).mode(), inputs)
    for actions in (draw(evaluate, distribution, inputs), modes):
        assert all(action in space for action in actions)
        shares = (actions - space.low) / (space.high - space.low)
        np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize("family", [Dirichlet, GumbelSoftmax])
def test_the_uniform_distribution_over_the_simplex(evaluate, family):
    actions, logp = evaluate(
        lambda x: family(x, WIDE).uniform(tf.constant([3, 4])), np.zeros((4000, 3))
    )
    shares = (actions + 2) / 6
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-5)
    # A share of three is Beta(1, 2); the density is Γ(3) / 6².
    assert all(stats.kstest(column, stats.beta(1, 2).cdf).pvalue > 1e-4 for column in shares.T)
    np.testing.assert_allclose(logp, np.log(2) - 2 * np.log(6), rtol=1e-6)


@pytest.mark.parametrize(
    "space, message",
    [
        (Box(0, 1, (1,)), r"shape \(n,\), n >= 2, with the same bounds"),
        (Box(0, 1, (2, 2)), "n >= 2"),
        (Box(np.float32([0, 0]), np.float32([1, 2])), "same bounds"),
        (Box(0, np.inf, (2,)), "finite bounds"),
        (Box(0, 1, (2,), np.int8), "float Box"),
    ],
)
@pytest.mark.parametrize("custom", ["dirichlet", "gumbel_softmax"])
def test_spaces_that_are_no_simplex_are_refused(space, message, custom):
    with pytest.raises(ValueError, match=message):
        distribution_for(space, custom)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_temperatures_are_refused(temperature):
    distribution = distribution_for(UNIT, "gumbel_softmax", {"temperature": temperature})
    with tf.Graph().as_default(), pytest.raises(ValueError, match="`temperature`: expected a pos"):
        distribution(tf.zeros([1, 3]))
