"""Mean and variance of many rows, put together from those of parts of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# So many numbers are made float64 at a time.
_CHUNK_SIZE = 2**22


class Moments(NamedTuple):
    """What is known of rows that were seen.

    Attributes:
        num_rows: How many they are.
        mean: [...] float64; 0 if there are none.
        variance: [...] float64, the mean squared deviation from the mean; 0 if there are none.
    """

    num_rows: int
    mean: np.ndarray
    variance: np.ndarray


def row_moments(rows: np.ndarray) -> Moments:
    """Moments of `rows` [B, ...] of finite numbers.

    A dimension that is the same in all rows has exactly this value as its mean, and variance 0.
    """
    rows = np.asarray(rows)
    zeros = np.zeros(rows.shape[1:])
    moments = Moments(0, zeros, zeros)
    size = max(_CHUNK_SIZE // max(zeros.size, 1), 1)
    for start in range(0, len(rows), size):
        chunk = rows[start : start + size].astype(np.float64)
        # Large numbers that differ little would lose what they differ by.
        first = chunk[0].copy()
        chunk -= first
        offset = chunk.mean(axis=0)
        chunk -= offset
        variance = np.square(chunk, out=chunk).mean(axis=0)
        moments = merge_moments(moments, Moments(len(chunk), first + offset, variance))
    return moments


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Moments of the rows of both, without a row of them (Chan et al. 1979).

    n = n_a + n_b, δ = μ_b − μ_a, μ = μ_a + δ n_b / n, σ² = (n_a σ_a² + n_b σ_b²) / n + δ² n_a n_b /
    n². http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf
    """
    if a.num_rows == 0 or b.num_rows == 0:
        return a if b.num_rows == 0 else b
    num_rows = a.num_rows + b.num_rows
    share = b.num_rows / num_rows
    delta = b.mean - a.mean
    within = (1.0 - share) * a.variance + share * b.variance
    between = np.square(delta) * (share * (1.0 - share))
    return Moments(num_rows, a.mean + delta * share, within + between)
