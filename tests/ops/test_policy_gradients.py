import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.ops.policy_gradients import (
    clipped_surrogate_loss,
    policy_gradient_loss,
    probability_ratio,
)

ADVANTAGES = np.array([2.0, -1.0, 0.5, -3.0, 1.0, -1.0])
RATIOS = np.array([1.5, 1.5, 0.5, 0.5, 1.0, 30.0])
LOGP_OLD = np.array([-1.0, -2.0, -0.5, -3.0, -0.1, -4.0])
LOGP = LOGP_OLD + np.log(RATIOS)


def clipped_surrogate(r, A, epsilon, c=None):
    """L of one row after the papers, slow on purpose."""
    objective = min(r * A, min(max(r, 1 - epsilon), 1 + epsilon) * A)
    if c is not None and A < 0:
        objective = max(objective, c * A)
    return -objective


def test_policy_gradient_loss_is_minus_log_prob_times_advantage(evaluate):
    # -(-0.5 · 2), -(-1 · -3)
    np.testing.assert_allclose(evaluate(policy_gradient_loss, [-0.5, -1.0], [2.0, -3.0]), [1, -3])


def test_policy_gradient_flows_into_log_prob_only(evaluate):
    to_logp, to_advantages = evaluate.gradients(policy_gradient_loss, LOGP, ADVANTAGES)
    np.testing.assert_allclose(to_logp, -ADVANTAGES)
    assert to_advantages is None or not to_advantages.any()


def test_no_gradient_to_old_log_probs_and_advantages():
    with tf.Graph().as_default():
        logp, logp_old, advantages = (tf.compat.v1.placeholder(tf.float32, [None]) for _ in "123")
        loss = clipped_surrogate_loss(logp, logp_old, advantages, 0.2, dual_clip=3.0)
        assert tf.gradients(loss, [logp_old, advantages]) == [None, None]
        assert tf.gradients(policy_gradient_loss(logp, advantages), [advantages]) == [None]
        assert tf.gradients(probability_ratio(logp, logp_old), [logp_old]) == [None]


def test_clipped_surrogate_by_hand(evaluate):
    # r = 1.5, A = 2: clipped at 1.2 -> -2.4.   r = 1.5, A = -1: min(-1.5, -1.2) -> 1.5.
    # r = 0.5, A = 0.5: min(0.25, 0.4) -> -0.25. r = 0.5, A = -3: min(-1.5, -2.4) -> 2.4.
    # r = 1, A = 1: -1.                          r = 30, A = -1: unbounded (i22) -> 30.
    loss = evaluate(lambda *x: clipped_surrogate_loss(*x, 0.2), LOGP, LOGP_OLD, ADVANTAGES)
    np.testing.assert_allclose(loss, [-2.4, 1.5, -0.25, 2.4, -1.0, 30.0], rtol=1e-5)


def test_dual_clip_bounds_the_loss_of_bad_actions_only(evaluate):  # i22
    loss = evaluate(lambda *x: clipped_surrogate_loss(*x, 0.2, 3.0), LOGP, LOGP_OLD, ADVANTAGES)
    np.testing.assert_allclose(loss, [-2.4, 1.5, -0.25, 2.4, -1.0, 3.0], rtol=1e-5)


@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_clipped_surrogate_equals_the_slow_reference(evaluate, dual_clip):
    rng = np.random.default_rng(0)
    logp, logp_old = rng.normal(-2, 1, (2, 100)).astype(np.float32)
    advantages = rng.normal(size=100).astype(np.float32)
    loss = evaluate(
        lambda *x: clipped_surrogate_loss(*x, 0.3, dual_clip), logp, logp_old, advantages
    )
    expected = [
        clipped_surrogate(r, A, 0.3, dual_clip)
        for r, A in zip(np.exp(logp - logp_old), advantages, strict=True)
    ]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_unchanged_policy_has_the_gradient_of_the_plain_policy_gradient(evaluate):
    clipped = evaluate.gradients(
        lambda *x: clipped_surrogate_loss(*x, 0.2), LOGP_OLD, LOGP_OLD, ADVANTAGES
    )
    plain = evaluate.gradients(policy_gradient_loss, LOGP_OLD, ADVANTAGES)
    np.testing.assert_allclose(clipped[0], plain[0])


def test_gradient_vanishes_where_the_clip_acts(evaluate):
    to_logp, *_ = evaluate.gradients(
        lambda *x: clipped_surrogate_loss(*x, 0.2), LOGP, LOGP_OLD, ADVANTAGES
    )
    # Elsewhere dL/dlogπ = -r A.
    np.testing.assert_allclose(to_logp, [0.0, 1.5, -0.25, 0.0, -1.0, 30.0], rtol=1e-5)


def test_ratio_of_extreme_log_probs_is_clamped(evaluate):  # i24
    logp, logp_old = [0.0, -1e9, -3.0, 1e9], [-1e9, 0.0, -3.0, -1e30]
    ratio = evaluate(probability_ratio, logp, logp_old)
    np.testing.assert_allclose(ratio, [np.exp(20), np.exp(-20), 1.0, np.exp(20)], rtol=1e-5)
    loss = evaluate(lambda *x: clipped_surrogate_loss(*x, 0.2), logp, logp_old, [-1e3] * 4)
    gradient, *_ = evaluate.gradients(
        lambda *x: clipped_surrogate_loss(*x, 0.2), logp, logp_old, [-1e3] * 4
    )
    assert np.isfinite(loss).all() and np.isfinite(gradient).all()


def test_clip_param_may_be_a_tensor(evaluate):
    loss = evaluate(
        lambda logp, old, adv, epsilon: clipped_surrogate_loss(logp, old, adv, epsilon),
        *(LOGP, LOGP_OLD, ADVANTAGES, np.float32(0.2)),
    )
    np.testing.assert_allclose(loss[0], -2.4, rtol=1e-5)


@pytest.mark.parametrize(
    "shapes, message",
    [
        (([3], [2], [3]), "`logp_old` must be .B."),
        (([3], [3], [3, 1]), "`advantages` must be .B."),
        (([], [3], [3]), "`logp` must be .B."),
    ],
)
def test_shapes_that_would_broadcast_are_refused(shapes, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        clipped_surrogate_loss(*(tf.zeros(shape) for shape in shapes), clip_param=0.2)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"clip_param": 0.0}, "`clip_param` must be positive, got 0.0"),
        ({"clip_param": float("nan")}, "`clip_param` must be positive, got nan"),
        ({"clip_param": 0.2, "dual_clip": 1.0}, "`dual_clip` must be greater than 1, got 1.0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        clipped_surrogate_loss(tf.zeros([3]), tf.zeros([3]), tf.zeros([3]), **options)
