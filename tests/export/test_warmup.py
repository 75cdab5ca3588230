"""What TensorFlow Serving is to ask of a version first can be asked of it."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, THREE, small_policy
from tensorflow_serving.apis import prediction_log_pb2

from tfpolicy.export.saved_model import read_meta_graph
from tfpolicy.export.warmup import WARMUP_FILE

S = gym.spaces
CASES = {
    "image": (S.Box(0, 255, (3, 3, 1), np.uint8), S.Box(-2, 6, (2,)), {}),
    "nested": (S.Dict(a=S.Discrete(3), b=S.Tuple([OBS, S.MultiBinary(2)])), THREE, {}),
    "recurrent": (
        OBS,
        S.Dict(go=THREE, by=S.Box(-1, 1, (2,), np.float64)),
        {"use_lstm": True, "lstm_use_prev_action": True, "lstm_use_prev_reward": True},
    ),
    "frames": (OBS, THREE, {"num_framestacks": 3}),
}


@pytest.fixture(scope="module", params=CASES)
def exported(request, tmp_path_factory):
    """A policy and a version of it."""
    obs_space, action_space, model = CASES[request.param]
    model = {"fcnet_hiddens": [8], "max_seq_len": 4, **model}
    with small_policy("pg", obs_space, action_space, model=model) as policy:
        yield policy, policy.export_model(tmp_path_factory.mktemp("exported"))


def records(version):
    """The requests by signature."""
    logs = [
        prediction_log_pb2.PredictionLog.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(version / WARMUP_FILE))
    ]
    requests = [log.predict_log.request for log in logs]
    return {request.model_spec.signature_name: request for request in requests}


def test_there_is_a_record_of_one_row_for_every_signature(exported):
    _, version = exported
    signatures = read_meta_graph(version).signature_def
    found = records(version)
    assert found.keys() == signatures.keys()
    for name, request in found.items():
        assert request.inputs.keys() == signatures[name].inputs.keys()
        for key, value in request.inputs.items():
            info = signatures[name].inputs[key]
            assert value.dtype == info.dtype
            shape, expected = (
                [d.size for d in s.dim] for s in (value.tensor_shape, info.tensor_shape)
            )
            assert shape == [1, *expected[1:]]


def test_the_records_replay(exported):  # a27, a30
    _, version = exported
    model = tf.saved_model.load(str(version))
    found = records(version)
    assert found.keys() == set(model.signatures)
    for name, request in found.items():
        inputs = {k: tf.constant(tf.make_ndarray(v)) for k, v in request.inputs.items()}
        outputs = model.signatures[name](**inputs)
        assert all(np.isfinite(value).all() and len(value) == 1 for value in outputs.values())


@pytest.mark.parametrize("exported", ["recurrent"], indirect=True)
def test_two_exports_have_the_same_records(exported, tmp_path):
    policy, version = exported
    again = policy.export_model(tmp_path)
    assert (again / WARMUP_FILE).read_bytes() == (version / WARMUP_FILE).read_bytes()


@pytest.mark.parametrize("exported", ["image"], indirect=True)
def test_without_the_extra_a_version_has_none(exported, tmp_path, monkeypatch):
    policy, _ = exported
    monkeypatch.setitem(sys.modules, "tensorflow_serving", None)
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis", None)
    version = policy.export_model(tmp_path)
    assert not (version / WARMUP_FILE).exists()
