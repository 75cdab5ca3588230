"""A SavedModel acts as the policy does, wherever it is loaded, or it is not published."""

import dataclasses
import gc
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from acted_singly import acted_singly
from small_policies import OBS, THREE, Recurrent, small_policy

from tfpolicy.export import saved_model
from tfpolicy.export.inference import build_inference
from tfpolicy.export.saved_model import export_saved_model, load_saved_model, version_folder
from tfpolicy.graph.discovery import sample_rows
from tfpolicy.graph.session import GraphSession
from tfpolicy.spaces import flatten, leaf_spaces

S = gym.spaces
INF = np.inf
ROWS, STEPS = (4,), 3
# Those that remember: where errors add up, and rows may be mistaken for each other.
MEMORY_ROWS, MEMORY_STEPS = (1, 7), 200
MEMORIES = {
    "lstm": {"use_lstm": True, "lstm_use_prev_action": True, "lstm_use_prev_reward": True},
    "gru": {"use_gru": True, "vf_share_layers": True},
    "attention": {"use_attention": True, "attention_dim": 6, "attention_memory_inference": 5},
}
# Every kind of observation and every kind of action of which a policy can be built.
CASES = {
    "box": (OBS, S.Discrete(3, start=2)),
    "image": (S.Box(0, 255, (3, 3, 1), np.uint8), S.Box(np.float32([-2, 0]), np.float32([6, 1]))),
    "float64": (S.Box(-1, 1, (3,), np.float64), S.Box(-INF, INF, (2,))),
    "discrete": (S.Discrete(5, start=-2), S.Box(np.float32([0, -INF]), np.float32([INF, 0.1]))),
    "multi_discrete": (S.MultiDiscrete([2, 3], start=[1, 0]), S.Box(-2, 5, (2,), np.int32)),
    "multi_binary": (S.MultiBinary(3), S.Box(-1, 3, (2,), np.float64)),
    "nested": (
        S.Dict(z=S.Tuple([S.Discrete(3), OBS]), a=S.Dict(image=S.Box(0, 255, (2, 2), np.uint8))),
        S.MultiDiscrete([2, 3], start=[0, 4]),
    ),
    "several_actions": (OBS, S.Dict(go=S.Discrete(3), by=S.Tuple([S.Box(-2, 5, (2,))]))),
    "tuple": (S.Tuple([OBS, S.MultiBinary(2)]), S.MultiBinary(3)),
    "recurrent": (OBS, THREE),
    "lstm": (OBS, THREE),
    "gru": (S.Tuple([OBS, S.MultiBinary(2)]), S.MultiDiscrete([2, 3], start=[1, 0])),
    "attention": (OBS, S.Box(-INF, INF, (2,))),
}
# Imports nothing but what anyone has who serves a SavedModel.
CLIENT = """
import pathlib, sys
import numpy as np, tensorflow as tf

for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    model = tf.saved_model.load(str(folder / "1"))
    act, sample = model.signatures["serving_default"], model.signatures["sample"]
    for path in folder.glob("inputs_*.npz"):
        given, results, state, before = dict(np.load(path)), [], {}, {}
        steps, rows = next(iter(given.values())).shape[:2]
        if "initial_state" in model.signatures:
            state = model.signatures["initial_state"](batch_size=tf.zeros(rows, tf.int32))
        if "prev_rewards" in given:
            before["prev_actions"] = tf.zeros(rows, tf.int64)
        for step in range(steps):
            now = {k: tf.constant(v[step]) for k, v in given.items()}
            result = act(**now, **state, **before)
            if step < 3:
                assert sample(**now, **state, **before).keys() == result.keys()
            state = {k: result["state_out" + k.removeprefix("state_in")] for k in state}
            before = {k: result["actions"] for k in before}
            results.append(result)
        stacked = {k: np.stack([r[k].numpy() for r in results]) for k in results[0]}
        np.savez(path.with_name(path.name.replace("inputs", "outputs")), **stacked)
assert "tfpolicy" not in sys.modules and "gymnasium" not in sys.modules
"""


def case_policy(name):
    """A policy whose weights are large enough for its actions to differ."""
    obs_space, action_space = CASES[name]
    model = {"fcnet_hiddens": [6], "lstm_cell_size": 5, **MEMORIES.get(name, {})}
    if name == "recurrent":
        model["custom_model"] = Recurrent
    policy = small_policy("pg", obs_space, action_space, model=model)
    rng = np.random.default_rng(7)
    # A bias would make most actions one and the same.
    policy.set_weights(
        {
            k: 0 * v if k.endswith("bias") else rng.normal(0, 0.6, v.shape)
            for k, v in policy.get_weights().items()
        }
    )
    return policy


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """For every case what the policy does, and what its SavedModel does in a strange process.

    By name and number of rows; both go on from state to state, beginning with the initial one.
    """
    root = tmp_path_factory.mktemp("served")
    expected = {}
    for name in CASES:
        with case_policy(name) as policy:
            assert policy.export_model(root / name) == root / name / "1"
            for rows in MEMORY_ROWS if name in MEMORIES else ROWS:
                inputs, expected[name, rows] = played(policy, name, rows)
                np.savez(root / name / f"inputs_{rows}.npz", **inputs)
    # Isolated: the folder of this package is not on the path.
    command = [sys.executable, "-I", "-c", CLIENT, os.fspath(root)]
    subprocess.run(command, check=True, cwd=root, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    return {
        (name, rows): (outputs, dict(np.load(root / name / f"outputs_{rows}.npz")))
        for (name, rows), outputs in expected.items()
    }


def played(policy, name, rows):
    """What a SavedModel is given step by step, [T, B, ...], and what the policy does on it."""
    space, steps = policy.observation_space, MEMORY_STEPS if name in MEMORIES else STEPS
    observations = [flatten(space, sample_rows(space, rows, seed)) for seed in range(steps)]
    columns = map(np.stack, zip(*observations, strict=True))
    inputs = dict(zip(leaf_spaces(space, "obs"), columns, strict=True))
    if "prev_rewards" in policy.acting_columns:
        rewards = np.random.default_rng(rows).normal(0, 1, (steps, rows)).astype(np.float32)
        rewards[0] = 0.0
        inputs["prev_rewards"] = rewards
    return inputs, acted_singly(policy, observations, inputs.get("prev_rewards"))


@pytest.mark.parametrize("name", CASES)
def test_a_process_without_this_package_acts_as_compute_single_action(served, name):  # a3, a4, a16
    for rows in MEMORY_ROWS if name in MEMORIES else ROWS:
        expected, found = served[name, rows]
        del expected["action_prob"]
        assert found.keys() == expected.keys()
        # What differs is carried on to the next step.
        tolerance = 1e-5 if name in MEMORIES else 1e-6
        for key, value in expected.items():
            assert (found[key].dtype, found[key].shape) == (value.dtype, value.shape)
            if value.dtype.kind == "f":
                np.testing.assert_allclose(found[key], value, tolerance, tolerance, err_msg=key)
            else:
                np.testing.assert_array_equal(found[key], value, err_msg=key)
        # The comparison would mean little if all actions were alike.
        actions = [value for key, value in expected.items() if key.split("_")[0] == "actions"]
        assert all(len(np.unique(leaf)) > 1 for leaf in actions)


# One policy for everything below; nothing there changes it.


@pytest.fixture(scope="module", name="policy")
def _one_policy():
    with case_policy("image") as policy:
        yield policy


@pytest.fixture(scope="module")
def exported(policy, tmp_path_factory):
    return policy.export_model(tmp_path_factory.mktemp("exported"))


@pytest.fixture
def copy(exported, tmp_path):
    """A version that a test may damage."""
    return shutil.copytree(exported, tmp_path / "1")


def parts(policy):
    """What `export_saved_model` takes; to be closed by the caller."""
    spaces = policy.observation_space, policy.action_space
    graph = build_inference(*spaces, policy.config, policy.get_weights())
    return graph, policy._description(), policy._example()


def test_the_description_rides_along(exported):
    written = json.loads((exported / "assets.extra" / "tfpolicy.json").read_text())
    assert written["policy_class"] == "tfpolicy.policies.pg.PGPolicy"
    assert written["observation_space"]["dtype"] == "uint8"
    assert written["config"]["model"]["fcnet_hiddens"] == [6]
    assert written["versions"]["tensorflow"] == tf.__version__
    assert written["signatures"]["serving_default"]["inputs"] == {"obs": "uint8 [B, 3, 3, 1]"}


def test_an_env_config_that_json_cannot_hold_does_not_stop_an_export(policy, tmp_path):
    graph, description, example = parts(policy)
    config = {**description.config, "env_config": {"rng": np.random.default_rng(0), "inf": INF}}
    with graph:
        strange = dataclasses.replace(description, config=config)
        version = export_saved_model(tmp_path, graph, strange, example)
    with load_saved_model(version)[0]:
        pass


def test_exporting_twice_gives_the_same_signatures(policy, exported, tmp_path):  # a24
    again = policy.export_model(tmp_path)
    first, second = (saved_model.read_meta_graph(path).signature_def for path in (exported, again))
    assert first == second
    assert len(first) == 2


def test_twenty_exports_add_nothing_and_leave_nothing(policy, tmp_path):
    operations = len(policy.get_session().graph.get_operations())
    for _ in range(20):  # Until the allocator has seen it all.
        policy.export_model(tmp_path / "warm_up")
    before, sessions = memory(), live_sessions()
    for count in range(1, 21):
        assert policy.export_model(tmp_path / "model").name == str(count)
    assert memory() - before < 10e6
    assert live_sessions() == sessions
    assert len(policy.get_session().graph.get_operations()) == operations


def memory():
    """What this process holds now, in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def live_sessions():
    return sum(isinstance(thing, GraphSession) for thing in gc.get_objects())


def test_a_version_can_be_chosen_and_old_ones_limited(policy, tmp_path):
    for version in (3, 8, 5):
        policy.export_model(tmp_path, version=version)
    assert policy.export_model(tmp_path, version=6, keep=2) == tmp_path / "6"
    assert versions(tmp_path) == ["5", "6", "8"]
    with pytest.raises(FileExistsError, match="`version` must be new, but 6"):
        policy.export_model(tmp_path, version=6)
    with pytest.raises(ValueError, match="`keep` must be an integer of at least 1, got 0"):
        policy.export_model(tmp_path, keep=0)
    assert versions(tmp_path) == ["5", "6", "8"]


# What is not as it should be is not published.


def test_a_model_that_acts_otherwise_is_not_published(policy, tmp_path):
    graph, description, example = parts(policy)
    with graph:
        example.outputs["actions"][0, 0] += 1e-3
        del example.outputs["vf_preds"]
        with pytest.raises(RuntimeError, match="Nothing was published.* actions, vf_preds differ"):
            export_saved_model(tmp_path / "model", graph, description, example)
    assert not (tmp_path / "model").exists()


def test_an_opset_that_is_not_written_publishes_nothing(policy, tmp_path):
    with pytest.raises(ValueError, match="opset of 13 to 18, got 99"):
        policy.export_model(tmp_path / "model", onnx=99)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_actions_of_another_dtype_are_not_the_same(policy, tmp_path, dtype):
    graph, description, example = parts(policy)
    with graph, pytest.raises(RuntimeError, match="actions differ"):
        example.outputs["actions"] = example.outputs["actions"].astype(dtype)
        export_saved_model(tmp_path / "model", graph, description, example)


def test_an_export_that_fails_anywhere_leaves_what_was_there(policy, tmp_path, failing_disk):
    base = tmp_path / "model"
    policy.export_model(base)
    graph, description, example = parts(policy)
    failures = 0
    with graph:
        # At every third operation on a file, for each attempt takes its time.
        for nth in range(1, 100, 3):
            before = versions(base)
            with failing_disk.failing_at(nth):
                try:
                    export_saved_model(base, graph, description, example)
                except OSError:
                    failures += versions(base) == before
            if not failing_disk.failed:
                break
    assert failures >= 3
    for version in versions(base):  # Nothing but versions, and each of them whole.
        with load_saved_model(base / version)[0]:
            pass


def versions(base):
    return sorted(path.name for path in base.iterdir())


# Loading.


def test_the_newest_version_is_found(copy):
    base = copy.parent
    assert version_folder(copy) == copy
    for name in ("9", "0010", "11.old", "notes"):
        shutil.copytree(copy, base / name)
    assert version_folder(base) == base / "0010"


def test_what_is_no_model_says_what_is_missing(copy, tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        version_folder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="neither `saved_model.pb` nor a version"):
        version_folder(tmp_path / "empty")
    with pytest.raises(ValueError, match="neither `saved_model.pb` nor a version"):
        version_folder(copy / "saved_model.pb")
    (copy / "saved_model.pb").unlink()
    with pytest.raises(ValueError, match="has no `saved_model.pb`"):
        version_folder(copy.parent)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("assets.extra/tfpolicy.json", None, "must be written by tfpolicy"),
        ("assets.extra/tfpolicy.json", b"{", "not JSON"),
        ("assets.extra/tfpolicy.json", b"[]", "does not describe a SavedModel"),
        ("assets.extra/tfpolicy.sha256", None, "has no such file: it was copied in part"),
        ("saved_model.pb", b"\xff" * 40, "saved_model.pb` is damaged"),
        ("variables/variables.index", None, "variables.index` is missing"),
        ("variables/variables.data-00000-of-00001", b"", "00001` is damaged"),
    ],
)
def test_a_damaged_model_is_refused_by_name(copy, file, content, message):
    if content is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        load_saved_model(copy)
    assert os.fspath(copy) in str(error.value)


def test_a_later_format_says_who_wrote_it(copy):
    path = copy / saved_model.METADATA_FILE
    written = {**json.loads(path.read_text()), "format_version": 99}
    path.write_text(json.dumps(written))
    with pytest.raises(ValueError, match=r"format 99, written by .*'tfpolicy': '0\.\d.*up to 1"):
        load_saved_model(copy)
