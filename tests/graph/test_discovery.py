"""What hooks read is found by running them once."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.graph.discovery import columns_read, recording_batch, sample_rows
from tfpolicy.sample_batch import SampleBatch, concat_samples

S = gym.spaces
SPACE = S.Dict({"x": S.Box(-1, 1, (2,), np.float64), "n": S.Tuple((S.Discrete(5, start=3),))})
COLUMNS = {
    "obs": {"x": np.zeros((4, 2))},
    "rewards": np.zeros(4, np.float32),
    "terminateds": np.zeros(4, bool),
    "truncateds": np.zeros(4, bool),
    "eps_id": np.array([0, 0, 1, 1]),
    "prev_rewards": np.zeros(4, np.float32),
}
SPECS = {
    "obs": tf.TensorSpec([2], tf.float32),
    "actions": tf.TensorSpec([], tf.int64),
    "rewards": tf.TensorSpec([], tf.float32),
    "terminateds": tf.TensorSpec([], tf.bool),
    "truncateds": tf.TensorSpec([], tf.bool),
    "seq_lens": tf.TensorSpec([], tf.int32),
}


def test_rows_are_drawn_from_the_space_and_repeatably():  # d8
    rows, again, other = (sample_rows(SPACE, 50, seed) for seed in (1, 1, 2))
    assert rows["x"].shape == (50, 2) and rows["x"].dtype == np.float64
    assert set(rows["n"][0]) == {3, 4, 5, 6, 7}
    assert np.abs(rows["x"]).min() > 0
    np.testing.assert_array_equal(rows["x"], again["x"])
    assert (rows["x"] != other["x"]).all()


def test_rows_of_a_space_bounded_by_the_largest_numbers_stay_where_sums_are_finite():
    largest = np.finfo(np.float32).max
    low = np.float32([-largest, 1e5, 0.0])
    rows = sample_rows(S.Box(low, np.float32(largest), dtype=np.float32), 20, 0)
    assert np.isin(np.abs(rows), np.float32([1e4, 1e5])).all()
    assert (rows >= low).all()


def test_drawing_leaves_the_spaces_own_random_numbers_alone():
    space = S.Box(-1, 1, (2,))
    space.seed(7)
    expected = space.sample()
    space.seed(7)
    sample_rows(space, 3, 0)
    np.testing.assert_array_equal(space.sample(), expected)


def written_copy(batch):
    copied = SampleBatch(batch)
    copied["new"] = copied["rewards"] * 2
    return copied


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda b: b["rewards"], {"rewards"}),
        (lambda b: b.get("rewards"), {"rewards"}),
        (lambda b: b["obs"]["x"], {"obs"}),
        (lambda b: b["dones"], {"terminateds", "truncateds"}),
        (lambda b: written_copy(b), {"rewards"}),
        (lambda b: SampleBatch(SampleBatch(b))["rewards"], {"rewards"}),
        (lambda b: b[1:3]["rewards"], {"rewards"}),
        (lambda b: SampleBatch(b)[1:3]["rewards"], {"rewards"}),
        (lambda b: b.take([2, 0])["rewards"], {"rewards"}),
        (lambda b: b.copy()["rewards"], {"rewards"}),
        (lambda b: b.timeslices(2)[1]["rewards"], {"rewards"}),
        (lambda b: b.split_by_episode()[0]["rewards"], {"rewards", "eps_id"}),
        (lambda b: dict(b), set(COLUMNS)),
        (lambda b: list(b.items()), set(COLUMNS)),
        (lambda b: next(b.rows())["rewards"], set(COLUMNS)),
        (lambda b: concat_samples([b, b]), set(COLUMNS)),
        (lambda b: b.__delitem__("rewards"), {"rewards"}),
        (lambda b: SampleBatch(b).pop("rewards"), {"rewards"}),
    ],
    ids=[
        "item", "get", "nested", "dones", "written copy", "copy of a copy", "slice",
        "slice of a copy", "take", "copy", "timeslices", "episodes", "dict", "items", "rows",
        "concat", "del", "pop",
    ],
)  # fmt: skip
def test_reads_are_noted_from_a_batch_and_from_what_is_made_of_it(use, expected):
    batch, reads = recording_batch(COLUMNS)
    use(batch)
    assert set(reads) & set(COLUMNS) == expected


@pytest.mark.parametrize(
    "use",
    [
        lambda b: list(b),
        lambda b: len(b),
        lambda b: b.count,
        lambda b: "rewards" in b,
        lambda b: SampleBatch(b),
        lambda b: b[0:2],
        lambda b: b.__setitem__("rewards", np.ones(4)),
        repr,
    ],
)
def test_looking_at_names_and_sizes_or_writing_reads_nothing(use):
    batch, reads = recording_batch(COLUMNS)
    use(batch)
    assert set(reads) == set()


def test_the_columns_that_a_loss_reads_are_found_and_its_operations_thrown_away():
    def loss(batch):
        return tf.reduce_sum(batch["obs"]) * batch["rewards"] * batch.coefficients["c"]

    with tf.Graph().as_default() as graph:
        found = columns_read(loss, SPECS, {"c": 2.0}, None)
        assert graph.get_operations() == []
    assert found == ["obs", "rewards"]


def test_ends_are_read_as_dones_and_lengths_only_with_sequences():
    with tf.Graph().as_default():
        assert columns_read(lambda b: b["dones"], SPECS, {}, None) == ["terminateds", "truncateds"]
        assert columns_read(lambda b: b.mean(b["rewards"]), SPECS, {}, None) == ["rewards"]
        found = columns_read(lambda b: b.mean(b["rewards"]), SPECS, {}, 3)
        assert set(found) >= {"rewards", "seq_lens"} and "actions" not in found


def test_a_column_that_nothing_offers_is_named_with_the_nearest():
    with tf.Graph().as_default(), pytest.raises(KeyError, match="Did you mean 'rewards'"):
        columns_read(lambda b: b["reward"], SPECS, {}, None)
