"""Every form in which weights of RLlib lie about is read by name, and nothing else is."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from tfpolicy.export.rllib_files import read_rllib
from tfpolicy.npz import write_npz

DATA = Path(__file__).parents[1] / "data/rllib"
SCOPED = DATA / "ray-1.6.0/scoped"
POLICY_FOLDER = DATA / "ray-2.9.3/scoped/ckpt"


def recorded(net):
    with np.load(net / "weights.npz") as arrays:
        return {name.replace("|", "/"): arrays[name] for name in arrays}


WEIGHTS = recorded(SCOPED)


def same(found, expected=WEIGHTS):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value))
    return path


@pytest.mark.parametrize("file", ["policy_state.pkl", "weights.npz"])
def test_files_of_a_policy_are_read(file):
    same(read_rllib(SCOPED / file))
    same(read_rllib(os.fspath(SCOPED / file)))


def test_the_weights_of_a_keras_network_have_its_names():
    same(read_rllib(SCOPED / "base_model.h5"), {f"{name}:0": a for name, a in WEIGHTS.items()})


def test_dicts_of_weights_and_states_are_read():
    same(read_rllib(WEIGHTS))
    same(read_rllib({"weights": WEIGHTS, "global_timestep": 7}))
    assert read_rllib({"w": np.float32(2.0)}) == {"w": np.array(2.0)}


def test_an_npz_needs_no_substitute_for_slashes(tmp_path):
    write_npz(tmp_path / "w.npz", WEIGHTS)
    same(read_rllib(tmp_path / "w.npz"))


def test_the_folder_of_a_policy_is_read():
    same(read_rllib(POLICY_FOLDER), recorded(POLICY_FOLDER.parent))


def test_the_policies_of_an_algorithm_are_found(tmp_path):
    shutil.copytree(POLICY_FOLDER, tmp_path / "policies/left")
    same(read_rllib(tmp_path), recorded(POLICY_FOLDER.parent))
    write(tmp_path / "policies/right/policy_state.pkl", {"weights": WEIGHTS})
    same(read_rllib(tmp_path, "right"))
    for unknown in (None, "middle"):
        with pytest.raises(ValueError, match="one of the policies left, right, got"):
            read_rllib(tmp_path, unknown)


def test_the_checkpoint_of_a_trainer_is_read(tmp_path):
    states = {"one": {"weights": WEIGHTS}, "two": {"weights": {"w": np.ones(2)}}}
    worker = pickle.dumps({"filters": {}, "state": states})
    path = write(tmp_path / "checkpoint-10", {"worker": worker, "train_exec_impl": None})
    same(read_rllib(path, "one"))
    same(read_rllib(path, "two"), {"w": np.ones(2)})
    with pytest.raises(ValueError, match="checkpoint-10`.* one of the policies one, two, got None"):
        read_rllib(path)
    single = pickle.dumps({"state": {"default_policy": {"weights": WEIGHTS}}})
    same(read_rllib(write(path, {"worker": single})))


def test_states_of_early_versions_are_dicts_of_weights_and_more(tmp_path):
    state = {**WEIGHTS, "_optimizer_variables": [np.ones(3)]}
    same(read_rllib(write(tmp_path / "s.pkl", state)))


class Call:
    """Pickles as a call that leaves a mark."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"weights": {**WEIGHTS, "w": Call()}}, "weight 'w' .* made by `posix.mkdir`"),
        (
            {"weights": Call()},
            "`weights` must be a dict of arrays, but it is made by `posix.mkdir`",
        ),
        (Call(), "must be a dict, but this one is made by `posix.mkdir`"),
        (
            {"weights": {"w": np.array([Call()])}},
            "weight 'w' must be an array of numbers: its data",
        ),
        ({"weights": {"w": [1.0, 2.0]}}, "weight 'w' must be .* but it is of type list"),
        ({"weights": {"w": "text"}}, "weight 'w' must be .* but it is of type str"),
        (
            {"weights": {"w": np.array(["text"])}},
            "weight 'w' must be an array of numbers: its dtype",
        ),
        ({"weights": list(WEIGHTS.values())}, "a list without names, as policies of .*tf2"),
        ({"worker": pickle.dumps(Call())}, "worker must hold policies by name"),
        ({"worker": pickle.dumps({"state": {"a": {"weights": Call()}}})}, "made by `posix.mkdir`"),
        ({"worker": b"text"}, "It is no pickle"),
    ],
)
def test_what_is_no_array_where_weights_should_be_is_refused_and_not_run(
    state, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"s.pkl` must hold weights of RLlib by name.*{message}"):
        read_rllib(write(tmp_path / "s.pkl", state))
    assert not (tmp_path / "ran").exists()


def test_calls_elsewhere_in_a_pickle_are_not_run_either(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = {"before": Call(), "weights": WEIGHTS, "policy_spec": {"config": [Call()]}}
    same(read_rllib(write(tmp_path / "s.pkl", state)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [[1.0], "text", None, np.array(["text"]), np.array([None])])
def test_dicts_of_anything_but_arrays_are_refused(value):
    with pytest.raises(ValueError, match="'w' must be an array of numbers"):
        read_rllib({"w": value})


@pytest.mark.parametrize("source", [None, 3, [("w", np.ones(1))]])
def test_what_is_neither_a_path_nor_a_dict_is_refused(source):
    with pytest.raises(TypeError, match="`source` must be a path or a dict of weights, got "):
        read_rllib(source)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_rllib(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="policies/<name>/policy_state.pkl"):
        read_rllib(tmp_path)


@pytest.mark.parametrize("file", ["policy_state.pkl", "weights.npz", "base_model.h5"])
def test_damaged_files_are_named(file, tmp_path):
    data = (SCOPED / file).read_bytes()
    for size in (0, 7, 100, len(data) // 2, len(data) - 20):
        (tmp_path / file).write_bytes(data[:size])
        with pytest.raises(ValueError, match=file):
            read_rllib(tmp_path / file)
