"""Whatever a policy left behind is compared with what the policy did."""

import shutil

import gymnasium as gym
import numpy as np
import pytest
from small_policies import Recurrent, recurrent_policy, small_policy

from tfpolicy import checksums
from tfpolicy.checkpoint import read_checkpoint, write_checkpoint
from tfpolicy.export.h5 import read_h5, read_own, write_h5
from tfpolicy.export.saved_model import EXAMPLE_FILE
from tfpolicy.npz import read_npz, write_npz
from tfpolicy.verification import table, verify

S = gym.spaces
OBS = S.Dict(image=S.Box(0, 255, (2, 2), np.uint8), speed=S.Box(-1, 1, (3,)), gear=S.Discrete(3))
ACTIONS = S.Dict(go=S.Discrete(3), where=S.Box(-2, 5, (2,)))
MODEL = {"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 3, "lstm_use_prev_action": True}
OUTPUTS = {
    "actions_go", "actions_where", "action_logp", "action_dist_inputs", "vf_preds",
    "state_out_0", "state_out_1", "state_out_2", "state_out_3",
}  # fmt: skip
# Where each kind lies in the folder of all.
PLACES = {
    "versions": "model",
    "version": "model/1",
    "checkpoint": "checkpoint",
    "h5": "weights.h5",
    "onnx": "model/1/model.onnx",
}


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory):
    """A folder with one artifact of each kind."""
    folder = tmp_path_factory.mktemp("left_behind")
    try:
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401

        opset = 17
    except ImportError:
        opset = None
    with small_policy("pg", OBS, ACTIONS, model=MODEL) as policy:
        policy.export_model(folder / "model", onnx=opset)
        policy.save(folder / "checkpoint")
        policy.export_model_to_h5(folder / "weights.h5")
    return folder


@pytest.fixture
def copies(left_behind, tmp_path):
    """The same, to be damaged."""
    return shutil.copytree(left_behind, tmp_path / "copies")


@pytest.mark.parametrize("kind", PLACES)
def test_what_was_written_does_what_was_recorded(left_behind, kind):
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")
    lines = verify(left_behind / PLACES[kind])
    assert {line.output for line in lines} == OUTPUTS
    assert all(line.same for line in lines)
    assert max(line.difference for line in lines) < 1e-6


def record_otherwise(folder, kind):
    """Changes one recorded output of an artifact, whose checksums fit afterwards."""
    path = folder / PLACES[kind]
    if kind == "version":
        arrays = read_npz(path / EXAMPLE_FILE)
        arrays["outputs/vf_preds"][3] += 0.5
        write_npz(path / EXAMPLE_FILE, arrays)
        checksums.write_list(path)
    elif kind == "checkpoint":
        description, state = read_checkpoint(path)
        description["example"]["outputs"]["vf_preds"][3] += 0.5
        write_checkpoint(path, description, state)
    else:
        own = read_own(path)
        own["outputs/vf_preds"][3] += 0.5
        write_h5(path, read_h5(path), own=own)


@pytest.mark.parametrize("kind", ["version", "checkpoint", "h5"])
def test_what_does_otherwise_is_told_by_output(copies, kind):
    record_otherwise(copies, kind)
    lines = verify(copies / PLACES[kind])
    assert [line.output for line in lines if not line.same] == ["vf_preds"]
    rows = table(lines).splitlines()
    assert len(rows) == 1 + len(OUTPUTS)
    (row,) = [row.split() for row in rows if row.startswith("vf_preds")]
    assert row[-1] == "DIFFERS" and 0.2 < float(row[-3]) < 0.5 and float(row[-2]) >= 1e-5
    assert sum(row.endswith("same") for row in rows) == len(OUTPUTS) - 1


@pytest.mark.parametrize("kind", ["versions", "checkpoint", "h5", "onnx"])
def test_what_is_damaged_is_refused_by_name(copies, kind):
    path = copies / PLACES[kind]
    if path.is_dir():
        (path,) = [*path.glob("1/saved_model.pb"), *path.glob("*.npz")]
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path.name}` is damaged"):
        verify(copies / PLACES[kind])


def test_a_custom_model_has_to_be_given(tmp_path):
    with recurrent_policy("pg") as policy:
        policy.save(tmp_path / "checkpoint")
        policy.export_model_to_h5(tmp_path / "weights.h5")
    for name in ("checkpoint", "weights.h5"):
        with pytest.raises(ValueError, match=r"pass `model.custom_model` \(was .*Recurrent\)"):
            verify(tmp_path / name)
        lines = verify(tmp_path / name, {"model": {"custom_model": Recurrent}})
        assert all(line.same for line in lines)


def test_a_policy_that_has_diverged_is_written_without_a_record(tmp_path):
    with small_policy("pg") as policy:
        state = policy.get_state()
        nans = {k: np.full_like(v, np.nan) for k, v in state["weights"].items()}
        policy.set_state({**state, "weights": nans})
        policy.save(tmp_path / "checkpoint")
        policy.export_model_to_h5(tmp_path / "weights.h5")
        policy.restore(tmp_path / "checkpoint")
    for name in ("checkpoint", "weights.h5"):
        with pytest.raises(ValueError, match=f"{name}` must hold recorded actions"):
            verify(tmp_path / name)


def test_what_was_not_written_by_a_policy_has_no_record(tmp_path):
    write_h5(tmp_path / "weights.h5", [("fc", [("kernel", np.zeros(2))])])
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name, message in {
        "weights.h5": "must be written by a policy",
        "notes.txt": r"must be a folder or a file of \.h5, \.hdf5, \.onnx",
        "empty": "must be a SavedModel, a folder of versions or a checkpoint",
    }.items():
        with pytest.raises(ValueError, match=message):
            verify(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="nowhere` must be something to verify"):
        verify(tmp_path / "nowhere")


def test_an_onnx_file_of_others_has_no_record(tmp_path):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "model.onnx").write_bytes(onnx.ModelProto(ir_version=8).SerializeToString())
    with pytest.raises(ValueError, match="must be an ONNX file written by tfpolicy"):
        verify(tmp_path / "model.onnx")
    (tmp_path / "model.onnx").write_bytes(b"\xff hello")
    with pytest.raises(ValueError, match="is no ONNX file or damaged"):
        verify(tmp_path / "model.onnx")
