"""LSTM and GRU policies: acting, padding, towers, previous actions, burn-in."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, THREE, ppo_batch, small_policy

from tfpolicy.config import ModelConfig
from tfpolicy.graph.towers import TrainBatch
from tfpolicy.models import Recurrent, model_for
from tfpolicy.sequences import pad_batch

S = gym.spaces
UNITS, MAX_SEQ_LEN = 3, 4
LSTM = {
    "fcnet_hiddens": [4],
    "use_lstm": True,
    "lstm_cell_size": UNITS,
    "max_seq_len": MAX_SEQ_LEN,
    # Values have a cell of their own where that matters.
    "vf_share_layers": True,
}
NESTED = S.Dict(move=S.Discrete(3, start=5), power=S.Box(-1, 1, (2,)), keys=S.MultiDiscrete([2, 3]))
# Episodes of these lengths become sequences of 4, 2, 4, 1, 1, 3 rows (case j19).
EPISODES, SEQ_LENS = [4, 2, 5, 1, 3], [4, 2, 4, 1, 1, 3]
PADDING = -1


def make(towers=1, model=None, **config):
    config = {
        "standardize_advantages": False,
        "grad_clip": None,
        "sgd_minibatch_size": 24,
        **config,
    }
    if towers > 1:
        config.update(num_gpus=towers, fake_gpus=True)
    return small_policy(model={**LSTM, **(model or {})}, **config)


def batch_of_episodes(num_states=2, seed=0):
    """Rows of PPO with episode ends, and a random state before each row."""
    batch = ppo_batch(sum(EPISODES), seed)
    ends = np.cumsum(EPISODES) - 1
    batch["terminateds"] = np.isin(np.arange(sum(EPISODES)), ends)
    batch["truncateds"] = np.zeros(sum(EPISODES), bool)
    rng = np.random.default_rng(seed)
    for index in range(num_states):
        batch[f"state_in_{index}"] = rng.uniform(-1, 1, (sum(EPISODES), UNITS)).astype(np.float32)
    return batch


@pytest.fixture(scope="module")
def one():
    with make(num_gpus=1, fake_gpus=True) as policy:
        policy.start = policy.get_state()
        yield policy


@pytest.fixture(scope="module")
def two():
    with make(towers=2) as policy:
        yield policy


@pytest.fixture(autouse=True)
def _start_again(one):
    one.set_state(one.start)


def loss_and_gradients(policy, config, parts):
    """Mean loss and gradients over several lists of batches, with random weights.

    Args:
        policy: Whose loss it is.
        config: Of the model.
        parts: For each result the batches that it is the mean of: pairs of padded columns and the
            length of their sequences.
    """
    batches = [batch for part in parts for batch in part]
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        with session.as_default():
            config = ModelConfig.from_dict(config)
            model = model_for(OBS, THREE, policy.dist_class.num_inputs, config, seed=0)
        variables = graph.get_collection("variables")
        coefficients = {name: tf.constant(1.0) for name in ("entropy_coeff", "kl_coeff")}
        fetches = []
        for columns, length in batches:
            tensors = {name: tf.constant(value) for name, value in columns.items()}
            train_batch = TrainBatch(tensors, coefficients, length)
            loss = policy.loss(model, policy.dist_class, train_batch).loss
            fetches.append([loss, *tf.gradients(loss, variables)])
        rng = np.random.default_rng(1)
        for variable in variables:
            variable.load(rng.normal(0, 0.7, variable.shape), session)
        found = iter(session.run(fetches))
    results = []
    for part in parts:
        rows = [np.sum(columns["seq_lens"]) for columns, _ in part]
        computed = [next(found) for _ in part]
        terms = [[n * term for term in terms] for n, terms in zip(rows, computed, strict=True)]
        results.append([sum(column) / sum(rows) for column in zip(*terms, strict=True)])
    return results


def assert_close(found, expected, tolerance=1e-6):
    for first, second in zip(found, expected, strict=True):
        scale = max(1.0, np.abs(second).max())
        np.testing.assert_allclose(first, second, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("cell", ["use_lstm", "use_gru"])
def test_loss_and_gradients_on_padded_sequences_are_those_without_padding(one, cell):  # i1, i3
    config = {**LSTM, "use_lstm": False, cell: True, "vf_share_layers": cell == "use_gru"}
    batch = {**batch_of_episodes(num_states=4), "seq_lens": np.int32(SEQ_LENS)}
    plain = []
    # Sequences of one length need no padding: each length is computed for itself.
    for length in sorted(set(SEQ_LENS)):
        rows = np.repeat(np.array(SEQ_LENS) == length, SEQ_LENS)
        part = {name: column[rows] for name, column in batch.items() if name != "seq_lens"}
        part["seq_lens"] = np.full(SEQ_LENS.count(length), length, np.int32)
        plain.append((pad_batch(part, length), length))
    padded = [[(pad_batch(batch, length), length)] for length in (MAX_SEQ_LEN, MAX_SEQ_LEN + 3)]
    expected, *found = loss_and_gradients(one, config, [plain, *padded])
    assert all(np.abs(term).max() > 1e-3 for term in expected)
    for padded in found:
        assert_close(padded, expected)


def test_towers_make_the_gradients_and_the_update_of_one(one, two):  # c2
    batch = batch_of_episodes()
    gradients, result = one.compute_gradients(batch)
    one.learn_on_batch(batch)
    with make(towers=3) as three:
        for policy in (two, three):
            policy.set_state(one.start)
            found, tower_result = policy.compute_gradients(batch)
            policy.learn_on_batch(batch)
            assert_close(found, gradients)
            assert_close(policy.get_weights().values(), one.get_weights().values())
            stats = tower_result["learner_stats"]
            assert stats == pytest.approx(result["learner_stats"], abs=1e-6)
            assert tower_result["num_rows"] == result["num_rows"] == sum(EPISODES)


def test_sequences_lie_padded_on_the_devices_as_in_the_worked_example(one, two):  # c4, j19
    batch = batch_of_episodes()
    batch["obs"] = np.arange(15, dtype=np.float32)[:, None] * np.float32([0.01, 0.02, 0.03, 0.04])
    rows = np.array([
        [0, 1, 2, 3], [4, 5, PADDING, PADDING], [6, 7, 8, 9],
        [10, PADDING, PADDING, PADDING], [11, PADDING, PADDING, PADDING], [12, 13, 14, PADDING],
    ])  # fmt: skip
    for towers, policy in ((1, one), (2, two)):
        assert policy.load_batch_into_buffer(batch) == 6 // towers * MAX_SEQ_LEN
        for tower in range(towers):
            found = loaded_columns(policy, tower)
            dealt = rows[tower::towers]
            np.testing.assert_array_equal(found["seq_lens"], SEQ_LENS[tower::towers])
            for name in ("obs", "actions", "advantages", "action_dist_inputs"):
                padded = (dealt == PADDING).reshape(*dealt.shape, *[1] * (batch[name].ndim - 1))
                expected = np.where(padded, 0, batch[name][dealt])
                np.testing.assert_array_equal(found[name], expected)
            for name in (f"state_in_{index}" for index in range(2)):
                np.testing.assert_array_equal(found[name], batch[name][dealt[:, 0]])


def loaded_columns(policy, tower):
    """What lies on one device of a policy, by column."""
    names = {
        name: f"buffer_0/tower_{tower}/column_{index}/Read/ReadVariableOp:0"
        for index, name in enumerate(policy._learning.layout.specs)
    }
    return policy.get_session().run(names)


def test_a_state_starts_at_zero_and_any_number_of_rows_goes_on_from_it(one):  # e25
    assert isinstance(one.model, Recurrent)
    assert [state.tolist() for state in one.get_initial_state()] == [[0.0] * UNITS] * 2
    obs = ppo_batch(6)["obs"]
    zeros = [np.zeros((6, UNITS), np.float32)] * 2
    _, states, extras = one.compute_actions(obs, explore=False)
    _, same, given = one.compute_actions(obs, zeros, explore=False)
    np.testing.assert_array_equal(states, same)
    np.testing.assert_array_equal(extras["action_dist_inputs"], given["action_dist_inputs"])
    _, after, further = one.compute_actions(obs, states, explore=False)
    for row in range(6):
        one_row = slice(row, row + 1)
        state = [part[one_row] for part in states]
        _, found, extras = one.compute_actions(obs[one_row], state, explore=False)
        np.testing.assert_allclose(np.array(found)[:, 0], np.array(after)[:, row], atol=1e-6)
        np.testing.assert_allclose(extras["vf_preds"][0], further["vf_preds"][row], atol=1e-6)


def test_learning_sees_the_network_as_acting_did(one):
    batch, state = batch_of_episodes(), None
    inputs, values = [], []
    for row, obs in enumerate(batch["obs"]):
        if row == 0 or batch["terminateds"][row - 1]:
            state = [part[None] for part in one.get_initial_state()]
        for index, part in enumerate(state):
            batch[f"state_in_{index}"][row] = part[0]
        _, state, extras = one.compute_actions(obs[None], state)
        inputs.append(extras["action_dist_inputs"][0])
        values.append(extras["vf_preds"][0])
    batch["action_dist_inputs"] = np.array(inputs)
    batch["value_targets"] = np.array(values)
    stats = one.learn_on_batch(batch)["learner_stats"]
    # Old and new policy are one, and so are values and their targets.
    assert abs(stats["kl"]) < 1e-6 and stats["vf_loss"] < 1e-10


@pytest.mark.parametrize("share", [True, False])
def test_values_have_a_cell_of_their_own_unless_layers_are_shared(share):
    with tf.Graph().as_default() as graph:
        config = ModelConfig.from_dict({**LSTM, "vf_share_layers": share})
        model = model_for(OBS, THREE, 3, config, seed=0)
        names = {v.name.rpartition("/")[0] for v in graph.get_collection("variables")}
    expected = {"fc_1", "lstm/lstm_cell", "logits", "values"}
    assert names == expected | (set() if share else {"fc_value_1", "lstm_value/lstm_cell"})
    assert len(model.initial_state()) == (2 if share else 4)


def test_previous_actions_are_one_hot_by_part_and_rewards_follow():
    model = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True, "use_gru": True}
    model.update(use_lstm=False)
    with make(model=model, action_space=NESTED) as policy:
        assert policy.acting_columns == (
            "obs", "prev_actions", "prev_rewards", "state_in_0"
        )  # fmt: skip
        weights = policy.get_weights()
        # 4 features, move one-hot (3), power as it is (2), keys one-hot (2 and 3), the reward.
        kernel = weights["gru/gru_cell/kernel"]
        assert kernel.shape == (4 + 3 + 2 + 5 + 1, 3 * UNITS)
        previous = {
            "keys": np.array([[1, 2], [0, 0]]),
            "move": np.array([6, 5]),
            "power": np.float32([[0.5, -0.25], [0, 0]]),
        }
        encoded = np.array([
            [0, 1, 0, 0.5, -0.25, 0, 1, 0, 0, 1, 7], [1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0]
        ])  # fmt: skip
        obs = np.zeros((2, 4), np.float32)
        _, (found,), _ = policy.compute_actions(
            obs, prev_action_batch=previous, prev_reward_batch=[7.0, 0.0], explore=False
        )
        hidden = np.tanh(weights["fc_1/bias"])
        inputs = np.concatenate([np.tile(hidden, (2, 1)), encoded], axis=1)
        bias = weights["gru/gru_cell/bias"]
        x_z, x_r, x_h = np.split(inputs @ kernel + bias[0], 3, axis=1)
        h_z, h_r, h_h = np.split(bias[1], 3)
        z, r = 1 / (1 + np.exp(-x_z - h_z)), 1 / (1 + np.exp(-x_r - h_r))
        np.testing.assert_allclose(found, (1 - z) * np.tanh(x_h + r * h_h), rtol=0, atol=1e-6)
        with pytest.raises(KeyError, match="needs the column 'prev_actions'"):
            policy.compute_actions(obs)


def test_before_the_first_step_the_previous_action_is_no_action():
    model = {"lstm_use_prev_action": True}
    with make(model=model, action_space=S.Discrete(3, start=5)) as policy:
        weights = policy.get_weights()
        assert weights["lstm/lstm_cell/kernel"].shape[0] == 4 + 3
        before_first = policy.compute_actions(np.zeros((1, 4), "f"), prev_action_batch=[0])[1]
        weights["lstm/lstm_cell/kernel"][4:] = 0
        policy.set_weights(weights)
        without = policy.compute_actions(np.zeros((1, 4), "f"), prev_action_batch=[6])[1]
        np.testing.assert_array_equal(before_first[0], without[0])


def test_rows_that_warm_up_enter_no_mean_and_pass_no_gradient(one):
    with make(model={"burn_in": 2}, num_gpus=1, fake_gpus=True) as burnt:
        batch = batch_of_episodes()
        gradients, result = burnt.compute_gradients(batch)
        assert result["num_rows"] == 15
        # By hand: the last row of the third episode starts from the state that 8 and 9 lead to.
        rows = [*range(10), 8, 9, 10, 11, 12, 13, 14]
        again = {name: column[rows] for name, column in batch.items()}
        again["seq_lens"] = np.int32([4, 2, 4, 3, 1, 3])
        again["burn_in"] = np.isin(np.arange(17), [10, 11])
        found, same = burnt.compute_gradients(again)
        assert same == result
        assert_close(found, gradients, 0)
        # What warms up matters through the state it leads to, and in no other way.
        rubbish = {**again, "advantages": np.where(again["burn_in"], 1e3, again["advantages"])}
        assert burnt.compute_gradients(rubbish)[1] == result
        assert burnt.load_batch_into_buffer(batch) == 6 * MAX_SEQ_LEN
        counted = burnt.learn_on_buffer(1)
        assert (counted["num_rows"], counted["num_rows_dropped"]) == (15, 0)


@pytest.mark.parametrize(
    "config, text",
    [
        ({"use_lstm": True, "use_gru": True}, "`use_lstm` and `use_gru` exclude each other"),
        ({"use_lstm": True, "custom_model": Recurrent}, "`custom_model` and `use_lstm` exclude"),
        ({"burn_in": 4, "max_seq_len": 4}, r"`burn_in` must be less than `max_seq_len` \(4\)"),
    ],
)
def test_what_cannot_be_combined_is_refused(config, text):
    with pytest.raises(ValueError, match=text):
        ModelConfig.from_dict(config)


def test_images_go_through_convolutions_before_the_cell():
    space = S.Box(0, 255, (8, 8, 1), np.uint8)
    model = {"conv_filters": [[2, 4, 2], [3, 4, 1]]}
    with make(model=model, obs_space=space) as policy:
        assert policy.get_weights()["lstm/lstm_cell/kernel"].shape == (3, 4 * UNITS)
        images = np.random.default_rng(0).integers(0, 256, (15, 8, 8, 1), np.uint8)
        before = policy.get_weights()
        policy.learn_on_batch({**batch_of_episodes(), "obs": images})
        after = policy.get_weights()
        assert all((before[name] != after[name]).any() for name in before)
