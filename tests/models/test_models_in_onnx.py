"""States, convolutions and filters in an ONNX file: free batch dimension, no control flow."""

import gymnasium as gym
import numpy as np
import pytest
from small_policies import OBS, small_policy

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

IMAGE = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)
SHARED = {"fcnet_hiddens": [4], "vf_share_layers": True, "lstm_cell_size": 3}
MODELS = {
    "lstm over images": (IMAGE, {"use_lstm": True, "conv_filters": [[2, 4, 2], [3, 4, 1]]}),
    "gru": (OBS, {"use_gru": True}),
    "attention": (OBS, {
        "use_attention": True, "attention_num_transformer_units": 2, "attention_dim": 6,
        "attention_head_dim": 3, "attention_num_heads": 2, "attention_memory_inference": 3,
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_runtime_goes_on_from_state_to_state_as_the_policy_does(name, tmp_path):  # h6, h8
    space, model = MODELS[name]
    with small_policy(obs_space=space, model={**SHARED, **model}) as policy:
        path = policy.export_model(tmp_path, onnx=17) / "model.onnx"
        kinds = {node.op_type for node in onnx.load(path).graph.node}
        assert not kinds & {"If", "Loop", "Scan"}
        runtime = onnxruntime.InferenceSession(path)
        names = [output.name for output in runtime.get_outputs()]
        rng = np.random.default_rng(0)
        for rows in (1, 7):
            states = [np.repeat(s[None], rows, axis=0) for s in policy.get_initial_state()]
            for _ in range(5):
                obs = rng.uniform(space.low, space.high, (rows, *space.shape)).astype(space.dtype)
                inputs = {f"state_in_{index}": state for index, state in enumerate(states)}
                found = dict(zip(names, runtime.run(None, {"obs": obs, **inputs}), strict=True))
                actions, states, extras = policy.compute_actions(obs, states, explore=False)
                np.testing.assert_array_equal(found["actions"], actions)
                np.testing.assert_allclose(found["vf_preds"], extras["vf_preds"], atol=1e-5)
                for index, state in enumerate(states):
                    np.testing.assert_allclose(found[f"state_out_{index}"], state, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int16])
def test_the_runtime_normalizes_as_the_policy_does(dtype, tmp_path):
    space = gym.spaces.Box(-10_000, 10_000, (3,), dtype)
    rng = np.random.default_rng(0)
    seen, obs = (rng.normal(50, [20, 300, 5], (100, 3)).astype(dtype) for _ in range(2))
    seen[:, 2] = 7
    with small_policy(obs_space=space, observation_filter="MeanStdFilter") as policy:
        for name in ("without statistics", "with them"):
            path = policy.export_model(tmp_path / name, onnx=13) / "model.onnx"
            runtime = onnxruntime.InferenceSession(path)
            names = [output.name for output in runtime.get_outputs()]
            found = dict(zip(names, runtime.run(None, {"obs": obs}), strict=True))
            actions, _, extras = policy.compute_actions(obs, explore=False)
            np.testing.assert_array_equal(found["actions"], actions)
            for output in ("vf_preds", "action_dist_inputs", "action_logp"):
                np.testing.assert_allclose(found[output], extras[output], rtol=1e-5, atol=1e-6)
            policy.update_observation_filter({"obs": seen})
