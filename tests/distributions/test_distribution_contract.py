"""What holds for every family."""

import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from tfpolicy.distributions import (
    Deterministic,
    DiagGaussian,
    GumbelSoftmax,
    SimplexFamily,
    distribution_for,
)

ROWS = 6


def all_values(distribution, inputs, other, actions):
    p, q = distribution(inputs), distribution(other)
    return p.log_prob(actions), p.entropy(), p.kl(q)


def draw(evaluate, distribution, inputs, seed=(1, 2)):
    return evaluate(lambda x, s: distribution(x).sample(s), inputs, np.int32(seed))


def edge_actions(space):
    """Actions at both ends of the space, [2, *space.shape]."""
    if isinstance(space, Box):
        return np.clip(np.stack([space.low, space.high]), -100, 100).astype(space.dtype)
    if isinstance(space, MultiDiscrete):
        return np.stack([space.start, space.start + space.nvec - 1])
    if isinstance(space, Discrete):
        return np.array([space.start, space.start + space.n - 1])
    assert isinstance(space, MultiBinary)
    return np.stack([np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)])


def test_actions_have_shape_and_dtype_of_the_space(case, evaluate):
    distribution = case.distribution
    inputs = case.inputs(ROWS)
    for actions in (
        draw(evaluate, distribution, inputs),
        evaluate(lambda x: distribution(x).mode(), inputs),
    ):
        assert actions.shape == (ROWS, *case.space.shape)
        is_float = np.issubdtype(case.space.dtype, np.floating)
        assert actions.dtype == (np.float32 if is_float else case.space.dtype)


def test_actions_lie_in_the_space(case, evaluate):
    distribution = case.distribution
    if distribution.family in (DiagGaussian, Deterministic):
        pytest.skip("not bounded")
    inputs = case.inputs(500, scale=4.0)
    modes = evaluate(lambda x: distribution(x).mode(), inputs)
    for action in [*draw(evaluate, distribution, inputs), *modes]:
        assert case.space.contains(np.asarray(action, case.space.dtype))


def test_values_are_float32_of_shape_b(case, evaluate):  # c19, i13, i16
    distribution = case.distribution
    inputs, other = case.inputs(ROWS), case.inputs(ROWS, seed=1)
    actions = draw(evaluate, distribution, inputs)
    values = evaluate(lambda *x: all_values(distribution, *x), inputs, other, actions)
    for value in values:
        assert value.shape == (ROWS,) and value.dtype == np.float32
        assert np.isfinite(value).all()


def test_empty_batch_gives_empty_values(case, evaluate):
    distribution = case.distribution
    inputs = case.inputs(0)
    actions = draw(evaluate, distribution, inputs)
    assert actions.shape == (0, *case.space.shape)
    values = evaluate(lambda *x: all_values(distribution, *x), inputs, inputs, actions)
    assert [value.shape for value in values] == [(0,)] * 3


def test_the_seed_alone_decides_the_sample(random_case, evaluate):
    distribution, inputs = random_case.distribution, random_case.inputs(300)
    first = draw(evaluate, distribution, inputs, (3, 4))
    np.testing.assert_array_equal(first, draw(evaluate, distribution, inputs, (3, 4)))
    assert (first != draw(evaluate, distribution, inputs, (3, 5))).any()
    assert (first != draw(evaluate, distribution, inputs, (4, 4))).any()


def test_rows_and_dimensions_are_drawn_independently(random_case, evaluate):
    distribution = random_case.distribution
    inputs = np.zeros((4000, distribution.num_inputs), np.float32)
    actions = draw(evaluate, distribution, inputs).reshape(4000, -1).astype(np.float64)
    following = np.corrcoef(actions[1:, 0], actions[:-1, 0])[0, 1]
    assert abs(following) < 0.08
    on_simplex = issubclass(distribution.family, SimplexFamily)
    if actions.shape[1] > 1 and not on_simplex:  # Shares that sum to 1 are not independent.
        correlations = np.corrcoef(actions.T) - np.eye(actions.shape[1])
        assert np.abs(correlations).max() < 0.08


def test_entropy_is_the_mean_of_minus_log_prob(random_case, evaluate):
    distribution, rows = random_case.distribution, 20000
    if distribution.family is GumbelSoftmax:
        pytest.skip("its entropy is that of the choice")
    inputs = np.repeat(random_case.inputs(1, seed=3), rows, axis=0)
    actions = draw(evaluate, distribution, inputs)
    logp, entropy, _ = evaluate(lambda *x: all_values(distribution, *x), inputs, inputs, actions)
    tolerance = 4 * logp.std() / np.sqrt(rows) + 1e-4
    assert entropy[0] == pytest.approx(-logp.mean(), abs=tolerance)


def test_kl_is_the_mean_difference_of_log_probs(random_case, evaluate):
    distribution, rows = random_case.distribution, 20000
    if distribution.family is GumbelSoftmax:
        pytest.skip("its KL is that of the choice")
    inputs, other = (
        np.repeat(random_case.inputs(1, seed, scale=0.5), rows, axis=0) for seed in (5, 6)
    )
    actions = draw(evaluate, distribution, inputs)
    logp, _, kl = evaluate(lambda *x: all_values(distribution, *x), inputs, other, actions)
    logq = evaluate(lambda x, a: distribution(x).log_prob(a), other, actions)
    difference = logp.astype(np.float64) - logq
    tolerance = 4 * difference.std() / np.sqrt(rows) + 1e-4
    assert kl[0] == pytest.approx(difference.mean(), abs=tolerance)
    assert kl[0] > 0.01


def test_kl_to_itself_is_zero(case, evaluate):
    distribution, inputs = case.distribution, case.inputs(ROWS, scale=3.0)
    kl = evaluate(lambda x, y: distribution(x).kl(distribution(y)), inputs, inputs)
    np.testing.assert_allclose(kl, np.zeros(ROWS), atol=1e-6)


def test_mode_is_at_least_as_likely_as_any_sample(random_case, evaluate):
    distribution = random_case.distribution
    if random_case.custom_action_dist in ("squashed_gaussian", "gumbel_softmax"):
        pytest.skip("its mode is that before squashing")
    inputs = random_case.inputs(300)
    modes = evaluate(lambda x: distribution(x).mode(), inputs)
    samples = draw(evaluate, distribution, inputs)
    logp = [
        evaluate(lambda x, a: distribution(x).log_prob(a), inputs, actions)
        for actions in (modes, samples)
    ]
    assert (logp[0] >= logp[1] - 1e-5).all()


def test_extreme_inputs_and_actions_at_bounds_have_finite_values_and_gradients(
    case, evaluate
):  # e12, e13, i18
    inputs, other, actions = hard_rows(case, evaluate)
    assert np.isfinite(actions).all()
    for value in evaluate(
        lambda *x: values_and_gradients(case.distribution, *x), inputs, other, actions
    ):
        assert np.isfinite(value).all()


def test_compiled_values_and_gradients_equal_plain_ones(family_case, evaluate, evaluate_compiled):
    # Usual and hard rows at once, for compiling takes seconds.
    usual, hard = usual_rows(family_case, evaluate), hard_rows(family_case, evaluate)
    arrays = [np.concatenate(parts) for parts in zip(usual, hard, strict=True)]

    def function(*x):
        return values_and_gradients(family_case.distribution, *x)

    plain, compiled = evaluate(function, *arrays), evaluate_compiled(function, *arrays)
    for expected, value in zip(plain, compiled, strict=True):
        assert np.isfinite(value).all()
        np.testing.assert_allclose(value[:ROWS], expected[:ROWS], rtol=1e-3, atol=1e-4)


def values_and_gradients(distribution, inputs, other, actions):
    values = all_values(distribution, inputs, other, actions)
    return *values, *tf.gradients(values, [inputs, other], unconnected_gradients="zero")


def usual_rows(case, evaluate):
    inputs = case.inputs(ROWS)
    return inputs, case.inputs(ROWS, seed=1), draw(evaluate, case.distribution, inputs)


def hard_rows(case, evaluate):
    """Huge inputs with their modes and samples, and actions at the bounds of the space."""
    rng = np.random.default_rng(0)
    shape = (20, case.distribution.num_inputs)
    inputs, other = (
        np.concatenate([rng.choice([-m, 0, m], shape) for m in (1e2, 1e9)]).astype(np.float32)
        for _ in range(2)
    )
    modes = evaluate(lambda x: case.distribution(x).mode(), inputs)
    samples = draw(evaluate, case.distribution, inputs)
    return (
        np.concatenate([inputs, inputs, case.inputs(2, scale=3.0)]),
        np.concatenate([other, other, case.inputs(2, seed=1, scale=3.0)]),
        np.concatenate([modes, samples, edge_actions(case.space)]),
    )


def test_log_prob_takes_actions_of_any_type(case, evaluate):  # e9
    actions = np.rint(edge_actions(case.space))
    dtypes = [np.int8, np.int32, np.int64, np.float32, np.float64]
    forms = [actions.tolist(), *(actions.astype(dtype) for dtype in dtypes)]

    def log_probs(x, a):
        p = case.distribution(x)
        return [p.log_prob(form) for form in [a, *forms, *map(tf.constant, forms)]]

    expected, *others = evaluate(log_probs, case.inputs(2), actions.astype(np.float32))
    for logp in others:
        np.testing.assert_allclose(logp, expected, rtol=1e-6)


def test_inputs_of_another_width_are_refused(case):
    size = case.distribution.num_inputs
    with tf.Graph().as_default(), pytest.raises(ValueError, match=f"expected .B, {size}. for"):
        case.distribution(tf.zeros([3, size + 1]))


def test_inputs_of_unknown_width_are_checked_when_run(evaluate):
    def entropy(x):
        unknown = tf.compat.v1.placeholder_with_default(x, None)
        return distribution_for(MultiDiscrete([2, 2]))(unknown).entropy()

    np.testing.assert_allclose(evaluate(entropy, np.zeros((2, 4))), 2 * np.log([2, 2]), rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError):
        evaluate(entropy, np.zeros((2, 8)))


def test_actions_that_would_broadcast_are_refused(case):
    distribution = case.distribution
    with tf.Graph().as_default():
        p = distribution(tf.zeros([3, distribution.num_inputs]))
        for shape in ([3, *case.space.shape, 1], [1, *case.space.shape]):
            with pytest.raises(ValueError, match="`actions`: expected .3,"):
                p.log_prob(tf.zeros(shape))


def test_kl_to_another_family_is_refused():
    space = Box(-1, 1, (2,))
    with tf.Graph().as_default():
        inputs = tf.zeros([1, 4])
        p, q = distribution_for(space)(inputs), distribution_for(space, "beta")(inputs)
        with pytest.raises(TypeError, match="`other` must be a DiagGaussian.* got Beta"):
            p.kl(q)
