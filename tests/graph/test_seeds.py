"""Seeds are handed out once each, and a stream can be continued elsewhere."""

import threading

import numpy as np
import pytest

from tfpolicy.graph.seeds import SeedStream, check_seed_states

GOOD = {"base": 3, "count": 4}


def test_seeds_are_int32_pairs_of_one_base_and_a_counter():
    stream = SeedStream(7, "acting")
    first, second = stream.next(), stream.next()
    assert first.dtype == np.int32 and first.shape == (2,)
    assert first[0] == second[0]
    assert (first[1], second[1]) == (0, 1)


def test_purposes_and_policy_seeds_have_bases_of_their_own():
    streams = [(0, "acting"), (0, "shuffling"), (1, "acting")]
    assert len({SeedStream(*stream).next()[0] for stream in streams}) == 3


def test_the_largest_policy_seed_stays_within_int32():
    seed = SeedStream(2**31 - 1, "acting").next()
    assert seed[0] >= 0


def test_a_stream_set_to_the_state_of_another_continues_it():
    first, second = SeedStream(1, "acting"), SeedStream(2, "acting")
    for _ in range(5):
        first.next()
    second.set_state(first.get_state())
    np.testing.assert_array_equal(first.next(), second.next())


def test_the_counter_starts_over_at_its_limit():
    stream = SeedStream(0, "acting")
    stream.set_state({"base": 1, "count": 2**31 - 1})
    assert [stream.next()[1] for _ in range(2)] == [2**31 - 1, 0]


def test_threads_never_get_the_same_seed():
    stream, counts = SeedStream(0, "acting"), []

    def take():
        counts.extend(int(stream.next()[1]) for _ in range(500))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(counts) == list(range(2000))


def test_the_latest_seed_given_back_is_handed_out_again():
    stream = SeedStream(0, "acting")
    stream.next()
    seed = stream.next()
    stream.give_back(seed)
    np.testing.assert_array_equal(stream.next(), seed)


def test_a_seed_given_back_after_a_later_one_stays_spent():
    stream = SeedStream(0, "acting")
    seed = stream.next()
    stream.next()
    stream.give_back(seed)
    assert stream.next()[1] == 2


@pytest.mark.parametrize(
    ("states", "text"),
    [
        (None, "that of acting, shuffling, got None"),
        ({}, "that of acting, shuffling"),
        ({"acting": GOOD}, "that of acting, shuffling"),
        ({"acting": GOOD, "shuffling": GOOD, "more": GOOD}, "that of acting, shuffling"),
        ({"acting": GOOD, "shuffling": 3}, "shuffling: expected base and count, got 3"),
        ({"acting": {"base": 1}, "shuffling": GOOD}, "acting: expected base and count"),
        (
            {"acting": {**GOOD, "count": -1}, "shuffling": GOOD},
            "`count` must be in 0 to .*, got -1",
        ),
        ({"acting": {**GOOD, "base": 2**31}, "shuffling": GOOD}, "`base` must be in 0 to"),
        ({"acting": {**GOOD, "base": 0.5}, "shuffling": GOOD}, "`base` must be in 0 to .* 0.5"),
        ({"acting": {**GOOD, "base": "1"}, "shuffling": GOOD}, "`base` must be in 0 to .* '1'"),
    ],
)
def test_states_that_no_stream_gave_are_refused(states, text):
    with pytest.raises(ValueError, match=text):
        check_seed_states(states, ["acting", "shuffling"])


def test_states_of_streams_pass_also_as_numpy_integers():
    states = {"acting": {"base": np.int64(3), "count": np.int32(0)}, "shuffling": GOOD}
    check_seed_states(states, ["acting", "shuffling"])
