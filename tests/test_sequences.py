"""Episodes of lengths 4, 2, 5, 1, 3 (case j19) at `max_seq_len` 4 are the worked example."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpolicy.sequences import (
    as_seq_lens,
    lengths_within,
    mask,
    overlapping_sequences,
    pad,
    pad_batch,
    padded_sequences,
    rows_in_order,
    sequence_lengths,
)

ENDS = np.array([0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1], dtype=bool)
# The episode of five rows is cut into four and one.
SEQ_LENS = [4, 2, 4, 1, 1, 3]


def slow_sequence_lengths(ends, max_seq_len):
    lengths, length = [], 0
    for i, end in enumerate(ends):
        length += 1
        if end or length == max_seq_len or i + 1 == len(ends):
            lengths.append(length)
            length = 0
    return lengths


def test_episodes_are_cut_at_their_ends_and_at_the_longest_length():
    lengths = sequence_lengths(ENDS, max_seq_len=4)
    np.testing.assert_array_equal(lengths, SEQ_LENS)
    assert lengths.dtype == np.int32


@pytest.mark.parametrize(
    ("ends", "max_seq_len", "expected"),
    [
        ([], 4, []),
        ([False], 4, [1]),
        ([False] * 8, 4, [4, 4]),
        ([False] * 9, 4, [4, 4, 1]),
        ([True] * 3, 4, [1, 1, 1]),
        ([False, False, True, False], 10, [3, 1]),
        ([False, False, True, False], 1, [1, 1, 1, 1]),
    ],
)
def test_sequence_lengths_of(ends, max_seq_len, expected):
    assert sequence_lengths(ends, max_seq_len).tolist() == expected


@given(ends=st.lists(st.booleans(), max_size=30), max_seq_len=st.integers(1, 7))
def test_sequence_lengths_equal_counting_row_by_row(ends, max_seq_len):
    assert sequence_lengths(ends, max_seq_len).tolist() == slow_sequence_lengths(ends, max_seq_len)


def test_mask_is_false_on_padding():
    np.testing.assert_array_equal(
        mask(SEQ_LENS, 4).reshape(6, 4).astype(int),
        [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]],
    )


def test_sequences_are_padded_on_the_right():
    padded = pad(np.arange(1, 16), SEQ_LENS, 4)
    np.testing.assert_array_equal(
        padded.reshape(6, 4),
        [
            [1, 2, 3, 4],
            [5, 6, 0, 0],
            [7, 8, 9, 10],
            [11, 0, 0, 0],
            [12, 0, 0, 0],
            [13, 14, 15, 0],
        ],
    )


def test_padding_reaches_the_agreed_length_and_not_only_the_longest_sequence():
    # Case d12.
    np.testing.assert_array_equal(pad(np.arange(1, 6), [3, 2], 4), [1, 2, 3, 0, 4, 5, 0, 0])


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 5), max_size=8), extra=st.integers(0, 3))
def test_rows_survive_padding_in_order(lengths, extra):
    rows = np.arange(2 * sum(lengths), dtype=np.float32).reshape(-1, 2) + 1
    max_seq_len = max(lengths, default=1) + extra
    padded, valid = pad(rows, lengths, max_seq_len), mask(lengths, max_seq_len)
    np.testing.assert_array_equal(padded[valid], rows)
    assert not padded[~valid].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_])
def test_padding_keeps_the_dtype(dtype):
    assert pad(np.ones((3, 2), dtype), [1, 2], 2).dtype == dtype


def test_nested_columns_are_padded_array_by_array():
    padded = pad({"a": np.array([1, 2, 3]), "b": (np.array([[4], [5], [6]]),)}, [1, 2], 2)
    np.testing.assert_array_equal(padded["a"], [1, 0, 2, 3])
    np.testing.assert_array_equal(padded["b"][0], [[4], [0], [5], [6]])


def test_infos_are_padded_with_empty_dicts():
    # Case d14: one structure in all rows.
    infos = np.array([{"x": 1}, {"x": 2}, {"x": 3}])
    assert pad(infos, [1, 2], 2).tolist() == [{"x": 1}, {}, {"x": 2}, {"x": 3}]


def test_a_padded_batch_starts_each_sequence_from_its_first_state():
    batch = {
        "obs": np.arange(1, 16),
        "rewards": np.ones(15, np.float32),
        "state_in_0": np.arange(30).reshape(15, 2),
        "state_out_0": np.arange(30).reshape(15, 2),
        "seq_lens": SEQ_LENS,
    }
    padded = pad_batch(batch, 4)
    assert padded.keys() == batch.keys()
    np.testing.assert_array_equal(padded["seq_lens"], SEQ_LENS)
    assert padded["seq_lens"].dtype == np.int32
    np.testing.assert_array_equal(padded["obs"], pad(batch["obs"], SEQ_LENS, 4))
    # The sequences begin at rows 0, 4, 6, 10, 11, 12.
    np.testing.assert_array_equal(
        padded["state_in_0"], [[0, 1], [8, 9], [12, 13], [20, 21], [22, 23], [24, 25]]
    )
    assert padded["state_out_0"].shape == (24, 2)
    assert batch["seq_lens"] is SEQ_LENS


def test_an_empty_batch_is_padded_to_no_rows():
    padded = pad_batch({"obs": np.zeros((0, 3)), "seq_lens": []}, 4)
    assert padded["obs"].shape == (0, 3)
    assert padded["seq_lens"].shape == (0,)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 15, [4, 2, 4, 1, 1, 3]),
        (1, 5, [3, 1]),
        (7, 9, [2]),
        (4, 6, [2]),
        (10, 13, [1, 1, 1]),
        (3, 3, []),
    ],
)
def test_lengths_within_rows(start, end, expected):
    lengths = lengths_within(np.array(SEQ_LENS), start, end)
    assert lengths.tolist() == expected
    assert lengths.dtype == np.int32


def test_rows_in_order_move_whole_sequences():
    np.testing.assert_array_equal(
        rows_in_order(np.array([3, 1, 2]), np.array([2, 0, 1])), [4, 5, 0, 1, 2, 3]
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sequence_lengths(ENDS, 0), "`max_seq_len` must be positive, got 0"),
        (lambda: sequence_lengths(ENDS[None], 4), r"`ends`: expected shape \[B\], got \(1, 15\)"),
        (lambda: mask([5], 4), "at most `max_seq_len` = 4, got 5"),
        (lambda: mask([2, 0], 4), r"positive lengths, got \[2, 0\]"),
        (lambda: mask([2], 0), "`max_seq_len` must be positive"),
        (lambda: as_seq_lens([[2]]), r"expected integers \[S\], got int64 of shape \(1, 1\)"),
        (lambda: as_seq_lens([1.5]), r"expected integers \[S\], got float64"),
        (lambda: pad(np.zeros(4), [3, 2], 4), "Expected 5 rows, the sum of `seq_lens`, got 4"),
        (
            lambda: pad_batch({"obs": np.zeros(4), "seq_lens": [3, 2]}, 4),
            "Column `obs`: expected 5 rows, the sum of `seq_lens`, got 4",
        ),
    ],
)
def test_sequences_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_padding_a_batch_needs_seq_lens():
    with pytest.raises(KeyError, match=r"No column `seq_lens` to pad by; present: \['obs'\]"):
        pad_batch({"obs": np.zeros(4)}, 4)


def slow_overlapping_sequences(ends, max_seq_len, burn_in):
    rows, lengths, warms_up = [], [], []
    first = 0
    for last in np.flatnonzero([*ends[:-1], True] if len(ends) else []):
        learned = first
        while learned <= last:
            start = learned if learned == first else learned - burn_in
            stop = min(start + max_seq_len, last + 1)
            rows += range(start, stop)
            lengths.append(stop - start)
            warms_up += [row < learned for row in range(start, stop)]
            learned = stop
        first = last + 1
    return rows, lengths, warms_up


@given(
    ends=st.lists(st.booleans(), max_size=40),
    max_seq_len=st.integers(1, 6),
    burn_in=st.integers(0, 5),
)
def test_each_row_is_learned_from_once_and_warmed_up_by_rows_of_its_episode(
    ends, max_seq_len, burn_in
):
    burn_in = min(burn_in, max_seq_len - 1)
    rows, lengths, warms_up = overlapping_sequences(np.array(ends, bool), max_seq_len, burn_in)
    expected = slow_overlapping_sequences(ends, max_seq_len, burn_in)
    assert (rows.tolist(), lengths.tolist(), warms_up.tolist()) == expected
    assert rows[~warms_up].tolist() == list(range(len(ends)))
    if burn_in == 0:
        assert lengths.tolist() == sequence_lengths(ends, max_seq_len).tolist()


def test_rows_that_warm_up_are_marked_and_bring_the_state_before_them():
    batch = {
        "terminateds": ENDS,
        "truncateds": np.zeros(15, bool),
        "obs": np.arange(15),
        "state_in_0": np.arange(15)[:, None],
    }
    padded = padded_sequences(batch, max_seq_len=4, burn_in=2)
    # The episode of five rows: 6 to 9, then 10 after 8 and 9 once more.
    assert padded["seq_lens"].tolist() == [4, 2, 4, 3, 1, 3]
    assert padded["obs"].reshape(6, 4)[2:4].tolist() == [[6, 7, 8, 9], [8, 9, 10, 0]]
    assert padded["burn_in"].reshape(6, 4)[3].tolist() == [True, True, False, False]
    assert padded["burn_in"].sum() == 2
    assert padded["state_in_0"][:, 0].tolist() == [0, 4, 6, 8, 11, 12]
    given_lengths = {**batch, "seq_lens": SEQ_LENS}
    assert not padded_sequences(given_lengths, 4, 2)["burn_in"].any()
    assert "burn_in" not in padded_sequences(given_lengths, 4)
