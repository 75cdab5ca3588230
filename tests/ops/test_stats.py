import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.ops.stats import explained_variance, global_norm_clip, normalize, standardize


def explained_variance_of(values, targets):
    residuals = targets - values
    return explained_variance(
        residuals.mean(), (residuals**2).mean(), targets.mean(), (targets**2).mean()
    )


def test_explained_variance_equals_its_definition():
    rng = np.random.default_rng(0)
    targets = rng.normal(3, 2, 500)
    values = targets + rng.normal(1, 1, 500)
    expected = 1 - np.var(targets - values) / np.var(targets)
    assert explained_variance_of(values, targets) == pytest.approx(expected)


@pytest.mark.parametrize(
    "values, targets, expected",
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1.0),
        ([2.0, 3.0, 4.0], [1.0, 2.0, 3.0], 1.0),  # a constant offset is no variance
        ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0], 0.0),
        ([3.0, 2.0, 1.0], [1.0, 2.0, 3.0], -3.0),
        ([5.0, 5.0], [4.0, 4.0], 1.0),
        ([5.0, 6.0], [4.0, 4.0], 0.0),
    ],
)
def test_explained_variance_by_hand(values, targets, expected):
    result = explained_variance_of(np.array(values), np.array(targets))
    assert result == pytest.approx(expected)


def test_explained_variance_of_nan_is_nan():
    assert np.isnan(explained_variance(np.nan, np.nan, 0.0, 1.0))
    assert np.isnan(explained_variance(0.0, 1.0, np.nan, np.nan))


def test_rounding_of_float32_moments_is_no_variance():
    target = np.float32(1000.1)
    assert explained_variance(0.0, 0.0, target, target * target * (1 + np.float32(1e-7))) == 1.0


def test_standardized_rows_have_mean_0_and_deviation_1():
    x = np.random.default_rng(0).normal(5, 3, 1000).astype(np.float32)
    result = standardize(x)
    assert result.dtype == np.float32
    assert result.mean() == pytest.approx(0, abs=1e-6) and result.std() == pytest.approx(1)
    assert x.mean() == pytest.approx(5, abs=0.5)  # the argument is left alone


def test_standardize_leaves_padding_out(evaluate):  # i3
    result = standardize(np.float32([1.0, np.nan, 3.0, 99.0]), np.array([1, 0, 1, 0], bool))
    np.testing.assert_allclose(result, [-1.0, 0.0, 1.0, 0.0])


@pytest.mark.parametrize("x, expected", [([], []), ([7.0], [7.0]), ([2.0, 2.0], [0.0, 0.0])])
def test_standardize_of_no_deviation_is_finite(x, expected):  # i4
    np.testing.assert_allclose(standardize(np.float32(x)), expected)


def test_rounding_errors_are_not_standardized_to_size_1():
    result = standardize(np.float32([0.1, 0.1, 0.1 + 1e-8]) + np.float32(1e-8))
    assert np.abs(result).max() < 1e-3


def test_integers_are_standardized_as_floats():
    np.testing.assert_allclose(standardize(np.array([1, 3])), [-1.0, 1.0])


def test_gradients_above_the_norm_are_scaled_together(evaluate):  # c7
    # ‖(3, 4), 12‖ = 13
    clipped, norm = evaluate(lambda *g: global_norm_clip(g, 6.5), [3.0, 4.0], [12.0])
    assert norm == pytest.approx(13.0)
    np.testing.assert_allclose(clipped[0], [1.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], [6.0], rtol=1e-6)


@pytest.mark.parametrize("max_norm", [14.0, None])
def test_gradients_below_the_norm_stay(evaluate, max_norm):
    clipped, norm = evaluate(lambda *g: global_norm_clip(g, max_norm), [3.0, 4.0], [12.0])
    assert norm == pytest.approx(13.0)
    np.testing.assert_array_equal(np.concatenate(clipped), [3.0, 4.0, 12.0])


@pytest.mark.parametrize("max_norm", [1.0, None])
def test_missing_gradients_keep_their_places(max_norm):
    with tf.Graph().as_default():
        clipped, _ = global_norm_clip([None, tf.ones([2]), None], max_norm)
        assert [g is None for g in clipped] == [True, False, True]


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("nan")])
def test_norm_must_be_positive(max_norm):
    with tf.Graph().as_default(), pytest.raises(ValueError, match="`max_norm` must be positive"):
        global_norm_clip([tf.ones([2])], max_norm)


def normalized(evaluate, x, count=5, mean=0.0, variance=1.0, clip=10.0):
    """What `normalize` makes of x, whose dtype the evaluator would change."""
    moments = np.int64(count), np.float64(mean), np.float64(variance)
    return evaluate(lambda _: normalize(*map(tf.constant, (x, *moments)), clip), np.zeros(1))


def test_normalize_by_hand(evaluate):
    x = np.float32([[1.0, 10.0], [7.0, 10.5]])
    found = normalized(evaluate, x, mean=[3.0, 10.0], variance=[4.0, 0.0625])
    np.testing.assert_allclose(found, [[-1.0, 0.0], [2.0, 2.0]])


def test_normalize_without_moments_leaves_everything(evaluate):
    x = np.float32([[1e30, -50.0, 0.1]])
    found = normalized(evaluate, x, 0, np.zeros(3), np.zeros(3))
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("clip, expected", [(10.0, [10, -10, 3]), (0.5, [0.5, -0.5, 0.5])])
def test_normalize_clips(evaluate, clip, expected):
    x = np.float32([[1e6, -1e6, 3.0], [np.inf, -np.inf, 3.0]])
    found = normalized(evaluate, x, mean=np.zeros(3), variance=np.ones(3), clip=clip)
    np.testing.assert_array_equal(found, [expected, expected])


def test_normalize_need_not_clip(evaluate):
    found = normalized(evaluate, np.float32([[1e6]]), mean=[1.0], variance=[4.0], clip=None)
    np.testing.assert_allclose(found, [[499999.5]])


@pytest.mark.parametrize("variance", [0.0, 1e-20])
def test_normalize_only_shifts_what_does_not_vary(evaluate, variance):
    x = np.float32([[5.0], [5.5]])
    found = normalized(evaluate, x, mean=[5.0], variance=[variance], clip=None)
    np.testing.assert_array_equal(found, [[0.0], [0.5]])


@pytest.mark.parametrize("count", [0, 3])
def test_normalize_keeps_nan(evaluate, count):
    x = np.float32([[np.nan, 1.0]])
    found = normalized(evaluate, x, count, np.zeros(2), np.ones(2))
    np.testing.assert_array_equal(found, [[np.nan, 1.0]])


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32, np.uint32])
def test_normalize_tells_close_large_values_apart(evaluate, dtype):
    # In float32 both are 2e9.
    x = np.array([[2_000_000_001], [2_000_000_003]]).astype(dtype)
    found = normalized(evaluate, x, mean=[2e9], variance=[1.0])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [[1.0], [3.0]])


def test_normalize_takes_windows(evaluate):
    # [B, K, *D] against moments [*D].
    rows = np.random.default_rng(0).normal(3, 2, (4, 5, 2, 3)).astype(np.float32)
    mean, variance = rows.mean(axis=(0, 1)), rows.var(axis=(0, 1))
    found = normalized(evaluate, rows, mean=mean, variance=variance)
    np.testing.assert_allclose(found, (rows - mean) / np.sqrt(variance), rtol=1e-5, atol=1e-5)
