"""A private graph and session: callables, moving variables, closing, forks."""

import gc
import os
import signal
import threading
import weakref

import numpy as np
import pytest
import tensorflow as tf
from aligned_arrays import aligned
from tensorflow.python.client import pywrap_tf_session

from tfpolicy.graph.session import GraphSession, check_values, make_callable, variable_names


def get_variable(name, value, **kwargs):
    return tf.compat.v1.get_variable(name, initializer=value, use_resource=True, **kwargs)


@pytest.fixture
def machine():
    """A session with the variables `a` [3] float32 and `scope/n` [] int32."""
    graph_session = GraphSession()
    with graph_session.building():
        graph_session.variables = [
            get_variable("a", np.float32([1, 2, 3])),
            get_variable("scope/n", np.int32(4), trainable=False),
        ]
    graph_session.prepare_access(graph_session.variables)
    graph_session.initialize(graph_session.variables)
    yield graph_session
    graph_session.close()


def doubling(graph_session, **kwargs):
    with graph_session.building():
        x = tf.compat.v1.placeholder(tf.float32, [None])
        return graph_session.callable([x], [x * 2.0, x + 1.0], **kwargs)


def run(made, *values):
    return made.function(made.session, made.handle, values, None)


def test_tensorflow_still_has_the_private_callables_that_make_acting_fast(machine):
    # When this fails, `make_callable` has fallen back on the public way, which takes several times
    # as long: look for what replaced it.
    with machine.building():
        made = make_callable(machine.session, [], [tf.constant(1.0)])
    assert made.function is pywrap_tf_session.TF_SessionRunCallable
    assert run(made) == [1.0]


def test_the_public_fallback_computes_the_same(machine):
    class PublicSession:
        """A session of a TensorFlow without the private method."""

        make_callable = machine.session.make_callable

    with machine.building():
        x = tf.compat.v1.placeholder(tf.float32, [None])
        y = tf.compat.v1.placeholder(tf.float32, [])
        count = machine.variables[1].assign_add(1)
        feeds, fetches, targets = [x, y], [x * y, x + y], [count.op]
    machine.finalize()
    values = np.float32([1, 2]), np.float32(3)
    fast = run(make_callable(machine.session, feeds, fetches, targets), *values)
    public = run(make_callable(PublicSession(), feeds, fetches, targets), *values)
    for found in (fast, public):
        np.testing.assert_array_equal(found, [[3, 6], [4, 5]])
    assert machine.read(machine.variables)["scope/n"] == 6


@pytest.mark.parametrize("on_calling_thread", [False, True])
def test_a_callable_returns_its_fetches_in_order(machine, on_calling_thread):
    call = doubling(machine, on_calling_thread=on_calling_thread)
    machine.finalize()
    for rows in (1, 5, 0):
        x = np.arange(rows, dtype=np.float32)
        doubled, next_one = call(x)
        np.testing.assert_array_equal(doubled, x * 2)
        np.testing.assert_array_equal(next_one, x + 1)


def test_a_callable_made_before_the_graph_was_complete_sees_what_came_later(machine):
    first = doubling(machine)
    first(np.ones(1, np.float32))
    second = doubling(machine)
    np.testing.assert_array_equal(second(np.ones(1, np.float32))[0], [2])


def test_a_finalized_graph_takes_no_more_operations(machine):
    machine.finalize()
    with pytest.raises(RuntimeError, match="finalized"), machine.building():
        tf.constant(1)


def test_callables_work_from_other_threads_and_within_other_graphs(machine):
    call, results = doubling(machine), []
    machine.finalize()
    with tf.Graph().as_default() as other:
        threads = [
            threading.Thread(target=lambda: results.append(call(np.ones(2, np.float32))[0]))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        call(np.ones(2, np.float32))
        assert not other.get_operations()
    np.testing.assert_array_equal(results, np.full((3, 2), 2.0))
    assert tf.executing_eagerly()


def test_building_leaves_the_default_graph_and_eager_mode_as_they_were(machine):
    default = tf.compat.v1.get_default_graph()
    with machine.building():
        assert tf.compat.v1.get_default_graph() is machine.graph
        assert tf.compat.v1.get_default_session() is machine.session
    assert tf.compat.v1.get_default_graph() is default
    assert tf.compat.v1.get_default_session() is None
    assert tf.executing_eagerly()


def test_variables_are_read_and_written_by_names_without_output_numbers(machine):
    assert variable_names(machine.variables) == ("a", "scope/n")
    machine.finalize()
    machine.write(machine.variables, {"scope/n": 7, "a": [4.0, 5.0, 6.0]})
    found = machine.read(machine.variables)
    np.testing.assert_array_equal(found["a"], np.float32([4, 5, 6]))
    assert found["a"].dtype == np.float32 and found["scope/n"] == 7


def test_arrays_that_were_read_do_not_change_with_the_variables(machine):
    before = machine.read(machine.variables)
    machine.write(machine.variables, {"a": np.zeros(3), "scope/n": 0})
    np.testing.assert_array_equal(before["a"], [1, 2, 3])


def test_changing_an_array_after_it_was_written_does_not_change_the_variable(machine):
    values = {"a": aligned(np.float32([7, 8, 9])), "scope/n": aligned(np.array(5, np.int32))}
    machine.write(machine.variables, values)
    for value in values.values():
        value[...] = -1
    found = machine.read(machine.variables)
    np.testing.assert_array_equal(found["a"], [7, 8, 9])
    assert found["scope/n"] == 5


def test_two_sessions_share_no_variables():  # f8
    machines = [GraphSession(), GraphSession()]
    for value, machine in enumerate(machines):
        with machine.building():
            machine.variables = [get_variable("a", np.float32(value))]
        machine.prepare_access(machine.variables)
        machine.initialize(machine.variables)
    machines[0].write(machines[0].variables, {"a": 5.0})
    assert [machine.read(machine.variables)["a"] for machine in machines] == [5.0, 1.0]
    machines[0].close()
    assert machines[1].read(machines[1].variables)["a"] == 1.0
    machines[1].close()


def test_gpus_are_not_filled_by_the_first_session(machine):  # c13
    assert machine.session._config.gpu_options.allow_growth


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({}, ["missing: a, scope/n"]),
        ({"a": np.zeros(3)}, ["missing: scope/n"]),
        ({"a": np.zeros(3), "scope/n": 1, "b": 2}, ["unexpected: b"]),
        ({"a:0": np.zeros(3), "scope/n": 1}, ["missing: a", "unexpected: a:0"]),
        ({"a": np.zeros(4), "scope/n": 1}, [r"a: expected shape \(3,\), got \(4,\)"]),
        ({"a": np.zeros((3, 1)), "scope/n": [1]}, [r"got \(3, 1\)", r"scope/n: .* got \(1,\)"]),
        ({"a": np.zeros(3), "scope/n": 0.5}, ["scope/n: expected int32, got float64"]),
        ({"a": np.array(["x"] * 3), "scope/n": 1}, ["a: expected float32, got <U1"]),
        ({"a": [None] * 3, "scope/n": 1}, ["a: expected float32, got object"]),
    ],
)
def test_values_that_do_not_fit_are_all_listed(machine, values, texts):
    for text in texts:
        with pytest.raises(ValueError, match=f"The weights do not fit; nothing was .*{text}"):
            check_values(machine.variables, values, "weights")


def test_what_is_still_running_when_it_is_closed_fails_clearly(machine):
    with machine.building():
        count = machine.variables[1]
        endless = tf.while_loop(
            lambda n: n > 0, lambda n: tf.maximum(count.assign_add(1).read_value(), 1), [count]
        )
        run = machine.callable([], [endless], on_calling_thread=True)
    errors = []

    def call():
        try:
            run()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while machine.read(machine.variables)["scope/n"] == 4:
        pass
    machine.close()
    thread.join()
    assert "was closed" in str(errors[0])


def test_everything_fails_clearly_after_close(machine):
    call = doubling(machine)
    call(np.ones(1, np.float32))
    machine.close()
    machine.close()
    for use in (
        lambda: call(np.ones(1, np.float32)),
        lambda: machine.read(machine.variables),
        lambda: machine.write(machine.variables, {"a": np.zeros(3), "scope/n": 1}),
        lambda: machine.session,
        machine.check_usable,
        machine.building().__enter__,
    ):
        with pytest.raises(RuntimeError, match="was closed"):
            use()


def test_closing_frees_the_session_although_callables_are_still_held():  # f7
    machine = GraphSession()
    call = doubling(machine)
    call(np.ones(1, np.float32))
    session = weakref.ref(machine.session)
    machine.close()
    gc.collect()
    assert session() is None


def test_a_fork_is_told_to_build_its_own_and_leaves_the_session_alive(machine):
    call = doubling(machine)
    call(np.ones(1, np.float32))
    pid = os.fork()
    if pid == 0:
        # Whoever uses a forked session may hang, which must not last.
        signal.alarm(30)
        code = 1
        try:
            try:
                call(np.ones(1, np.float32))
            except RuntimeError as error:
                code = 0 if "is a fork" in str(error) else 2
            machine.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    np.testing.assert_array_equal(call(np.ones(1, np.float32))[0], [2])
