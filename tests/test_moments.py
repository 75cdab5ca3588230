"""Moments of parts make the moments of the whole, to the last digits that there are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tfpolicy import moments
from tfpolicy.moments import Moments, merge_moments, row_moments


def chan_reference(m, t_a, s_a, n, t_b, s_b):
    """Sums T and sums of squared deviations S of m and n rows, as the paper has them."""
    return t_a + t_b, s_a + s_b + m / (n * (m + n)) * (n / m * t_a - t_b) ** 2


def assert_moments(found, rows, rtol=1e-12, atol=1e-12):
    rows = np.asarray(rows, np.float64)
    assert found.num_rows == len(rows)
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol, atol)
    np.testing.assert_allclose(found.variance, rows.var(axis=0), rtol, atol)


def test_moments_by_hand():
    # Of 1 and 3: 2 and 1. Of 7: 7 and 0. Of all three: 11/3, and (49 + 1 + 121 - 3 * (11/3)²) / 3.
    first, second = row_moments(np.array([[1.0], [3.0]])), row_moments(np.array([[7.0]]))
    assert first == Moments(2, np.array([2.0]), np.array([1.0]))
    assert second == Moments(1, np.array([7.0]), np.array([0.0]))
    both = merge_moments(first, second)
    assert both.num_rows == 3
    np.testing.assert_allclose(both.mean, [11 / 3])
    np.testing.assert_allclose(both.variance, [56 / 9])


def test_merging_is_the_papers_update_of_sums():
    rng = np.random.default_rng(0)
    a, b = rng.normal(2, 3, (7, 4)), rng.normal(-1, 5, (11, 4))
    total, squares = chan_reference(
        7, a.sum(axis=0), 7 * a.var(axis=0), 11, b.sum(axis=0), 11 * b.var(axis=0)
    )
    found = merge_moments(row_moments(a), row_moments(b))
    np.testing.assert_allclose(found.mean, total / 18)
    np.testing.assert_allclose(found.variance, squares / 18)


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 12), st.integers(1, 3)),
        elements=st.floats(-1e6, 1e6),
    ),
    st.integers(0, 12),
)
def test_parts_make_the_whole_wherever_it_is_cut(rows, cut):
    found = merge_moments(row_moments(rows[:cut]), row_moments(rows[cut:]))
    scale = max(np.abs(rows).max(), 1.0)
    assert_moments(found, rows, 1e-10, 1e-12 * scale**2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_nothing_added_to_moments_leaves_them(order):
    some, none = row_moments(np.array([[1.0, 2.0], [5.0, 0.0]])), row_moments(np.zeros((0, 2)))
    assert none.num_rows == 0 and none.variance.tolist() == [0.0, 0.0]
    pair = [some, none]
    assert merge_moments(*(pair[index] for index in order)) is some


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_rows_may_be_of_any_shape_and_dtype(shape, dtype):
    rows = np.random.default_rng(0).integers(0, 200, (5, *shape)).astype(dtype)
    kept = rows.copy()
    found = row_moments(rows)
    assert_moments(found, rows)
    assert found.mean.shape == shape and found.mean.dtype == np.float64
    np.testing.assert_array_equal(rows, kept)


def test_large_numbers_that_differ_little_keep_their_variance():
    rows = 1e9 + np.random.default_rng(0).normal(0, 1e-3, (1000, 1))
    found = merge_moments(row_moments(rows[:300]), row_moments(rows[300:]))
    assert found.variance == pytest.approx(rows.var(), rel=1e-6)


@pytest.mark.parametrize("value", [0.1, -1e30, 3e-12, 12345.678])
def test_a_constant_has_its_value_as_mean_and_no_variance(value):
    # 0.1 summed up and divided again is not 0.1.
    rows = np.full((1001, 1), value)
    found = row_moments(rows)
    for _ in range(3):
        found = merge_moments(found, row_moments(rows[:333]))
    assert found == Moments(2000, np.array([value]), np.array([0.0]))


def test_large_batches_are_taken_in_pieces(monkeypatch):
    rows = np.random.default_rng(0).normal(3, 2, (100, 2, 2))
    monkeypatch.setattr(moments, "_CHUNK_SIZE", 30)
    assert_moments(row_moments(rows), rows)
