"""What several threads ask at once goes in few requests, and each gets its own rows."""

import collections
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.export.inference import Signature
from tfpolicy.serving.errors import ServerUnavailableError, SignatureError
from tfpolicy.serving.joining import JoinedRequests
from tfpolicy.serving.transport import Endpoint

SPEC = {"x": tf.TensorSpec([None, 2], tf.float32)}


def endpoint():
    return Endpoint(None, "double", Signature(SPEC, {"y": SPEC["x"]}))


class Doubler:
    """Doubles rows once the gate is open; refuses requests that hold a NaN."""

    def __init__(self):
        self.sizes = []
        self.gate = threading.Event()
        self.gate.set()
        self.busy = threading.Event()
        self.errors = collections.deque()  # Of the next requests, `None` for one that succeeds.

    def __call__(self, endpoint, inputs):
        self.sizes.append(len(inputs["x"]))
        self.busy.set()
        self.gate.wait()
        error = self.errors.popleft() if self.errors else None
        if error:
            raise error
        if np.isnan(inputs["x"]).any():
            raise SignatureError("a NaN")
        return {"y": 2 * inputs["x"]}


def rows(count, value):
    return {"x": np.full((count, 2), value, np.float32)}


def gathered(doubler, joined, target, calls):
    """The futures of calls of which the first was under way while the others came."""
    doubler.gate.clear()
    pool = ThreadPoolExecutor(len(calls))
    futures = [pool.submit(joined, target, calls[0])]
    doubler.busy.wait()
    futures += [pool.submit(joined, target, call) for call in calls[1:]]
    waiting = joined._waiting[target]
    while sum(part.num_rows for part in waiting) < sum(len(call["x"]) for call in calls[1:]):
        pass
    doubler.gate.set()
    pool.shutdown(wait=False)
    return futures


def test_what_gathers_while_a_request_is_under_way_goes_together():
    doubler = Doubler()
    joined = JoinedRequests(doubler, max_rows=100)
    calls = [rows(size, size) for size in (1, 3, 2, 5)]
    futures = gathered(doubler, joined, endpoint(), calls)
    for call, future in zip(calls, futures, strict=True):
        np.testing.assert_array_equal(future.result()["y"], 2 * call["x"])
    assert doubler.sizes == [1, 10]


def test_no_request_has_more_rows_than_may_be():
    doubler = Doubler()
    joined = JoinedRequests(doubler, max_rows=4)
    calls = [rows(1, 0), rows(3, 1), rows(2, 2), rows(11, 3)]
    calls[3]["x"] += np.arange(11, dtype=np.float32)[:, None]
    futures = gathered(doubler, joined, endpoint(), calls)
    for call, future in zip(calls, futures, strict=True):
        np.testing.assert_array_equal(future.result()["y"], 2 * call["x"])
    assert max(doubler.sizes) <= 4 and sum(doubler.sizes) == 17


def test_a_call_of_no_rows_is_a_request_of_none():
    joined = JoinedRequests(Doubler(), max_rows=4)
    assert joined(endpoint(), rows(0, 0))["y"].shape == (0, 2)


def test_endpoints_do_not_mix():
    doubler = Doubler()
    joined = JoinedRequests(doubler, max_rows=100)
    one, two = endpoint(), endpoint()
    doubler.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(joined, target, rows(1, 1)) for target in (one, two)]
        while len(doubler.sizes) < 2:
            pass
        doubler.gate.set()
    assert [len(future.result()["y"]) for future in futures] == [1, 1]


def test_rows_that_are_refused_fail_nobody_else():
    doubler = Doubler()
    joined = JoinedRequests(doubler, max_rows=100)
    futures = gathered(
        doubler, joined, endpoint(), [rows(1, 0), rows(2, 1), rows(1, np.nan), rows(3, 2)]
    )
    with pytest.raises(SignatureError, match="a NaN"):
        futures[2].result()
    assert [float(futures[index].result()["y"][0, 0]) for index in (0, 1, 3)] == [0, 2, 4]


def test_a_server_that_is_away_is_away_for_all_who_asked():
    doubler = Doubler()
    joined = JoinedRequests(doubler, max_rows=100)
    doubler.errors.extend([ServerUnavailableError("away")] * 2)
    futures = gathered(doubler, joined, endpoint(), [rows(1, 0), rows(2, 1), rows(3, 2)])
    for future in futures:
        with pytest.raises(ServerUnavailableError, match="away"):
            future.result()
    assert doubler.sizes == [1, 5]
    assert len(joined(endpoint(), rows(2, 1))["y"]) == 2


def test_who_is_interrupted_while_sending_leaves_the_others_to_the_next():
    doubler = Doubler()
    joined = JoinedRequests(doubler, max_rows=100)
    doubler.errors.extend([None, KeyboardInterrupt()])
    futures = gathered(doubler, joined, endpoint(), [rows(1, 0), rows(2, 1), rows(3, 2)])
    ends = [future.exception() for future in futures]
    assert sorted(map(type, ends), key=str) == [KeyboardInterrupt, type(None), type(None)]
    for value, (future, end) in enumerate(zip(futures, ends, strict=True)):
        if end is None:
            np.testing.assert_array_equal(future.result()["y"], 2 * rows(value + 1, value)["x"])
    assert doubler.sizes == [1, 5, 5]
