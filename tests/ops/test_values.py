import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.ops.values import clipped_value_loss, squared_value_loss

# One row per case, ε = 0.5, V_old = 0:
#   inside the band | towards the target and beyond the band | away from it | past the target
VALUES = np.array([0.4, 1.0, -1.0, 3.0])
OLD_VALUES = np.zeros(4)
TARGETS = np.array([2.0, 2.0, 2.0, 0.6])


def test_squared_loss_by_hand(evaluate):
    np.testing.assert_allclose(
        evaluate(squared_value_loss, [1.0, -1.0, 0.0], [3.0, -1.0, 0.5]), [4.0, 0.0, 0.25]
    )


def test_gradient_of_squared_loss_is_twice_the_error(evaluate):
    to_values, _ = evaluate.gradients(squared_value_loss, [1.0, -1.0], [3.0, -1.5])
    np.testing.assert_allclose(to_values, [-4.0, 1.0])


def test_clipped_loss_by_hand(evaluate):
    loss = evaluate(lambda *x: clipped_value_loss(*x, 0.5), VALUES, OLD_VALUES, TARGETS)
    # (0.4 - 2)²; V_clip = 0.5: max(1², 1.5²); max(3², 2.5²); V_clip = 0.5: max(2.4², 0.1²)
    np.testing.assert_allclose(loss, [2.56, 2.25, 9.0, 5.76], rtol=1e-5)


def test_gradient_of_clipped_loss_is_zero_only_beyond_the_band_towards_the_target(evaluate):  # i19
    to_values, *_ = evaluate.gradients(
        lambda *x: clipped_value_loss(*x, 0.5), VALUES, OLD_VALUES, TARGETS
    )
    np.testing.assert_allclose(to_values, [-3.2, 0.0, -6.0, 4.8], rtol=1e-5)


def test_clipped_loss_is_never_below_the_plain_one_nor_bounded_by_the_clip(evaluate):  # i19
    rng = np.random.default_rng(0)
    values, old_values, targets = rng.normal(size=(3, 200))
    clipped = evaluate(lambda *x: clipped_value_loss(*x, 0.1), values, old_values, targets)
    plain = evaluate(squared_value_loss, values, targets)
    assert (clipped >= plain).all() and clipped.max() > 1.0


def test_wide_clip_changes_nothing(evaluate):
    rng = np.random.default_rng(1)
    values, old_values, targets = rng.normal(size=(3, 50))
    np.testing.assert_allclose(
        evaluate(lambda *x: clipped_value_loss(*x, 1e6), values, old_values, targets),
        evaluate(squared_value_loss, values, targets),
        rtol=1e-4,
        atol=1e-6,
    )


def test_no_gradient_to_targets_and_old_values():
    with tf.Graph().as_default():
        values, old, targets = (tf.compat.v1.placeholder(tf.float32, [None]) for _ in "123")
        assert tf.gradients(squared_value_loss(values, targets), [targets]) == [None]
        clipped = clipped_value_loss(values, old, targets, 0.5)
        assert tf.gradients(clipped, [old, targets]) == [None, None]


def test_value_column_of_a_dense_layer_is_refused():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="`values` must be .B."):
        squared_value_loss(tf.zeros([3, 1]), tf.zeros([3]))


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan")])
def test_clip_must_be_positive(clip):
    with tf.Graph().as_default(), pytest.raises(ValueError, match="`clip` must be positive"):
        clipped_value_loss(tf.zeros([3]), tf.zeros([3]), tf.zeros([3]), clip)
