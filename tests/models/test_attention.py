"""Attention policies: padding, towers, views of previous steps, exports."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, ppo_batch, small_policy
from tensorflow.core.protobuf import saved_model_pb2

from tfpolicy.config import ModelConfig
from tfpolicy.models import Attention, model_for

S = gym.spaces
MEMORY, DIM = 3, 6
MODEL = {
    "fcnet_hiddens": [4],
    "use_attention": True,
    "attention_dim": DIM,
    "attention_head_dim": 4,
    "attention_memory_inference": MEMORY,
    "max_seq_len": 4,
    "vf_share_layers": True,
}
EPISODES = [4, 2, 5, 1, 3]
LOOPS = {"While", "StatelessWhile", "If", "StatelessIf", "Switch", "Merge", "Enter", "Exit"}


def make(model=None, **config):
    config = {
        "standardize_advantages": False,
        "grad_clip": None,
        "sgd_minibatch_size": 24,
        **config,
    }
    return small_policy(model={**MODEL, **(model or {})}, **config)


@pytest.fixture(scope="module")
def policy():
    with make() as policy:
        policy.start = policy.get_state()
        yield policy


def acted_batch(policy):
    """Episodes as the policy acts in them, with the states before each row."""
    batch = ppo_batch(sum(EPISODES))
    batch["terminateds"] = np.isin(np.arange(sum(EPISODES)), np.cumsum(EPISODES) - 1)
    batch["truncateds"] = np.zeros(sum(EPISODES), bool)
    rows, state = [], None
    for row, obs in enumerate(batch["obs"]):
        if row == 0 or batch["terminateds"][row - 1]:
            state = [part[None] for part in policy.get_initial_state()]
        before = {f"state_in_{index}": part[0] for index, part in enumerate(state)}
        _, state, extras = policy.compute_actions(obs[None], state)
        rows.append({**before, **{name: value[0] for name, value in extras.items()}})
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    batch.update(columns)
    batch["value_targets"] = batch["vf_preds"]
    return batch


def test_learning_sees_the_network_as_acting_did_on_any_number_of_towers(policy):  # c2
    assert isinstance(policy.model, Attention)
    policy.set_state(policy.start)
    batch = acted_batch(policy)
    gradients, result = policy.compute_gradients(batch)
    stats = result["learner_stats"]
    assert result["num_rows"] == sum(EPISODES)
    assert abs(stats["kl"]) < 1e-6 and stats["vf_loss"] < 1e-10
    with make(num_gpus=2, fake_gpus=True) as two:
        two.set_state(policy.start)
        found, tower_result = two.compute_gradients(batch)
        assert tower_result["learner_stats"] == pytest.approx(stats, abs=1e-6)
        for first, second in zip(found, gradients, strict=True):
            np.testing.assert_allclose(first, second, rtol=0, atol=1e-6)


def test_all_weights_learn_compiled_or_not(policy):
    policy.set_state(policy.start)
    batch = acted_batch(policy)
    batch["value_targets"] = batch["value_targets"] + 1
    before, after = policy.get_weights(), []
    with make(jit_compile=True) as compiled:
        for each in (policy, compiled):
            each.set_state(policy.start)
            each.load_batch_into_buffer(batch)
            each.learn_on_buffer(1, shuffle=False)
            after.append(each.get_weights())
    # The softmax takes no notice of what all keys have in common.
    unused = {"attention_1_key/bias", "attention_1_position/bias"}
    for name, value in before.items():
        assert name in unused or (after[0][name] != value).any(), name
        np.testing.assert_allclose(after[1][name], after[0][name], rtol=0, atol=1e-5)


def test_an_export_has_no_loop_and_goes_on_from_its_initial_state(policy, tmp_path):  # h8
    policy.set_state(policy.start)
    path = policy.export_model(tmp_path)
    message = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    graph = message.meta_graphs[0].graph_def
    functions = [node.op for f in graph.library.function for node in f.node_def]
    assert not ({node.op for node in graph.node} | set(functions)) & LOOPS
    loaded = tf.saved_model.load(path)
    act, start = loaded.signatures["serving_default"], loaded.signatures["initial_state"]
    for rows in (1, 7):
        states = start(batch_size=tf.zeros(rows, tf.int32))
        expected = None
        for obs in ppo_batch(5 * rows)["obs"].reshape(5, rows, 4):
            actions, expected, extras = policy.compute_actions(obs, expected, explore=False)
            found = act(obs=tf.constant(obs), **states)
            np.testing.assert_array_equal(found["actions"], actions)
            np.testing.assert_allclose(found["vf_preds"], extras["vf_preds"], rtol=0, atol=1e-6)
            states = {f"state_in_{i}": found[f"state_out_{i}"] for i in range(len(expected))}


def test_values_have_a_transformer_of_their_own_unless_layers_are_shared(policy):
    shared = set(policy.get_weights())
    config = ModelConfig.from_dict({**MODEL, "vf_share_layers": False})
    with tf.Graph().as_default() as graph:
        model = model_for(OBS, S.Discrete(3), 3, config, seed=0)
        names = {variable.name[:-2] for variable in graph.get_collection("variables")}
    heads = {"logits/kernel", "logits/bias", "values/kernel", "values/bias"}
    assert {name.replace("_value", "", 1) for name in names - shared} == shared - heads
    assert [s.shape for s in model.initial_state()] == [(MEMORY, DIM), (1,)] * 2


def test_windows_of_previous_actions_and_rewards_are_inputs():
    model = {"attention_use_n_prev_actions": 2, "attention_use_n_prev_rewards": 3}
    action_space = S.Tuple([S.Discrete(3), S.Box(-1, 1, (2,))])
    with make(model=model, action_space=action_space) as policy:
        weights = policy.get_weights()
        assert weights["attention_in/kernel"].shape == (4 + 2 * (3 + 2) + 3, DIM)
        views = policy.view_requirements
        assert views["prev_n_actions"].shift == "-2:-1" and views["prev_n_rewards"].shift == "-3:-1"
        columns = {
            "obs": np.zeros((1, 4), "f"),
            "prev_n_actions": (np.array([[2, 0]]), np.float32([[[0.5, -0.5], [0.25, 1]]])),
            "prev_n_rewards": np.float32([[7, 8, 9]]),
        }
        _, (memory, count), _ = policy.compute_actions_from_input_dict(columns, explore=False)
        seen = [0, 0, 1, 0.5, -0.5, 1, 0, 0, 0.25, 1, 7, 8, 9]
        inputs = np.concatenate([np.tanh(weights["fc_1/bias"]), seen])
        expected = inputs @ weights["attention_in/kernel"] + weights["attention_in/bias"]
        np.testing.assert_allclose(memory[0, -1], expected, rtol=0, atol=1e-5)
        assert count.tolist() == [[1]] and not memory[0, :-1].any()
        with pytest.raises(KeyError, match="needs the column 'prev_n_actions'"):
            policy.compute_actions(np.zeros((1, 4)))


def test_training_cannot_look_back_farther_than_acting():
    with pytest.raises(ValueError, match=r"at most `attention_memory_inference` \(3\), got 4"):
        ModelConfig(attention_memory_inference=3, attention_memory_training=4)
