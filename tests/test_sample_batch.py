import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpolicy.sample_batch import SampleBatch, concat_samples

# Episodes of lengths 4, 2, 5, 1, 3 (case j19), cut at four rows.
SEQ_LENS = [4, 2, 4, 1, 1, 3]
EPISODES = np.repeat([0, 1, 2, 3, 4], [4, 2, 5, 1, 3])


def batch_of(count, **columns):
    """A batch whose rows can be told apart in a flat, a nested and an object column."""
    rows = np.arange(count)
    return SampleBatch(
        obs=np.stack([rows, -rows], axis=1).astype(np.float32),
        nested={"a": rows * 2, "b": (rows * 3.0,)},
        infos=[{"row": i} for i in range(count)],
        **columns,
    )


def rows_of(batch):
    """Which rows of `batch_of` these are, after a check that all columns agree."""
    rows = batch["obs"][:, 0].astype(int)
    np.testing.assert_array_equal(batch["obs"][:, 1], -rows)
    np.testing.assert_array_equal(batch["nested"]["a"], rows * 2)
    np.testing.assert_array_equal(batch["nested"]["b"][0], rows * 3.0)
    assert [info["row"] for info in batch["infos"]] == rows.tolist()
    assert batch.count == len(rows)
    return rows.tolist()


# Making a batch and its mapping side


def test_names_of_columns_are_those_of_rllib():
    assert SampleBatch.OBS == "obs"
    assert SampleBatch.NEXT_OBS == "new_obs"
    assert SampleBatch.VALUE_TARGETS == "value_targets"


def test_columns_come_from_a_dict_or_by_name():
    batch = SampleBatch({"obs": [1, 2]}, rewards=[0.5, 1.0])
    assert list(batch) == ["obs", "rewards"]
    assert len(batch) == 2
    assert batch.count == 2
    np.testing.assert_array_equal(batch["rewards"], [0.5, 1.0])


def test_arrays_are_kept_and_not_copied():
    rewards = np.zeros(3, np.float32)
    assert SampleBatch(rewards=rewards)["rewards"] is rewards


def test_batch_of_a_batch_shares_arrays_but_not_the_mapping():
    first = SampleBatch(obs=[1, 2], seq_lens=[2])
    second = SampleBatch(first, rewards=[0.0, 1.0])
    assert second["obs"] is first["obs"]
    assert "rewards" not in first
    assert second["seq_lens"].tolist() == [2]


def test_empty_batch_has_no_rows():
    assert SampleBatch().count == 0
    assert SampleBatch({"obs": np.zeros((0, 3))}).count == 0


def test_missing_column_is_named_with_those_present():
    with pytest.raises(KeyError, match=r"No column `action` .*present: \['actions', 'obs'\]"):
        SampleBatch(obs=[1], actions=[2])["action"]
    with pytest.raises(KeyError, match="No column `x` to delete; present"):
        del SampleBatch(obs=[1])["x"]


def test_mapping_methods_work():
    batch = SampleBatch(obs=[1, 2])
    batch.update(rewards=[0.0, 1.0], t=[0, 1])
    assert batch.pop("t").tolist() == [0, 1]
    assert batch.get("t") is None
    assert {name: column.tolist() for name, column in batch.items()} == {
        "obs": [1, 2],
        "rewards": [0.0, 1.0],
    }
    assert "obs" in batch and "t" not in batch


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        # Case j9.
        ({"obs": [1, 2], "rewards": [1.0]}, r"`rewards`: expected 2 rows, as in \['obs'\], got 1"),
        ({"obs": 1.0}, "`obs`: .*got the scalar 1.0"),
        ({"obs": {"a": [1, 2], "b": [1]}}, "`obs`: expected arrays of equal length"),
        ({"obs": [[1, 2], [3]]}, "`obs`: expected rows of one shape"),
        # Case d14.
        ({"obs": [{"a": 1}, {"a": 2}]}, "`obs`: .*got one of Python objects"),
        ({"obs": np.array([None, None])}, "`obs`: .*got one of Python objects"),
        ({"obs": None}, "`obs`: .*scalar None"),
        ({"obs": [1, 2, 3], "seq_lens": [1, 1]}, r"`seq_lens`: .*in 3 rows, got \[1, 1\]"),
        ({"obs": [1, 2, 3], "seq_lens": [3, 0]}, r"positive lengths, got \[3, 0\]"),
        ({"obs": [1, 2, 3], "seq_lens": [1.5, 1.5]}, "`seq_lens`: expected integers"),
        ({"obs": [1, 2, 3], "seq_lens": 3}, "`seq_lens`: expected integers"),
    ],
)
def test_batch_refuses(columns, message):
    with pytest.raises(ValueError, match=message):
        SampleBatch(columns)


def test_name_of_a_column_must_be_a_string():
    with pytest.raises(TypeError, match="must be a string, got 3"):
        SampleBatch({3: [1]})


def test_setting_a_column_checks_its_length_and_leaves_the_batch_as_it_was():
    batch = SampleBatch(obs=[1, 2], rewards=[0.0, 1.0])
    with pytest.raises(ValueError, match="`obs`: expected 2 rows"):
        batch["obs"] = [1, 2, 3]
    with pytest.raises(ValueError, match="`seq_lens`: expected the lengths"):
        batch["seq_lens"] = [3]
    assert batch["obs"].tolist() == [1, 2]
    assert "seq_lens" not in batch


def test_only_column_may_be_replaced_by_a_longer_one():
    batch = SampleBatch(obs=[1, 2])
    batch["obs"] = [1, 2, 3]
    assert batch.count == 3
    del batch["obs"]
    assert batch.count == 0
    batch["rewards"] = [1.0]
    assert batch.count == 1


def test_seq_lens_become_int32_and_may_come_first():
    batch = SampleBatch({"seq_lens": np.array([1, 2], np.int64), "obs": [1, 2, 3]})
    assert batch["seq_lens"].dtype == np.int32


def test_dones_read_as_the_union_of_both_ends():
    batch = SampleBatch(terminateds=[True, False, False], truncateds=[False, True, False])
    assert batch["dones"].tolist() == [True, True, False]
    assert "dones" in batch
    assert list(batch) == ["terminateds", "truncateds"]


def test_dones_without_truncateds_are_the_terminateds():
    assert SampleBatch(terminateds=[True, False])["dones"].tolist() == [True, False]


def test_stored_dones_are_read_as_they_are():
    batch = SampleBatch(terminateds=[True, False], dones=[False, True])
    assert batch["dones"].tolist() == [False, True]
    with pytest.raises(KeyError, match="No column `dones`"):
        SampleBatch(obs=[1])["dones"]


def test_repr_shows_rows_and_columns_but_no_data():
    assert repr(SampleBatch(obs=np.zeros((2, 99)))) == "SampleBatch(2 rows: ['obs'])"


def test_batch_survives_pickling():
    batch = pickle.loads(pickle.dumps(batch_of(15, seq_lens=SEQ_LENS)))
    assert rows_of(batch) == list(range(15))
    assert batch["seq_lens"].tolist() == SEQ_LENS


# Rows


def test_rows_are_dicts_without_seq_lens():
    rows = list(batch_of(3, seq_lens=[2, 1]).rows())
    assert [row["infos"] for row in rows] == [{"row": 0}, {"row": 1}, {"row": 2}]
    assert rows[2]["nested"] == {"a": 4, "b": (6.0,)}
    assert rows[0].keys() == {"obs", "nested", "infos"}


@pytest.mark.parametrize(
    "part",
    [
        slice(1, 3),
        slice(None, 2),
        slice(3, None),
        slice(-2, None),
        slice(0, -1),
        slice(2, 99),
        slice(5, 9),
        # Case j9: empty, and not the tail.
        slice(2, 0),
        slice(None, None, 1),
    ],
)
def test_slice_follows_the_rules_of_lists(part):
    assert rows_of(batch_of(5)[part]) == list(range(5))[part]
    assert rows_of(batch_of(5).slice(part.start, part.stop)) == list(range(5))[part]


def test_slice_is_a_view():
    batch = SampleBatch(obs=np.zeros(5))
    assert np.shares_memory(batch[1:3]["obs"], batch["obs"])


def test_slice_with_a_step_is_refused():
    with pytest.raises(ValueError, match="sliced with step 1, got 2; use `take`"):
        batch_of(5)[::2]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 15, SEQ_LENS), (1, 5, [3, 1]), (7, 9, [2]), (10, 99, [1, 1, 3]), (5, 5, [])],
)
def test_slice_across_sequences_recomputes_their_lengths(start, end, expected):
    part = batch_of(15, seq_lens=SEQ_LENS)[start:end]
    assert part["seq_lens"].tolist() == expected
    assert part["seq_lens"].dtype == np.int32
    assert part["seq_lens"].sum() == part.count


def test_take_gives_rows_in_the_order_asked_for():
    assert rows_of(batch_of(5).take([3, 0, 3])) == [3, 0, 3]
    assert rows_of(batch_of(5).take([])) == []


def test_take_refuses_sequences_masks_and_rows_beyond_the_end():
    with pytest.raises(ValueError, match="without `seq_lens`"):
        batch_of(15, seq_lens=SEQ_LENS).take([0])
    with pytest.raises(ValueError, match=r"`indices`: expected integers \[K\], got int64"):
        batch_of(5).take([[0]])
    with pytest.raises(ValueError, match=r"`indices`: expected integers \[K\], got bool"):
        batch_of(2).take([True, False])
    with pytest.raises(IndexError):
        batch_of(5).take([5])


def test_shuffle_moves_whole_rows_and_leaves_the_batch_alone():
    batch = batch_of(30)
    shuffled = batch.shuffle(np.random.default_rng(0))
    assert rows_of(shuffled) != list(range(30))
    assert sorted(rows_of(shuffled)) == list(range(30))
    assert rows_of(batch) == list(range(30))
    assert rows_of(batch.shuffle(np.random.default_rng(0))) == rows_of(shuffled)


def test_shuffle_moves_whole_sequences():
    batch = batch_of(15, seq_lens=SEQ_LENS)
    shuffled = batch.shuffle(np.random.default_rng(1))
    assert shuffled["seq_lens"].tolist() != SEQ_LENS
    ends = np.cumsum(SEQ_LENS)
    sequences = {tuple(range(b - n, b)) for n, b in zip(SEQ_LENS, ends, strict=True)}
    new_ends = np.cumsum(shuffled["seq_lens"])
    rows = rows_of(shuffled)
    found = {tuple(rows[b - n : b]) for n, b in zip(shuffled["seq_lens"], new_ends, strict=True)}
    assert found == sequences


@pytest.mark.parametrize("column", ["eps_id", "terminateds", "dones"])
def test_split_by_episode(column):
    last = np.append(EPISODES[1:] != EPISODES[:-1], True)
    values = {"eps_id": EPISODES, "terminateds": last, "dones": last}[column]
    episodes = batch_of(15, **{column: values}, seq_lens=SEQ_LENS).split_by_episode()
    assert [rows_of(episode) for episode in episodes] == [
        [0, 1, 2, 3],
        [4, 5],
        [6, 7, 8, 9, 10],
        [11],
        [12, 13, 14],
    ]
    assert [episode["seq_lens"].tolist() for episode in episodes] == [[4], [2], [4, 1], [1], [3]]


def test_split_by_episode_trusts_eps_id_and_keeps_a_last_part_without_end():
    batch = batch_of(4, eps_id=[7, 7, 3, 3], terminateds=[True, False, False, False])
    assert [rows_of(part) for part in batch.split_by_episode()] == [[0, 1], [2, 3]]
    batch = batch_of(3, terminateds=[False] * 3, truncateds=[True, False, False])
    assert [rows_of(part) for part in batch.split_by_episode()] == [[0], [1, 2]]


def test_split_by_episode_of_no_rows_is_empty_and_needs_a_column():
    assert SampleBatch(eps_id=np.zeros(0, int)).split_by_episode() == []
    with pytest.raises(KeyError, match="No column `dones`"):
        batch_of(3).split_by_episode()


def test_timeslices_end_with_what_is_left_over():
    # Case j8.
    parts = batch_of(7).timeslices(2)
    assert [part.count for part in parts] == [2, 2, 2, 1]
    assert sum((rows_of(part) for part in parts), []) == list(range(7))
    with pytest.raises(ValueError, match="`size` must be positive, got 0"):
        batch_of(7).timeslices(0)


def test_copy_shares_nothing():
    batch = batch_of(3)
    copied = batch.copy()
    copied["obs"][:] = 9
    copied["nested"]["a"][:] = 9
    copied["infos"][0]["row"] = 9
    copied["rewards"] = [0.0] * 3
    assert rows_of(batch) == [0, 1, 2]
    assert "rewards" not in batch


# Concatenation


def test_concat_puts_rows_one_after_the_other():
    batch = batch_of(5)
    assert rows_of(batch[:2].concat(batch[2:])) == list(range(5))
    assert rows_of(concat_samples([batch[4:], batch[:1], batch[1:1]])) == [4, 0]
    assert rows_of(SampleBatch.concat_samples([batch])) == list(range(5))


def test_concat_shares_no_memory_with_its_parts():
    batch = SampleBatch(obs=np.zeros(2))
    assert not np.shares_memory(concat_samples([batch])["obs"], batch["obs"])


def test_concat_takes_plain_dicts_and_a_generator():
    whole = SampleBatch(obs=[1]).concat({"obs": [2, 3]})
    assert whole["obs"].tolist() == [1, 2, 3]
    assert concat_samples({"obs": [i]} for i in range(3))["obs"].tolist() == [0, 1, 2]


def test_concat_joins_sequences():
    whole = concat_samples([batch_of(3, seq_lens=[2, 1]), batch_of(2, seq_lens=[2])])
    assert whole["seq_lens"].tolist() == [2, 1, 2]
    assert whole["seq_lens"].dtype == np.int32
    assert whole.count == 5


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 15), max_size=4).map(sorted))
def test_slices_concatenate_to_the_whole(cuts):
    batch = batch_of(15, seq_lens=SEQ_LENS)
    edges = [0, *cuts, 15]
    whole = concat_samples([batch[a:b] for a, b in zip(edges, edges[1:], strict=False)])
    assert rows_of(whole) == list(range(15))
    assert whole["seq_lens"].sum() == 15


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "expected at least one batch, got none"),
        # Case j9: dropped by none.
        (
            [{"obs": [1], "t": [0]}, {"obs": [1], "rewards": [0.0]}],
            r"in batch 1 none of \['t'\] but also \['rewards'\]",
        ),
        ([{"obs": {"a": [1]}}, {"obs": {"b": [1]}}], "Column `obs` cannot be .*dict of"),
        ([{"obs": [[1, 2]]}, {"obs": [[1]]}], "Column `obs` cannot be concatenated"),
    ],
)
def test_concat_refuses(samples, message):
    with pytest.raises(ValueError, match=message):
        concat_samples(samples)


# Padding


def test_right_zero_pad_of_the_worked_example():
    batch = SampleBatch(obs=np.arange(1, 16), state_in_0=np.ones((15, 2)), seq_lens=SEQ_LENS)
    padded = batch.right_zero_pad(4)
    np.testing.assert_array_equal(
        padded["obs"].reshape(6, 4),
        [
            [1, 2, 3, 4],
            [5, 6, 0, 0],
            [7, 8, 9, 10],
            [11, 0, 0, 0],
            [12, 0, 0, 0],
            [13, 14, 15, 0],
        ],
    )
    assert padded["seq_lens"].tolist() == SEQ_LENS
    assert padded["state_in_0"].shape == (24, 2)
    assert (padded.count, padded.max_seq_len) == (24, 4)
    assert (batch.count, batch.max_seq_len) == (15, None)


def test_padded_batch_keeps_its_sequences_whole():
    padded = SampleBatch(obs=np.arange(1, 16), seq_lens=SEQ_LENS).right_zero_pad(4)
    assert padded[4:12]["seq_lens"].tolist() == [2, 4]
    assert padded[4:12]["obs"].tolist() == [5, 6, 0, 0, 7, 8, 9, 10]
    assert [part["seq_lens"].tolist() for part in padded.timeslices(16)] == [[4, 2, 4, 1], [1, 3]]
    whole = padded[:8].concat(padded[8:])
    np.testing.assert_array_equal(whole["obs"], padded["obs"])
    assert whole.max_seq_len == padded.copy().max_seq_len == SampleBatch(padded).max_seq_len == 4
    shuffled = padded.shuffle(np.random.default_rng(0))
    np.testing.assert_array_equal(
        np.count_nonzero(shuffled["obs"].reshape(6, 4), axis=1), shuffled["seq_lens"]
    )


def test_padded_batch_takes_columns_of_its_padded_length():
    padded = SampleBatch(obs=np.arange(3), seq_lens=[2, 1]).right_zero_pad(2)
    padded["advantages"] = np.zeros(4)
    padded["seq_lens"] = [1, 1]
    for wrong in ([3, 1], [2, 1, 1]):
        with pytest.raises(ValueError, match=r"in 4 rows padded to 2, got"):
            padded["seq_lens"] = wrong


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda padded: padded[1:4], "cut at multiples of 4, got 1:4"),
        (lambda padded: padded.split_by_episode(), "expects an unpadded batch"),
        (lambda padded: padded.right_zero_pad(5), "padded already, to 4 rows"),
        (lambda padded: padded.take([0]), "without `seq_lens`"),
        (
            lambda padded: padded.concat(SampleBatch(obs=[1], eps_id=[0], seq_lens=[1])),
            "expected one padded length",
        ),
    ],
)
def test_padded_batch_refuses(call, message):
    padded = SampleBatch(obs=np.arange(15), eps_id=EPISODES, seq_lens=SEQ_LENS).right_zero_pad(4)
    with pytest.raises(ValueError, match=message):
        call(padded)


def test_padding_needs_sequences_that_fit():
    with pytest.raises(KeyError, match="No column `seq_lens`"):
        SampleBatch(obs=[1]).right_zero_pad(4)
    with pytest.raises(ValueError, match="at most `max_seq_len` = 3, got 4"):
        SampleBatch(obs=np.arange(15), seq_lens=SEQ_LENS).right_zero_pad(3)


def test_padded_batch_without_seq_lens_is_a_plain_one():
    padded = SampleBatch(obs=np.arange(3), seq_lens=[2, 1]).right_zero_pad(2)
    del padded["seq_lens"]
    assert padded.max_seq_len is None
    assert padded[1:2]["obs"].tolist() == [1]


def test_padded_batch_that_lost_its_last_column_starts_afresh():
    padded = SampleBatch(obs=np.arange(3), seq_lens=[2, 1]).right_zero_pad(2)
    del padded["obs"]
    assert (list(padded), padded.count, padded.max_seq_len) == ([], 0, None)
