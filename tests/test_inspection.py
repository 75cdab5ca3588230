import datetime
import json
import math

import h5py
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from ruamel.yaml import YAML

from tfpolicy.export.h5 import write_h5
from tfpolicy.inspection import describe, env_config, inspect
from tfpolicy.models import FullyConnected
from tfpolicy.policies import policy_class
from tfpolicy.view_requirement import ViewRequirement

OBSERVATIONS = spaces.Dict(image=spaces.Box(0, 255, (2, 3), np.uint8), speed=spaces.Discrete(4))
ACTIONS = spaces.Box(np.float32([-1, -math.inf]), np.float32([3, math.inf]))


@pytest.fixture(name="policy", scope="module")
def _one_policy():
    config = {"model": {"fcnet_hiddens": [5]}, "env_config": {"gravity": 3}, "seed": 1}
    policy = policy_class("pg")(OBSERVATIONS, ACTIONS, config)
    yield policy
    policy.close()


def test_a_saved_model_tells_signatures_spaces_weights_and_versions(policy, tmp_path):
    policy.export_model(tmp_path)
    policy.compute_single_action(OBSERVATIONS.sample(), explore=True)
    newest = policy.export_model(tmp_path)
    found = inspect(tmp_path)
    assert found == inspect(newest)
    assert (found["kind"], found["version"]) == ("SavedModel", "2")
    exported = datetime.datetime.fromisoformat(found["exported"])
    assert abs(datetime.datetime.now(datetime.timezone.utc) - exported).total_seconds() < 600
    assert found["global_timestep"] == policy.global_timestep > 0
    signature = found["signatures"]["serving_default"]
    assert signature["inputs"] == {"obs_image": "uint8 [B, 2, 3]", "obs_speed": "int64 [B]"}
    assert signature["outputs"]["actions"] == "float32 [B, 2]"
    assert found["observation_space"] == str(OBSERVATIONS)
    assert found["action_space"] == str(ACTIONS)
    assert found["weights"] == {
        name: f"float32 {list(value.shape)}" for name, value in sorted(policy.get_weights().items())
    }
    assert found["versions"]["tensorflow"] == tf.__version__
    assert found["config"]["model"]["fcnet_hiddens"] == [5]
    assert env_config(tmp_path) == {"gravity": 3}


def test_a_saved_model_tells_which_steps_its_inputs_show(tmp_path):
    class Looking(FullyConnected):
        def view_requirements(self):
            return {"acts": ViewRequirement("actions", shift=[-3, -1])}

        def __call__(self, columns):
            output = super().__call__(columns)
            acts, known = (
                tf.reduce_sum(tf.cast(leaf, tf.float32), axis=list(range(1, leaf.shape.rank)))
                for leaf in (columns["acts"], columns["acts_valid"])
            )
            return output._replace(dist_inputs=output.dist_inputs + (acts * known)[:, None])

    model = {"custom_model": Looking, "num_framestacks": 4, "fcnet_hiddens": [4]}
    with policy_class("pg")(spaces.Discrete(3), ACTIONS, {"model": model}) as policy:
        policy.export_model(tmp_path)
    found = inspect(tmp_path)
    assert found["views"] == {
        "acts": "actions at [-3, -1]",
        "acts_valid": "mask of actions at [-3, -1]",
        "prev_n_obs": "obs at -3:0",
    }
    inputs = found["signatures"]["serving_default"]["inputs"]
    assert inputs == {
        "acts": "float32 [B, 2, 2]",
        "acts_valid": "bool [B, 2]",
        "prev_n_obs": "int64 [B, 4]",
    }


def test_a_checkpoint_tells_the_same(policy, tmp_path):
    policy.save(tmp_path / "saved")
    found = inspect(tmp_path / "saved")
    assert found["kind"] == "checkpoint"
    assert found["policy_class"] == "tfpolicy.policies.pg.PGPolicy"
    assert found["observation_space"] == str(OBSERVATIONS)
    assert found["weights"] == {
        name: f"float32 {list(value.shape)}" for name, value in policy.get_weights().items()
    }
    assert found["config"]["env_config"] == {"gravity": 3}
    assert env_config(tmp_path / "saved") == {"gravity": 3}


def test_the_description_is_yaml(policy, tmp_path):
    policy.save(tmp_path / "saved")
    text = describe(tmp_path / "saved")
    read = YAML(typ="safe").load(text)
    assert read == {"path": str(tmp_path / "saved"), **inspect(tmp_path / "saved")}


def test_a_saved_model_of_somebody_else_tells_what_it_can(tmp_path):
    module = tf.Module()
    module.scale = tf.Variable([2.0, 3.0])
    function = tf.function(
        lambda x: {"y": module.scale * x}, input_signature=[tf.TensorSpec([None, 2], name="x")]
    )
    tf.saved_model.save(module, str(tmp_path), signatures=function)
    found = inspect(tmp_path)
    assert found["signatures"]["serving_default"] == {
        "inputs": {"x": "float32 [B, 2]"},
        "outputs": {"y": "float32 [B, 2]"},
    }
    assert any(text == "float32 [2]" for text in found["weights"].values())
    assert "observation_space" not in found


def test_h5_weights_are_listed_with_and_without_architecture(tmp_path):
    weights = [("fc_1", [("kernel", np.zeros((4, 2), np.float32))])]
    write_h5(tmp_path / "weights.h5", weights)
    found = inspect(tmp_path / "weights.h5")
    assert found["architecture"] == "none: weights only"
    assert found["weights"] == {"fc_1/fc_1/kernel:0": "float32 [4, 2]"}
    architecture = json.dumps({"class_name": "Functional", "config": {"layers": []}})
    with h5py.File(tmp_path / "model.h5", "w") as file:
        file.attrs["model_config"] = architecture
        file.attrs["keras_version"] = b"2.15.0"
    found = inspect(tmp_path / "model.h5")
    assert found["architecture"] == "Functional"
    assert found["versions"] == {"keras_version": "2.15.0"}


def test_onnx_is_read_if_its_package_is_there(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["B", 2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    found = inspect(tmp_path / "model.onnx")
    assert found["signatures"] == {
        "inputs": {"x": "float32 [B, 2]"},
        "outputs": {"y": "float32 [B, 2]"},
    }


@pytest.mark.parametrize(
    "name, message",
    [
        ("notes.txt", r"must be a folder or a file of \.h5, \.hdf5, \.onnx"),
        ("broken.h5", "must be an h5 file, but it is something else or truncated"),
        ("empty", "must be a SavedModel, a folder of versions or a checkpoint"),
        ("broken", "is a damaged SavedModel"),
    ],
)
def test_anything_else_is_refused_by_name(tmp_path, name, message):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "broken.h5").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "saved_model.pb").write_bytes(b"\xff\xff hello")
    with pytest.raises(ValueError, match=message):
        inspect(tmp_path / name)
