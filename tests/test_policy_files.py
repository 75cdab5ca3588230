"""What a policy writes brings it back: checkpoints bit for bit, h5 files its weights."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from small_policies import (
    OBS,
    THREE,
    ppo_batch,
    small_policy,
)

from tfpolicy.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from tfpolicy.export.h5 import write_h5
from tfpolicy.policies.a2c import A2CPolicy
from tfpolicy.policies.ppo import PPOPolicy
from tfpolicy.tf_policy import TFPolicy

# Everything that changes while training: schedules, an adaptive coefficient, epsilon.
CHANGING = {
    "sgd_minibatch_size": 16,
    "num_sgd_iter": 2,
    "lr_schedule": [[0, 1e-2], [500, 1e-4]],
    "entropy_coeff_schedule": [[0, 0.1], [300, 0.0]],
    "exploration_config": {"type": "EpsilonGreedy", "epsilon_timesteps": 200},
    "intra_op_parallelism_threads": 1,
}
# What another process does with the checkpoint `first`.
CONTINUE = """
import sys, numpy as np, test_policy_files
from tfpolicy import TFPolicy

root = sys.argv[1]
with TFPolicy.from_checkpoint(f"{root}/first") as policy:
    np.save(f"{root}/resumed.npy", test_policy_files.go_on(policy, 1))
    policy.save(f"{root}/resumed")
"""


def go_on(policy, seed):
    """Acts, learns both ways and adapts, as a training loop does; returns the actions."""
    obs = np.random.default_rng(seed).uniform(-1, 1, (20, 4)).astype(np.float32)
    actions, _, _ = policy.compute_actions(obs, explore=True)
    policy.learn_on_batch(ppo_batch(30, seed))
    policy.load_batch_into_buffer(ppo_batch(64, seed + 1))
    policy.on_train_batch_end(policy.learn_on_buffer()["learner_stats"])
    policy.on_global_var_update({"timestep": policy.global_timestep + 64})
    return actions


def differences(first, second, path=""):
    """Where two states are not the same bit for bit."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        return [d for key in first for d in differences(first[key], second[key], f"{path}/{key}")]
    same = type(first) is type(second) and np.array_equal(first, second)
    return [] if same else [path]


@pytest.fixture(scope="module", name="policy")
def _one_policy():
    with small_policy(**CHANGING) as policy:
        go_on(policy, 0)
        yield policy


@pytest.fixture(scope="module")
def saved(policy, tmp_path_factory):
    """A checkpoint in which everything has left its start."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    policy.save(folder)
    return folder


# Checkpoints.


def test_a_policy_goes_on_in_a_new_process_as_if_it_had_never_stopped(policy, tmp_path):  # g1, j13
    policy.save(tmp_path / "first")
    actions = go_on(policy, 1)
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests), str(tests.parent)])
    subprocess.run(
        [sys.executable, "-c", CONTINUE, os.fspath(tmp_path)],
        check=True,
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert differences(policy.get_state(), read_checkpoint(tmp_path / "resumed")[1]) == []
    np.testing.assert_array_equal(actions, np.load(tmp_path / "resumed.npy"))
    # The comparison would mean little if it had not all moved on.
    moved = differences(read_checkpoint(tmp_path / "first")[1], policy.get_state())
    coefficients = {f"/coefficients/{name}" for name in ("lr", "entropy_coeff", "kl_coeff")}
    seeds = {"/random/acting/count", "/random/shuffling/count"}
    assert coefficients | seeds | {"/global_timestep", "/weights/fc_1/kernel"} <= set(moved)
    assert {"/optimizer_variables/beta1_power", "/optimizer_variables/fc_1/kernel/Adam_1"} <= set(
        moved
    )


def test_a_checkpoint_of_two_towers_goes_on_on_one(tmp_path):  # g13, g19
    with small_policy(**CHANGING, num_gpus=2, fake_gpus=True) as two:
        go_on(two, 0)
        two.save(tmp_path / "two")
        with TFPolicy.from_checkpoint(tmp_path / "two", {"num_gpus": 0}) as one:
            assert differences(one.get_state(), two.get_state()) == []
            for policy in (one, two):
                policy.learn_on_batch(ppo_batch(31))
            expected = two.get_weights()
            for name, value in one.get_weights().items():
                np.testing.assert_allclose(value, expected[name], atol=1e-6)


def test_a_policy_restores_itself(policy, saved):
    state = policy.get_state()
    policy.learn_on_batch(ppo_batch(20, 5))
    policy.compute_actions(np.zeros((3, 4), np.float32), explore=True)
    assert differences(state, policy.get_state())
    policy.restore(saved)
    assert differences(state, policy.get_state()) == []


def edited(saved, folder, edit):
    """A copy of a checkpoint with another description or state."""
    description, state = read_checkpoint(saved)
    edit(description, state)
    write_checkpoint(folder, description, state)
    return folder


def test_a_checkpoint_that_does_not_fit_changes_nothing(policy, saved, tmp_path):  # g6
    state = policy.get_state()
    refused = {
        "coefficients are": lambda _, s: s["coefficients"].pop("kl_coeff"),
        "unexpected: other": lambda _, s: s["weights"].update(other=np.zeros(1)),
        r"fc_1/bias: expected shape \(8,\), got \(3,\)": lambda _, s: s["weights"].update(
            {"fc_1/bias": np.zeros(3)}
        ),
        "missing: beta1_power": lambda _, s: s["optimizer_variables"].pop("beta1_power"),
        "format version 99": lambda _, s: s.update(format_version=99),
    }
    for index, (message, edit) in enumerate(refused.items()):
        with pytest.raises(ValueError, match=message):
            policy.restore(edited(saved, tmp_path / str(index), edit))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        policy.restore(tmp_path / "nowhere")
    next(iter((tmp_path / "0").glob("*.npz"))).write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        policy.restore(tmp_path / "0")
    assert differences(state, policy.get_state()) == []


def test_settings_can_be_replaced_and_gpus_are_only_asked_for_if_they_are_there(
    policy, saved, tmp_path
):  # c14, g13
    present = len(tf.config.list_physical_devices("GPU"))
    gpus = {"num_gpus": present + 1, "fake_gpus": False}
    more = edited(saved, tmp_path / "more", lambda d, _: d["config"].update(gpus))
    with (
        pytest.warns(UserWarning, match=f"`num_gpus` {present + 1}; this machine has {present}"),
        PPOPolicy.from_checkpoint(more, {"lr": 0.5, "model": {"max_seq_len": 7}}) as again,
    ):
        changed = {"lr": 0.5, "model": {"max_seq_len": 7}}
        expected = policy.config.replace(**gpus | {"num_gpus": present}, **changed)
        assert again.config == expected
        assert (again.observation_space, again.action_space) == (OBS, THREE)
    with pytest.raises(ValueError, match="fake_gpus"):
        PPOPolicy.from_checkpoint(more, {"num_gpus": present + 1})


def test_a_checkpoint_of_another_class_is_refused(saved):
    with pytest.raises(ValueError, match="tfpolicy.policies.ppo.PPOPolicy, which is no A2CPolicy"):
        A2CPolicy.from_checkpoint(saved)


def test_old_names_still_work_and_say_so(policy, tmp_path):
    with pytest.warns(DeprecationWarning, match="`export_checkpoint` is now `save`"):
        policy.export_checkpoint(tmp_path / "saved")
    assert (tmp_path / "saved" / "policy.json").exists()
    with pytest.warns(DeprecationWarning, match="`get_exploration_state`"):
        assert policy.get_exploration_info() == policy.get_exploration_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.save(tmp_path / "saved")


# Weights.


def test_weights_alone_are_imported_and_nothing_else_changes(policy, tmp_path):  # b1, b13
    state = policy.get_state()
    operations = len(policy.get_session().graph.get_operations())
    policy.export_model_to_h5(tmp_path / "w.h5")
    policy.learn_on_batch(ppo_batch(20, 3))
    learned = policy.get_state()
    policy.import_model_from_h5(tmp_path / "w.h5")
    found = policy.get_state()
    assert differences(found["weights"], state["weights"]) == []
    del found["weights"], learned["weights"]
    assert differences(found, learned) == []
    assert len(policy.get_session().graph.get_operations()) == operations


def test_files_of_weights_that_do_not_fit_change_nothing(policy, tmp_path):  # b7
    weights = policy.get_weights()
    with pytest.raises(FileNotFoundError, match="nowhere.h5"):  # j17
        policy.import_model_from_h5(tmp_path / "nowhere.h5")
    write_h5(tmp_path / "w.h5", [("fc_1", [("fc_1/kernel", weights["fc_1/kernel"])])])
    with pytest.raises(ValueError, match="7 missing: fc_1/bias"):
        policy.import_model_from_h5(tmp_path / "w.h5")
    assert differences(policy.get_weights(), weights) == []
