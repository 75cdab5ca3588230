import io
import re
import threading

import counting  # noqa: F401  (registers the environments)
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box

from tfpolicy.train.checkpoints import checkpoints, find_checkpoint, find_policy
from tfpolicy.train.run import CHECKPOINTS_KEPT, Run, RunSpec, Stop, StopRequest, read_spec

TINY = {
    "train_batch_size": 16,
    "sgd_minibatch_size": 16,
    "num_sgd_iter": 1,
    "model": {"fcnet_hiddens": [4]},
    "jit_compile": False,
}


def _spec(**changes):
    return RunSpec(**{"env": "Counting-v0", "num_envs": 2, "seed": 1, "config": TINY, **changes})


def _train(run, checkpoint_freq=1):
    try:
        return run.train(checkpoint_freq, stream=io.StringIO())
    finally:
        run.close()


def test_updates_are_compiled_unless_the_config_says_otherwise():
    config = _spec(config={"lr": 1.0}).policy_config(Box(-1, 1, (4,)))
    assert config == {"jit_compile": True, "seed": 1, "lr": 1.0}
    assert not _spec(config={"jit_compile": False}).policy_config(Box(-1, 1, (4,)))["jit_compile"]


def test_convolutions_on_the_cpu_are_not_compiled_unless_asked_for():
    image = Box(0, 255, (42, 42, 3), np.uint8)
    compiled = bool(tf.config.list_physical_devices("GPU"))
    assert _spec(config={}).policy_config(image)["jit_compile"] is compiled
    flat = {"model": {"conv_filters": []}}
    assert _spec(config=flat).policy_config(image)["jit_compile"]
    assert _spec(config={"jit_compile": True}).policy_config(image)["jit_compile"]


def test_how_long_compiling_took_is_said_once(tmp_path):
    run = Run.start(_spec(config={**TINY, "jit_compile": True}), tmp_path / "run", Stop(48))
    said = io.StringIO()
    try:
        run.train(stream=said)
    finally:
        run.close()
    assert run.trainer.iteration == 3
    lines = [line for line in said.getvalue().splitlines() if "compiled" in line]
    assert len(lines) == 1 and re.search(
        r"The first update was compiled: it took \d+\.\d s\.", lines[0]
    )


def test_environments_are_closed_if_there_is_no_policy_for_them(monkeypatch):
    closed = []
    make_env = RunSpec.make_env

    def watched(self):
        env = make_env(self)
        monkeypatch.setattr(env, "close", lambda: closed.append(env))
        return env

    monkeypatch.setattr(RunSpec, "make_env", watched)
    with pytest.raises(KeyError, match="no key 'lrr'"):
        _spec(config={"lrr": 1}).make_trainer()
    assert len(closed) == 1


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    assert _train(Run.start(_spec(), tmp_path, Stop(16 * 6))) == "96 steps"
    kept = [f"{iteration:06d}" for iteration in (4, 5, 6)]
    assert [path.name for path in checkpoints(tmp_path)] == kept
    assert len(kept) == CHECKPOINTS_KEPT
    assert find_checkpoint(tmp_path) == tmp_path / "checkpoints" / "000006"
    assert find_checkpoint(tmp_path / "checkpoints" / "000004").name == "000004"
    assert find_policy(tmp_path) == tmp_path / "checkpoints" / "000006" / "policy"
    assert find_policy(tmp_path / "elsewhere") == tmp_path / "elsewhere"
    assert read_spec(tmp_path) == _spec()


def test_a_run_ends_at_a_return_only_after_a_hundred_episodes(tmp_path):
    run = Run.start(_spec(), tmp_path, Stop(10**6, episode_return=0.0))
    reason = _train(run, checkpoint_freq=10**6)
    assert reason.startswith("mean return") and reason.endswith("of the last 100 episodes")
    assert 100 <= run.trainer.statistics.total < 110
    assert len(checkpoints(tmp_path)) == 1


def test_a_resumed_run_takes_over_what_is_said_anew(tmp_path):
    _train(Run.start(_spec(), tmp_path, Stop(32, episode_return=1000.0)))
    run = Run.resume(tmp_path, timesteps=64)
    assert run.stop == Stop(64, 1000.0)
    assert _train(run) == "64 steps"
    assert checkpoints(tmp_path)[-1].name == "000004"


def test_checkpoints_come_once_a_minute_if_nothing_is_said(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    run = Run.start(_spec(), tmp_path, Stop(16 * 4))
    train_iteration = run.trainer.train_iteration

    def iteration_of_40_seconds():
        now[0] += 40.0
        return train_iteration()

    monkeypatch.setattr(run.trainer, "train_iteration", iteration_of_40_seconds)
    _train(run, checkpoint_freq=None)
    assert [path.name for path in checkpoints(tmp_path)] == ["000002", "000004"]


def test_a_run_in_another_thread_leaves_signals_alone():
    found = []

    def work():
        with StopRequest(found.append) as request:
            found.append(request.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
