"""Batches become leaves: rows, or padded sequences that stay together."""

import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.graph.layout import TrainLayout, column_leaves

F, I8, I64 = tf.float32, tf.int8, tf.int64
SPECS = {
    "obs": {
        "b": tf.TensorSpec([2], F),
        "a": (tf.TensorSpec([], I64), tf.TensorSpec([3], tf.uint8)),
    },
    "rewards": tf.TensorSpec([], F),
}
SEQUENCES = {
    "obs": tf.TensorSpec([2], F),
    "state_in_0": tf.TensorSpec([4], F),
    "seq_lens": tf.TensorSpec([], tf.int32),
}


def batch(rows):
    return {
        "rewards": np.arange(rows, dtype=np.float32),
        "obs": {
            "a": (np.arange(rows), np.ones((rows, 3), np.uint8)),
            "b": np.zeros((rows, 2), np.float32),
        },
        "unread": np.zeros(1),
    }


def sequences():
    """Lengths 3, 1, 2 padded to 3; observations hold their row number, padding -1."""
    obs = np.float32([[0, 0], [1, 1], [2, 2], [3, 3], [-1, -1], [-1, -1], [4, 4], [5, 5], [-1, -1]])
    return {
        "obs": obs,
        "state_in_0": np.eye(3, 4, dtype=np.float32),
        "seq_lens": np.int32([3, 1, 2]),
    }


def test_leaves_are_those_of_tensorflows_flattening():
    layout = TrainLayout(SPECS)
    leaves = layout.leaves(batch(5))
    expected = tf.nest.flatten({name: batch(5)[name] for name in ("obs", "rewards")})
    assert len(leaves) == len(expected) == len(layout.unit_specs)
    for leaf, value, spec in zip(leaves, expected, layout.unit_specs, strict=True):
        np.testing.assert_array_equal(leaf, value)
        assert leaf.dtype == spec.dtype.as_numpy_dtype and leaf.shape[1:] == tuple(spec.shape)


def test_columns_of_the_right_dtype_are_not_copied():
    columns = batch(3)
    leaves = TrainLayout(SPECS).leaves(columns)
    assert any(leaf is columns["rewards"] for leaf in leaves)


def test_a_batch_without_a_column_names_missing_and_present_ones():
    with pytest.raises(KeyError, match="lacks what learning reads: obs, rewards. It has: x"):
        TrainLayout(SPECS).leaves({"x": np.zeros(2)})


def test_a_batch_without_rows_is_refused():
    with pytest.raises(ValueError, match="no rows"):
        TrainLayout(SPECS).leaves(batch(0))


@pytest.mark.parametrize(
    ("value", "spec", "expected"),
    [
        ([1.5, 2.5], tf.TensorSpec([], F), np.float32([1.5, 2.5])),
        (np.float64([1.5]), tf.TensorSpec([], F), np.float32([1.5])),
        (np.array([True, False]), tf.TensorSpec([], F), np.float32([1, 0])),
        (np.int64([1, 2]), tf.TensorSpec([], F), np.float32([1, 2])),
        (np.int64([-128, 127]), tf.TensorSpec([], I8), np.int8([-128, 127])),
        (np.uint8([200]), tf.TensorSpec([], I64), np.int64([200])),
        (np.int64([0, 255]), tf.TensorSpec([], tf.uint8), np.uint8([0, 255])),
        (np.array([True]), tf.TensorSpec([], I8), np.int8([1])),
        ([[1, 2]], tf.TensorSpec([2], I64), np.int64([[1, 2]])),
        ([], tf.TensorSpec([], F), np.zeros(0, np.float32)),
        (np.zeros((0, 2)), tf.TensorSpec([2], F), np.zeros((0, 2), np.float32)),
    ],
)
def test_values_are_cast_where_nothing_is_lost_but_precision(value, spec, expected):
    (leaf,) = column_leaves("x", value, spec)
    np.testing.assert_array_equal(leaf, expected)
    assert leaf.dtype == expected.dtype


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (np.zeros(4), tf.TensorSpec([4], F), r"expected shape \(B, 4\), got \(4,\)"),
        (np.float32(1), tf.TensorSpec([], F), r"expected shape \(B\), got \(\)"),
        (np.zeros((3, 4)), tf.TensorSpec([], F), r"expected shape \(B\), got \(3, 4\)"),
        (np.zeros(2), tf.TensorSpec([], I64), "expected int64, got float64"),
        (np.zeros(2, complex), tf.TensorSpec([], F), "expected float32, got complex128"),
        (np.array(["a"]), tf.TensorSpec([], F), "expected float32, got <U1"),
        (np.array([{}, {}]), tf.TensorSpec([], F), "expected float32, got object"),
        (np.int64([200]), tf.TensorSpec([], I8), "a value does not fit into int8"),
        (np.int64([-1]), tf.TensorSpec([], tf.uint8), "a value does not fit into uint8"),
        ({"b": 1}, SPECS["obs"], "expected the structure"),
        ((np.zeros(2),), SPECS["obs"], "expected the structure"),
        (np.zeros(2), SPECS["obs"], "expected the structure"),
    ],
)
def test_values_that_do_not_fit_are_named(value, spec, text):
    with pytest.raises(ValueError, match=f"Column `x`: {text}"):
        column_leaves("x", value, spec)


def test_rows_are_units_and_all_are_valid():
    layout = TrainLayout(SPECS)
    leaves = layout.leaves(batch(5))
    assert layout.rows_per_unit == 1
    assert layout.num_valid(leaves) == 5
    np.testing.assert_array_equal(layout.unit_rows(leaves), [1, 1, 1, 1, 1])
    assert layout.as_rows(leaves) == leaves


def test_sequences_are_units_and_only_their_steps_are_valid():
    layout = TrainLayout(SEQUENCES, max_seq_len=3)
    leaves = dict(zip(layout.specs, layout.leaves(sequences()), strict=True))
    assert layout.rows_per_unit == 3
    assert layout.num_valid(list(leaves.values())) == 6
    np.testing.assert_array_equal(layout.unit_rows(list(leaves.values())), [3, 1, 2])
    assert leaves["obs"].shape == (3, 3, 2)
    np.testing.assert_array_equal(leaves["obs"][1, :, 0], [3, -1, -1])
    assert leaves["state_in_0"].shape == (3, 4)
    shapes = [tuple(spec.shape) for spec in layout.unit_specs]
    assert shapes == [leaf.shape[1:] for leaf in leaves.values()]


def test_sequences_become_the_rows_that_a_loss_sees():
    layout = TrainLayout(SEQUENCES, max_seq_len=3)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        leaves = [tf.constant(leaf) for leaf in layout.leaves(sequences())]
        rows, count = session.run([layout.as_rows(leaves), layout.num_valid(leaves)])
    assert count == 6
    for name, found in zip(layout.specs, rows, strict=True):
        np.testing.assert_array_equal(found, sequences()[name])


def test_the_loss_sees_free_batch_dimensions():
    specs = TrainLayout(SEQUENCES, max_seq_len=3).batch_specs
    assert {name: spec.shape.as_list() for name, spec in specs.items()} == {
        "obs": [None, 2],
        "state_in_0": [None, 4],
        "seq_lens": [None],
    }
