import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.ops.masking import (
    MASKED_LOGIT,
    fill_padding,
    mask_logits,
    masked_column_means,
    masked_mean,
)

MASK = np.array([True, False, True, False])


def test_masked_mean_divides_by_the_number_of_valid_rows(evaluate):  # i1
    assert evaluate(masked_mean, [1.0, 100.0, 4.0, -7.0], MASK) == 2.5


def test_mean_without_mask_is_the_plain_one(evaluate):
    assert evaluate(masked_mean, [1.0, 2.0, 6.0]) == 3.0


def test_mean_of_no_valid_row_is_zero(evaluate):
    assert evaluate(masked_mean, [np.nan, 1.0], [False, False]) == 0.0


def test_padding_that_holds_nan_changes_neither_mean_nor_gradient(evaluate):  # i1
    x = [1.0, np.nan, 4.0, np.inf]
    assert evaluate(masked_mean, x, MASK) == 2.5
    to_x, _ = evaluate.gradients(masked_mean, x, MASK)
    np.testing.assert_allclose(to_x, [0.5, 0.0, 0.5, 0.0])


def test_filled_padding_keeps_gradients_of_nonlinear_terms_finite(evaluate):  # i1
    def loss(x, mask):
        return masked_mean(tf.exp(tf.math.log(fill_padding(x, mask, 1.0)) * 2.0), mask)

    x = [1.0, np.nan, 3.0, 0.0]
    assert evaluate(loss, x, MASK) == pytest.approx(5.0)
    to_x, _ = evaluate.gradients(loss, x, MASK)
    np.testing.assert_allclose(to_x, [1.0, 0.0, 3.0, 0.0], rtol=1e-5)


def test_length_of_padding_changes_no_loss(evaluate):  # i3
    short = evaluate(masked_mean, [1.0, 5.0, 0.0], [True, True, False])
    long = evaluate(masked_mean, [1.0, 5.0] + 30 * [9.0], [True, True] + 30 * [False])
    assert short == long == 3.0


def test_filled_padding_of_columns_with_more_axes(evaluate):
    x = np.arange(12).reshape(4, 3)
    filled = evaluate(lambda *a: fill_padding(*a, -1), x, MASK)
    np.testing.assert_array_equal(filled, [[0, 1, 2], [-1] * 3, [6, 7, 8], [-1] * 3])
    assert filled.dtype == x.dtype


def test_no_mask_fills_nothing():
    with tf.Graph().as_default():
        x = tf.zeros([4])
        assert fill_padding(x, None) is x


@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.int8])
def test_masked_choices_have_probability_zero(evaluate, dtype):  # e15
    logits = np.array([[0.5, 0.5, 0.5], [-2.0, 7.0, 0.0]])
    mask = np.array([[1, 1, 0], [1, 0, 1]]).astype(dtype)
    masked = evaluate(mask_logits, logits, mask)
    np.testing.assert_allclose(
        masked, [[0.5, 0.5, MASKED_LOGIT], [-2.0, MASKED_LOGIT, 0.0]], rtol=1e-6
    )
    probabilities = evaluate(lambda *x: tf.nn.softmax(mask_logits(*x)), logits, mask)
    np.testing.assert_array_equal(probabilities == 0, mask == 0)


def test_no_gradient_flows_into_masked_logits(evaluate):
    to_logits, _ = evaluate.gradients(
        lambda *x: tf.nn.log_softmax(mask_logits(*x))[:, 0],
        [[0.0, 1.0, np.nan]],
        [[True, True, False]],
    )
    p = 1 / (1 + np.e)
    np.testing.assert_allclose(to_logits, [[1 - p, p - 1, 0.0]], rtol=1e-5)


def test_means_of_columns_are_those_of_each(evaluate):
    x = [[1.0, 10.0], [100.0, np.nan], [4.0, 20.0], [-7.0, 1.0]]
    np.testing.assert_array_equal(evaluate(masked_column_means, x, MASK), [2.5, 15.0])
    np.testing.assert_array_equal(evaluate(masked_column_means, x[::2]), [2.5, 15.0])


@pytest.mark.parametrize("function", [masked_mean, mask_logits])
def test_mask_of_another_shape_is_refused(function):
    with tf.Graph().as_default(), pytest.raises(ValueError, match="`mask` must have the shape"):
        function(tf.zeros([4, 2]), tf.ones([4], tf.bool))


def test_mask_of_another_number_of_rows_is_refused():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="`mask` must have the rows"):
        masked_column_means(tf.zeros([1, 2]), tf.ones([4], tf.bool))
