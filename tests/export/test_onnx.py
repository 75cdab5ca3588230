"""An ONNX file gives what the policy gives, under the names of the SavedModel."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import Recurrent, small_policy

from tfpolicy.config import PolicyConfig
from tfpolicy.export.inference import SERVING, build_inference
from tfpolicy.export.onnx import OPSETS, check_opset, write_onnx
from tfpolicy.export.saved_model import load_saved_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

S = gym.spaces
NESTED = S.Dict(pos=S.Box(-1, 1, (2,)), rest=S.Tuple([S.Discrete(3), S.MultiBinary(2)]))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A version with an ONNX file, written by a policy."""
    with small_policy("pg", NESTED, S.Box(-2, 5, (2,), np.float64)) as policy:
        rng = np.random.default_rng(7)
        weights = {k: rng.normal(0, 0.6, v.shape) for k, v in policy.get_weights().items()}
        policy.set_weights(weights)
        return policy.export_model(tmp_path_factory.mktemp("exported"), onnx=17)


def test_the_runtime_gives_what_the_saved_model_gives_for_any_number_of_rows(exported):  # h8, h11
    runtime = onnxruntime.InferenceSession(exported / "model.onnx")
    with load_saved_model(exported)[0] as graph:
        act = graph.function(SERVING)
        for rows in (1, 5):
            inputs = {
                "obs_pos": np.random.default_rng(rows).uniform(-1, 1, (rows, 2)).astype("float32"),
                "obs_rest_0": np.arange(rows) % 3,
                "obs_rest_1": np.ones((rows, 2), np.int8),
            }
            expected = act(*(inputs[name] for name in graph.input_names))
            names = [output.name for output in runtime.get_outputs()]
            found = dict(zip(names, runtime.run(None, inputs), strict=True))
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert found[name].dtype == value.dtype
                np.testing.assert_allclose(found[name], value, atol=1e-6)


def test_the_file_has_the_asked_opset_and_no_control_flow_or_randomness(exported):  # h3, h5, h14
    model = onnx.load(exported / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {opset.version for opset in model.opset_import if opset.domain == ""} == {17}
    kinds = {node.op_type for node in model.graph.node}
    assert not kinds & {"If", "Loop", "Scan", "RandomUniform", "RandomNormal", "Multinomial"}
    sizes = [value.type.tensor_type.shape.dim[0] for value in model.graph.input]
    assert all(size.dim_param for size in sizes)


@pytest.mark.parametrize("opset", [OPSETS[0], OPSETS[-1]])
def test_the_ends_of_the_range_of_opsets_are_written(exported, opset, tmp_path):
    with load_saved_model(exported)[0] as graph:
        inputs = [np.ones((2, 2), np.float32), np.ones(2, np.int64), np.ones((2, 2), np.int8)]
        named = dict(zip(graph.input_names, inputs, strict=True))
        found = write_onnx(tmp_path / "model.onnx", graph, opset, named)
        expected = graph.function(SERVING)(*inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)


@pytest.mark.parametrize("opset", [12, 19, "17", 17.5, None])
def test_other_opsets_are_refused_with_the_range(opset):  # h2
    with pytest.raises(ValueError, match="`onnx` must be an opset of 13 to 18, got"):
        check_opset(opset)


def test_operations_that_onnx_has_not_are_named(tmp_path):
    model = {"custom_model": Recurrent, "fcnet_hiddens": [4]}
    config = PolicyConfig.from_dict({"model": model})
    weights = {name: np.zeros((4, 4)) for name in ("w", "u", "out")}
    spaces = S.Box(-1, 1, (4,)), S.Discrete(3)
    with build_inference(*spaces, config, {**weights, "b": np.zeros(4)}) as graph:
        inputs = {"obs": np.zeros((1, 4), np.float32), "state_in_0": np.zeros((1, 4), np.float32)}
        with pytest.raises(ValueError, match="cannot be written as ONNX of opset 17: .*TensorList"):
            write_onnx(tmp_path / "model.onnx", graph, 17, inputs)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(ImportError, match=r"need the package tf2onnx: pip install tfpolicy\[onnx"):
        check_opset(17)


def test_eager_execution_and_the_default_graph_stay_as_they_were(exported):
    assert tf.executing_eagerly()
    assert tf.constant(1).numpy() == 1
