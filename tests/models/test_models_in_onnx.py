"""Networks with a state and convolutions in an ONNX file: free batch dimension, no control flow."""

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
