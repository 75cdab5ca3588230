"""Policies through a long life: memory, several in one process, threads, forks, closing."""

import gc
import os
import signal
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from small_policies import OBS, THREE, TINY, Regression, ppo_batch, regression_batch, small_policy

STATUS = Path("/proc/self/status")
MEGABYTE = 2**20


def held_bytes():
    """Memory that this process has allocated, after everything that is garbage is gone.

    Swapped or not, and without pages of libraries, which the system drops and reads again at will.
    """
    gc.collect()
    fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


def num_operations(policy):
    return len(policy.get_session().graph.get_operations())


def assert_equal(found, expected):
    tf.nest.assert_same_structure(found, expected)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


@pytest.fixture(scope="module")
def policy():
    with small_policy("ppo", sgd_minibatch_size=16) as made:
        yield made


def live(policy, acts, learns, moves):
    obs, batch = ppo_batch(4)["obs"], ppo_batch(32)
    for index in range(acts):
        policy.compute_actions(obs[: 1 + index % 4], explore=index % 2 == 0, timestep=index)
    for index in range(learns):
        policy.learn_on_batch(batch)
        policy.on_global_var_update({"timestep": index})
    for index in range(moves):
        policy.set_state(policy.get_state())
        policy.set_weights(policy.get_weights())
        policy.load_batch_into_buffer({name: v[: 20 + index % 12] for name, v in batch.items()})
        policy.learn_on_loaded_batch(index % 4)
        policy.learn_on_buffer(1)
        policy.update_kl(0.01 * (index % 5))
        policy.apply_gradients(policy.compute_gradients(batch)[0])
        policy.compute_log_likelihoods([0], obs[:1])
        policy.compute_values({"obs": obs})


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
def test_a_long_life_adds_no_operation_and_no_memory(policy):  # f1, f2, f4, f5
    live(policy, acts=1000, learns=200, moves=20)
    operations, memory = num_operations(policy), held_bytes()
    live(policy, acts=10_000, learns=1_000, moves=100)
    assert num_operations(policy) == operations
    assert held_bytes() - memory < 10 * MEGABYTE


def test_no_method_can_add_an_operation(policy):  # f1, f14
    assert policy.get_session().graph.finalized


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
def test_closing_frees_what_a_buffer_held_while_the_policy_is_still_referenced():  # f7
    rows = 4 * MEGABYTE
    batch = {"obs": np.ones((rows, 4), np.float32), "rewards": np.ones(rows, np.float32)}
    with Regression(OBS, THREE, {"model": TINY}) as policy:
        policy.load_batch_into_buffer(regression_batch(8))
        before = held_bytes()
        policy.load_batch_into_buffer(batch)
        held = held_bytes()
        # 5 floats a row.
        assert held - before > 0.9 * rows * 20
        policy.close()
        assert held - held_bytes() > 0.9 * rows * 20


def test_policies_in_one_process_do_not_touch_each_other(record_property):  # f8
    def build(seed):
        began = time.perf_counter()
        made = Regression(OBS, THREE, {"model": TINY, "seed": seed})
        took.append(time.perf_counter() - began)
        return made

    took = []
    policies = [build(seed) for seed in range(5)]
    # Written to the report, for machines differ too much to decide anything by it.
    record_property("seconds to build each of five policies", took)
    try:
        assert len({num_operations(policy) for policy in policies}) == 1
        assert len({tuple(policy.get_weights()) for policy in policies}) == 1
        first = policies[0]
        others = [policy.get_state() for policy in policies[1:]]
        first.load_batch_into_buffer(regression_batch(20))
        for _ in range(3):
            first.learn_on_batch(regression_batch(8))
            first.learn_on_buffer()
            first.compute_actions(ppo_batch(3)["obs"])
        first.set_weights({name: weight + 1 for name, weight in first.get_weights().items()})
        for policy, state in zip(policies[1:], others, strict=True):
            assert_equal(policy.get_state(), state)
            assert policy.get_num_samples_loaded_into_buffer() == 0
        first.close()
        for policy in policies[1:]:
            policy.learn_on_batch(regression_batch(8))
        # A state moves between policies, and nothing else does.
        policies[1].set_state(policies[2].get_state())
        obs = ppo_batch(9)["obs"]
        assert_equal(policies[1].compute_actions(obs), policies[2].compute_actions(obs))
    finally:
        for policy in policies:
            policy.close()


def test_a_dropped_policy_is_freed_whole():  # f7
    policy = Regression(OBS, THREE, {"model": TINY})
    policy.learn_on_batch(regression_batch(3))
    policy.compute_actions(ppo_batch(3)["obs"])
    parts = [weakref.ref(policy), weakref.ref(policy.get_session())]
    parts += [weakref.ref(policy.get_session().graph), weakref.ref(policy.model)]
    del policy
    gc.collect()
    assert [part() for part in parts] == [None] * 4


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
def test_policies_that_come_and_go_leave_little_memory_behind():  # f7
    def come_and_go():
        with Regression(OBS, THREE, {"model": TINY}) as policy:
            policy.learn_on_batch(regression_batch(3))

    come_and_go()
    before = held_bytes()
    for _ in range(3):
        come_and_go()
    # Graphs that stayed would be over 10 MB each.
    assert (held_bytes() - before) / 3 < 5 * MEGABYTE


def run_in_threads(functions):
    """Runs all functions at once and returns what each returned or raised."""
    results = [None] * len(functions)
    barrier = threading.Barrier(len(functions))

    def run(index):
        barrier.wait()
        try:
            results[index] = functions[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_four_threads_act_at_once_as_one_does(policy):  # f10, f16, f17
    batches = [ppo_batch(rows, seed=rows)["obs"] for rows in (1, 2, 7, 30)]
    expected = [policy.compute_actions(obs, explore=False) for obs in batches]
    single = [policy.compute_single_action(obs[0], explore=False) for obs in batches]

    def act(obs):
        return lambda: [
            (
                policy.compute_actions(obs, explore=False),
                policy.compute_single_action(obs[0], explore=False),
            )
            for _ in range(200)
        ]

    for index, results in enumerate(run_in_threads([act(obs) for obs in batches])):
        assert len(results) == 200
        for batched, alone in results:
            assert_equal(batched, expected[index])
            assert_equal(alone, single[index])


def test_exploring_threads_share_one_stream_of_seeds_and_one_count_of_timesteps(policy):
    state = policy.get_state()
    obs = ppo_batch(50)["obs"]
    one_by_one = [policy.compute_actions(obs)[0] for _ in range(80)]
    end = policy.get_state()
    policy.set_state(state)
    results = run_in_threads([lambda: [policy.compute_actions(obs)[0] for _ in range(20)]] * 4)
    # The same 80 draws, in whatever order the threads got them.
    drawn = sorted(actions.tolist() for thread in results for actions in thread)
    assert drawn == sorted(actions.tolist() for actions in one_by_one)
    assert_equal(policy.get_state(), end)


def test_threads_may_act_while_another_learns_and_restores(policy):
    obs, batch, state = ppo_batch(5)["obs"], ppo_batch(32), policy.get_state()

    def learn():
        for _ in range(20):
            policy.learn_on_batch(batch)
            policy.load_batch_into_buffer(batch)
            policy.learn_on_buffer(1)
            policy.set_state(state)
        return []

    def act():
        return [policy.compute_actions(obs) for _ in range(200)]

    for result in run_in_threads([learn, act, act, act]):
        assert isinstance(result, list)
        for actions, _, extras in result:
            assert actions.shape == (5,) and np.isfinite(extras["action_logp"]).all()


def test_a_policy_can_be_built_and_used_on_any_thread():  # f10
    def use():
        with Regression(OBS, THREE, {"model": TINY, "seed": 3}) as policy:
            policy.learn_on_batch(regression_batch(8))
            return policy.get_weights()

    first, second = run_in_threads([use, use])
    assert_equal(first, second)


def test_a_policy_is_built_and_used_within_other_graphs_and_leaves_them_alone():  # f13, a28
    with tf.Graph().as_default() as other, tf.compat.v1.Session() as session:
        with Regression(OBS, THREE, {"model": TINY, "seed": 3}) as policy:
            policy.learn_on_batch(regression_batch(8))
            policy.compute_actions(ppo_batch(3)["obs"])
            policy.set_state(policy.get_state())
        assert other.get_operations() == []
        assert tf.compat.v1.get_default_graph() is other
        assert tf.compat.v1.get_default_session() is session
    assert tf.executing_eagerly()


def test_keras_models_of_the_user_work_before_and_after_a_policy(policy):  # f11
    x = np.ones((2, 4), np.float32)
    model = tf_keras.Sequential([tf_keras.layers.Dense(3, input_shape=(4,))])
    before = model.predict(x, verbose=0)
    policy.learn_on_batch(ppo_batch(8))
    np.testing.assert_allclose(model.predict(x, verbose=0), before, rtol=1e-6)
    other = tf_keras.Sequential([tf_keras.layers.Dense(3, input_shape=(4,))])
    assert other(x).shape == (2, 3)
    expected = policy.compute_actions(x, explore=False)
    tf_keras.backend.clear_session()
    assert_equal(policy.compute_actions(x, explore=False), expected)


class Summed(tf_keras.Model):
    """A model of the user's own class."""

    def __init__(self):
        super().__init__()
        self.dense, self.lstm = tf_keras.layers.Dense(2), tf_keras.layers.LSTM(2)

    def call(self, x):
        return self.dense(x) + self.lstm(x[:, None])


def test_keras_models_that_the_user_made_before_a_policy_go_on(tmp_path):  # f11
    x = np.ones((2, 4), np.float32)
    inputs = tf_keras.Input((4,))
    models = [
        tf_keras.Model(inputs, tf_keras.layers.Dense(2)(inputs)),
        tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(4,))]),
        Summed(),
    ]
    expected = [np.asarray(model(x)) for model in models]
    with Regression(OBS, THREE, {"model": TINY, "seed": 3}) as policy:
        policy.export_model_to_h5(tmp_path / "w.h5")
        policy.import_model_from_h5(tmp_path / "w.h5")
        policy.learn_on_batch(regression_batch(8))
        for model, outputs in zip(models, expected, strict=True):
            np.testing.assert_allclose(model(x), outputs, rtol=1e-6)
            model.compile("sgd", "mse")
            model.fit(x, np.zeros((2, 2)), verbose=0)
        # A policy is built after eager models were made, and before that.
        with Regression(OBS, THREE, {"model": TINY, "seed": 3}) as second:
            second.learn_on_batch(regression_batch(8))
            assert_equal(second.get_weights(), policy.get_weights())
        policy.export_model(tmp_path)


def test_the_precision_that_the_user_sets_for_keras_does_not_reach_a_policy():  # f11
    before = tf_keras.mixed_precision.global_policy()
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with Regression(OBS, THREE, {"model": TINY, "seed": 3}) as policy:
            policy.learn_on_batch(regression_batch(8))
            values = [*policy.get_weights().values(), policy.compute_actions(np.zeros((1, 4)))[2]]
            assert {leaf.dtype for leaf in tf.nest.flatten(values)} == {np.dtype(np.float32)}
    finally:
        tf_keras.mixed_precision.set_global_policy(before)


def test_restoring_twice_is_restoring_once_and_learning_goes_on(policy):  # f14, f22
    state, batch = policy.get_state(), ppo_batch(8)
    results = []
    for times in (1, 2):
        for _ in range(times):
            policy.set_state(state)
        results.append([policy.learn_on_batch(batch), policy.compute_actions(batch["obs"])])
    assert_equal(*results)


FORKED = {
    "compute_actions": lambda p: p.compute_actions(ppo_batch(2)["obs"]),
    "compute_single_action": lambda p: p.compute_single_action(ppo_batch(2)["obs"][0]),
    "learn_on_batch": lambda p: p.learn_on_batch(ppo_batch(8)),
    "load_batch_into_buffer": lambda p: p.load_batch_into_buffer(ppo_batch(8)),
    "get_weights": lambda p: p.get_weights(),
    "get_state": lambda p: p.get_state(),
    "set_state": lambda p: p.set_state({}),
    "get_session": lambda p: p.get_session(),
}


def test_a_fork_of_a_live_session_is_told_what_to_do(policy):
    policy.compute_actions(ppo_batch(2)["obs"])
    pid = os.fork()
    if pid == 0:
        # Whoever uses a forked session may hang, which must not last.
        signal.alarm(30)
        failed = 1
        try:
            caught = 0
            for use in FORKED.values():
                try:
                    use(policy)
                except RuntimeError as error:
                    caught += "is a fork" in str(error) and '"spawn"' in str(error)
            policy.close()
            failed = len(FORKED) - caught
        finally:
            os._exit(failed)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    # The parent goes on.
    policy.learn_on_batch(ppo_batch(8))


CLOSED = {
    **FORKED,
    "learn_on_batch": lambda p: p.learn_on_batch(regression_batch(4)),
    "load_batch_into_buffer": lambda p: p.load_batch_into_buffer(regression_batch(4)),
    "compute_actions_from_input_dict": lambda p: p.compute_actions_from_input_dict(
        {"obs": ppo_batch(2)["obs"]}
    ),
    "compute_log_likelihoods": lambda p: p.compute_log_likelihoods([0], ppo_batch(1)["obs"]),
    "compute_values": lambda p: p.compute_values({"obs": ppo_batch(1)["obs"]}),
    "compute_gradients": lambda p: p.compute_gradients(regression_batch(4)),
    "apply_gradients": lambda p: p.apply_gradients([]),
    "get_num_samples_loaded_into_buffer": lambda p: p.get_num_samples_loaded_into_buffer(),
    "learn_on_loaded_batch": lambda p: p.learn_on_loaded_batch(),
    "learn_on_buffer": lambda p: p.learn_on_buffer(),
    "set_weights": lambda p: p.set_weights({}),
    "set_coefficient": lambda p: p.set_coefficient("lr", 1.0),
    "pickling": lambda p: p.__reduce__(),
}


@pytest.fixture(scope="module")
def closed():
    with Regression(OBS, THREE, {"model": TINY}) as made:
        made.load_batch_into_buffer(regression_batch(8))
        made.compute_actions(ppo_batch(2)["obs"])
    return made


@pytest.mark.parametrize("name", CLOSED)
def test_every_use_after_close_says_that_the_policy_was_closed(closed, name):
    closed.close()
    with pytest.raises(RuntimeError, match="was closed; build or restore a new one"):
        CLOSED[name](closed)
