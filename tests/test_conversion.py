"""Weights of a file become whatever acts, with spaces and a config from elsewhere."""

import json

import numpy as np
import pytest
import tf_keras
from small_policies import OBS, THREE, TINY, ppo_batch, small_policy

from tfpolicy import TFPolicy, load_policy
from tfpolicy.conversion import convert, describe
from tfpolicy.spaces import space_to_json


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """What a policy left behind, what a person would write of it, and what it does."""
    folder = tmp_path_factory.mktemp("sources")
    with small_policy("pg") as policy:
        policy.learn_on_batch(ppo_batch(20))
        policy.save(folder / "checkpoint")
        policy.export_model(folder / "model")
        policy.export_model_to_h5(folder / "weights.h5")
        extras = policy.compute_actions(ppo_batch(5)["obs"], explore=False)[2]
    model = tf_keras.models.load_model(folder / "weights.h5", compile=False)
    model.save_weights(folder / "keras.h5")
    spaces = {"observation_space": space_to_json(OBS), "action_space": space_to_json(THREE)}
    (folder / "written.json").write_text(json.dumps({**spaces, "config": {"model": TINY}}))
    return folder, extras["action_dist_inputs"]


@pytest.mark.parametrize("like", ["checkpoint", "model", "model/1", "weights.h5", "written.json"])
def test_a_keras_file_becomes_a_saved_model_like_another_policy(sources, like, tmp_path):
    folder, expected = sources
    version = convert(folder / "keras.h5", tmp_path / "out", "savedmodel", folder / like)
    assert version == tmp_path / "out" / "1"
    with load_policy(tmp_path / "out") as served:
        found = served.compute_actions(ppo_batch(5)["obs"])[2]["action_dist_inputs"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_file_of_ours_says_itself_what_it_belongs_to(sources, tmp_path):
    folder, expected = sources
    assert describe(folder / "weights.h5") == describe(folder / "checkpoint")
    path = convert(folder / "weights.h5", tmp_path / "checkpoint", "checkpoint")
    with TFPolicy.from_checkpoint(path) as policy:
        found = policy.compute_actions(ppo_batch(5)["obs"], explore=False)[2]
        np.testing.assert_array_equal(found["action_dist_inputs"], expected)
        policy.learn_on_batch(ppo_batch(5))


def test_a_description_by_hand_is_of_ppo_unless_it_says_otherwise(sources):
    folder, _ = sources
    assert describe(folder / "written.json").policy_class == "tfpolicy.policies.ppo.PPOPolicy"
    assert describe(folder / "model").policy_class == "tfpolicy.policies.pg.PGPolicy"


def test_what_does_not_fit_writes_nothing(sources, tmp_path):
    folder, _ = sources
    wide = json.loads((folder / "written.json").read_text())
    wide["config"]["model"] = {"fcnet_hiddens": [9]}
    (tmp_path / "wide.json").write_text(json.dumps(wide))
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "half.json").write_text(json.dumps({"action_space": space_to_json(THREE)}))
    (tmp_path / "no.json").write_text("{")
    files = sorted(tmp_path.iterdir())
    for like, message in {
        "wide.json": r"expected \(4, 9\), got \(4, 8\)",
        "list.json": "must be a JSON object, got list",
        "half.json": "must describe a policy, but it has no observation_space",
        "no.json": "must be JSON, but it is not",
    }.items():
        with pytest.raises(ValueError, match=message):
            convert(folder / "keras.h5", tmp_path / "out", "savedmodel", tmp_path / like)
    with pytest.raises(ValueError, match="keras.h5` must say what its weights belong to"):
        convert(folder / "keras.h5", tmp_path / "out", "savedmodel")
    with pytest.raises(ValueError, match="must be one of savedmodel, checkpoint, got 'onnx'"):
        convert(folder / "weights.h5", tmp_path / "out", "onnx")
    with pytest.raises(ValueError, match="`onnx` rides along with a SavedModel"):
        convert(folder / "weights.h5", tmp_path / "out", "checkpoint", onnx=17)
    with pytest.raises(FileNotFoundError, match="nowhere` must describe a policy"):
        convert(folder / "weights.h5", tmp_path / "out", "savedmodel", tmp_path / "nowhere")
    assert sorted(tmp_path.iterdir()) == files
