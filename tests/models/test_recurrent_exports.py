"""What leaves the process of an LSTM or GRU policy: a loop-free SavedModel, a file for Keras."""

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from small_policies import OBS, ppo_batch, small_policy
from tensorflow.core.protobuf import saved_model_pb2

from tfpolicy.models.recurrent import Recurrent

S = gym.spaces
UNITS, STEPS = 3, 5
LOOPS = {"While", "StatelessWhile", "If", "StatelessIf", "Switch", "Merge", "Enter", "Exit"}
MODELS = {
    "lstm": {"use_lstm": True, "lstm_use_prev_action": True, "lstm_use_prev_reward": True},
    "gru": {"use_gru": True, "vf_share_layers": True},
    "lstm over images": {
        "use_lstm": True, "conv_filters": [[2, 4, 2], [3, 4, 1]], "vf_share_layers": True
    },
}  # fmt: skip
IMAGE = S.Box(0, 255, (8, 8, 1), np.uint8)


@pytest.fixture(scope="module", params=MODELS)
def policy(request):
    model = {"fcnet_hiddens": [4], "lstm_cell_size": UNITS, "max_seq_len": 4}
    space = IMAGE if "images" in request.param else OBS
    with small_policy(obs_space=space, model={**model, **MODELS[request.param]}) as policy:
        assert isinstance(policy.model, Recurrent)
        policy.previous = "prev_actions" in policy.acting_columns
        yield policy


def observations(policy, rows):
    rng = np.random.default_rng(0)
    if policy.observation_space == IMAGE:
        return rng.integers(0, 256, (STEPS, rows, 8, 8, 1), np.uint8)
    return ppo_batch(STEPS * rows)["obs"].reshape(STEPS, rows, 4)


def played(policy, rows):
    """Acts step by step; yields inputs by name, and what came out."""
    state = [np.repeat(part[None], rows, axis=0) for part in policy.get_initial_state()]
    previous = {}
    if policy.previous:
        previous = {"prev_actions": np.zeros(rows, int), "prev_rewards": np.zeros(rows, "f")}
    for step, obs in enumerate(observations(policy, rows)):
        columns = {"obs": obs, **previous}
        columns.update((f"state_in_{index}", part) for index, part in enumerate(state))
        actions, state, extras = policy.compute_actions_from_input_dict(columns, explore=False)
        yield columns, actions, state, extras
        if policy.previous:
            previous = {"prev_actions": actions, "prev_rewards": np.full(rows, step, "f")}


def test_a_saved_model_goes_on_from_its_initial_state_without_any_loop(policy, tmp_path):  # a1, a15
    path = policy.export_model(tmp_path)
    message = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    kinds = {node.op for meta in message.meta_graphs for node in meta.graph_def.node}
    kinds |= {
        node.op
        for meta in message.meta_graphs
        for function in meta.graph_def.library.function
        for node in function.node_def
    }
    assert not kinds & LOOPS
    assert not {kind for kind in kinds if "TensorList" in kind or "TensorArray" in kind}
    loaded = tf.saved_model.load(path)
    act, start = loaded.signatures["serving_default"], loaded.signatures["initial_state"]
    for rows in (1, 7):
        state = start(batch_size=tf.zeros(rows, tf.int32))
        for columns, actions, states, extras in played(policy, rows):
            given = {k: tf.constant(v) for k, v in columns.items() if not k.startswith("state")}
            found = act(**given, **state)
            np.testing.assert_array_equal(found["actions"], actions)
            np.testing.assert_allclose(found["vf_preds"], extras["vf_preds"], rtol=0, atol=1e-6)
            state = {f"state_in_{i}": found[f"state_out_{i}"] for i in range(len(states))}
            for index, part in enumerate(states):
                np.testing.assert_allclose(state[f"state_in_{index}"], part, rtol=0, atol=1e-6)


@pytest.mark.parametrize("library", [tf_keras, keras], ids=["tf_keras", "keras3"])
def test_keras_opens_the_file_and_runs_whole_sequences(policy, library, tmp_path):
    policy.export_model_to_h5(tmp_path / "model.h5")
    steps = list(played(policy, 2))
    obs = np.stack([columns["obs"] for columns, *_ in steps], axis=1)
    inputs = [obs / np.float32(255) if policy.observation_space == IMAGE else obs]
    if policy.previous:
        actions = np.stack([columns["prev_actions"] for columns, *_ in steps], axis=1)
        rewards = np.stack([columns["prev_rewards"] for columns, *_ in steps], axis=1)
        inputs.append(np.concatenate([np.eye(3)[actions], rewards[:, :, None]], axis=2))
    model = library.models.load_model(tmp_path / "model.h5", compile=False)
    outputs, values, *states = model.predict(inputs, verbose=0)
    for step, (_, _, _, extras) in enumerate(steps):
        np.testing.assert_allclose(outputs[:, step], extras["action_dist_inputs"], atol=1e-6)
        np.testing.assert_allclose(values[:, step, 0], extras["vf_preds"], atol=1e-6)
    np.testing.assert_allclose(states, steps[-1][2], atol=1e-6)


def test_weights_come_back_from_the_file(policy, tmp_path):
    weights = policy.get_weights()
    policy.export_model_to_h5(tmp_path / "model.h5")
    policy.set_weights({name: np.zeros_like(value) for name, value in weights.items()})
    policy.import_model_from_h5(tmp_path / "model.h5")
    for name, value in policy.get_weights().items():
        np.testing.assert_array_equal(value, weights[name])
