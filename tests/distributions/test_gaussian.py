import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp
from gymnasium.spaces import Box, Discrete

from tfpolicy.distributions import DiagGaussian, SquashedGaussian

tfd, tfb = tfp.distributions, tfp.bijectors
UNIT = Box(-1, 1, (2,))
WIDE = Box(np.float32([-2, 0]), np.float32([6, 0.1]))


def random_inputs(rows, seed=0):
    """μ ++ log σ of two dimensions."""
    rng = np.random.default_rng(seed)
    return np.hstack([rng.normal(0, 1, (rows, 2)), rng.normal(-0.7, 0.5, (rows, 2))])


def tfp_squashed(x, space):
    mean, log_std = tf.split(x, 2, axis=1)
    centre, half_width = (space.high + space.low) / 2, (space.high - space.low) / 2
    base = tfd.MultivariateNormalDiag(mean, tf.exp(log_std))
    return tfd.TransformedDistribution(
        base, tfb.Chain([tfb.Shift(centre), tfb.Scale(half_width), tfb.Tanh()])
    )


def test_one_dimension_by_hand(evaluate):
    # μ = 1, σ = 2, a = 3: z = 1. Other: μ' = 0, σ' = 1.
    def values(x, y):
        p, q = (DiagGaussian(z, Box(-9, 9, (1,))) for z in (x, y))
        return p.log_prob([[3.0]]), p.entropy(), p.kl(q), p.mode()

    logp, entropy, kl, mode = evaluate(values, [[1.0, np.log(2)]], [[0.0, 0.0]])
    np.testing.assert_allclose(logp, [-0.5 - np.log(2) - 0.5 * np.log(2 * np.pi)], rtol=1e-6)
    np.testing.assert_allclose(entropy, [np.log(2) + 0.5 * np.log(2 * np.pi * np.e)], rtol=1e-6)
    np.testing.assert_allclose(kl, [-np.log(2) + (4 + 1) / 2 - 0.5], rtol=1e-6)
    np.testing.assert_array_equal(mode, [[1.0]])


def test_gaussian_agrees_with_tfp(evaluate):
    def values(x, y, a):
        p, q = DiagGaussian(x, UNIT), DiagGaussian(y, UNIT)
        p_ref, q_ref = (tfd.MultivariateNormalDiag(z[:, :2], tf.exp(z[:, 2:])) for z in (x, y))
        return (
            (p.log_prob(a), p_ref.log_prob(a)),
            (p.entropy(), p_ref.entropy()),
            (p.kl(q), p_ref.kl_divergence(q_ref)),
        )

    actions = np.random.default_rng(2).normal(size=(20, 2))
    for value, expected in evaluate(values, random_inputs(20), random_inputs(20, 1), actions):
        np.testing.assert_allclose(value, expected, rtol=1e-4)


def test_gaussian_samples_have_mean_and_deviation(evaluate):
    inputs = np.tile([[0.5, -3.0, np.log(0.1), np.log(2.0)]], (20000, 1))
    actions = evaluate(lambda x, s: DiagGaussian(x, UNIT).sample(s), inputs, np.int32([1, 2]))
    for column, mean, std in zip(actions.T, (0.5, -3.0), (0.1, 2.0), strict=True):
        assert scipy.stats.kstest(column, scipy.stats.norm(mean, std).cdf).pvalue > 1e-3


def test_kl_of_nearly_equal_gaussians_is_precise(evaluate):
    # Second order: KL ≈ δ² for log σ' = log σ + δ, far below the rounding of the usual formula.
    inputs = np.zeros((1, 4))
    other = inputs + [0, 0, 1e-4, 0]
    kl = evaluate(lambda x, y: DiagGaussian(x, UNIT).kl(DiagGaussian(y, UNIT)), inputs, other)
    np.testing.assert_allclose(kl, [1e-8], rtol=1e-2)


@pytest.mark.parametrize("family", [DiagGaussian, SquashedGaussian])
def test_log_std_is_clipped_to_its_range(evaluate, family):  # e12, e13
    low, high = family.LOG_STD_RANGE

    def log_std(x):
        entropy = DiagGaussian.entropy(family(x, Box(-1, 1, (1,))))
        return entropy - 0.5 * np.log(2 * np.pi * np.e), tf.gradients(entropy, x)[0][:, 1]

    inputs = [[0.0, low - 50], [0.0, low + 1], [0.0, 0.5], [0.0, high - 1], [0.0, 1e9]]
    value, gradient = evaluate(log_std, inputs)
    np.testing.assert_allclose(value, [low, low + 1, 0.5, high - 1, high], rtol=1e-5)
    np.testing.assert_array_equal(gradient, [0, 1, 1, 1, 0])


@pytest.mark.parametrize("space", [UNIT, WIDE], ids=["unit", "wide"])
def test_squashed_agrees_with_tfp_including_the_jacobian_of_the_bounds(evaluate, space):  # i12
    def values(x, seed):
        p, p_ref = SquashedGaussian(x, space), tfp_squashed(x, space)
        actions = p.sample(seed)
        return p.log_prob(actions), p_ref.log_prob(actions)

    value, expected = evaluate(values, random_inputs(200), np.int32([1, 2]))
    np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-3)


def test_squashed_density_integrates_to_one(evaluate):
    space = Box(-1, 3, (1,))
    grid = np.linspace(-1, 3, 4001)
    inputs = np.tile([[0.3, -0.2]], (len(grid), 1))
    logp = evaluate(lambda x, a: SquashedGaussian(x, space).log_prob(a), inputs, grid[:, None])
    assert scipy.integrate.simpson(np.exp(logp), x=grid) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("mean", [0.0, 1.5, -8.0])
@pytest.mark.parametrize("std, error", [(0.01, 3e-5), (1.0, 5e-5), (7.38, 6e-3)])
def test_squashed_entropy_equals_its_integral(evaluate, mean, std, error):  # i13
    def integrand(u):
        log_derivative = 2 * (np.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
        return scipy.stats.norm.pdf(u, mean, std) * log_derivative

    ends = mean - 9 * std, mean + 9 * std
    expectation, _ = scipy.integrate.quad(integrand, *ends, points=[mean, 0.0], limit=200)
    space = Box(-1, 3, (1,))
    expected = scipy.stats.norm(mean, std).entropy() + expectation + np.log(2)
    value = evaluate(lambda x: SquashedGaussian(x, space).entropy(), [[mean, np.log(std)]])
    np.testing.assert_allclose(value, [expected], atol=error, rtol=1e-6)


def test_entropy_bonus_does_not_push_squashed_actions_to_the_bounds(evaluate):  # i15
    # Of a Gaussian the gradient to log σ is always 1; of a squashed one it changes its sign, as
    # the flattest density within the bounds has a finite σ.
    def gradients(x):
        families = DiagGaussian, SquashedGaussian
        return [tf.gradients(f(x, Box(-1, 1, (1,))).entropy(), x)[0][:, 1] for f in families]

    gaussian, squashed = evaluate(gradients, [[0.0, -2.0], [0.0, 1.5]])
    np.testing.assert_allclose(gaussian, [1, 1])
    assert squashed[0] > 0.9 and squashed[1] < -0.5


def test_kl_of_squashed_is_that_before_squashing(evaluate):  # i13
    def values(x, y):
        return (
            SquashedGaussian(x, WIDE).kl(SquashedGaussian(y, WIDE)),
            DiagGaussian(x, UNIT).kl(DiagGaussian(y, UNIT)),
        )

    value, expected = evaluate(values, random_inputs(20), random_inputs(20, 1))
    np.testing.assert_array_equal(value, expected)


def test_squashed_mode_is_the_squashed_mean(evaluate):
    inputs = [[0.0, 50.0, 0.0, 0.0], [-50.0, 0.5, 0.0, 0.0]]
    mode = evaluate(lambda x: SquashedGaussian(x, WIDE).mode(), inputs)
    np.testing.assert_allclose(mode, [[2.0, 0.1], [-2.0, 0.05 + 0.05 * np.tanh(0.5)]], rtol=1e-6)


def test_squashed_log_prob_of_its_own_saturated_samples_is_finite(evaluate):  # i24
    def values(x, seed):
        p = SquashedGaussian(x, WIDE)
        actions = p.sample(seed)
        logp = p.log_prob(actions)
        return actions, logp, tf.gradients(logp, x)[0]

    inputs = np.tile([[20.0, -20.0, 2.0, -20.0]], (100, 1))
    actions, logp, gradient = evaluate(values, inputs, np.int32([1, 2]))
    np.testing.assert_array_equal(np.unique(actions[:, 1]), np.float32([0.0]))
    assert np.isfinite(logp).all() and np.isfinite(gradient).all()


@pytest.mark.parametrize(
    "family, space, message",
    [
        (DiagGaussian, Discrete(2), "DiagGaussian expects a float Box, got Discrete"),
        (DiagGaussian, Box(0, 1, (2,), np.int8), "DiagGaussian expects a float Box, got Box"),
        (
            SquashedGaussian,
            Box(np.float32([-1, -np.inf, 0]), np.float32([1, 1, np.inf])),
            "finite bounds low < high in every dimension, .* none in dimension 1, 2",
        ),
        (SquashedGaussian, Box(np.float32([0, 1]), np.float32([1, 1])), "none in dimension 1"),
        (SquashedGaussian, Box(-1e300, 1, (1,), np.float64), "none in dimension 0"),
    ],
)
def test_spaces_that_do_not_fit_are_refused(family, space, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        family(tf.zeros([1, 4]), space)
