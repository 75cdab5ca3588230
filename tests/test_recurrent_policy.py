"""Policies with a state: acting step by step, and learning from padded sequences."""

import numpy as np
import pytest
import tensorflow as tf
from small_policies import MAX_SEQ_LEN, ppo_batch, recurrent_batch, recurrent_policy

from tfpolicy.graph.buffer import epoch_permutations
from tfpolicy.graph.seeds import SeedStream
from tfpolicy.sample_batch import SampleBatch

LENGTHS = [4, 2, 5, 1, 3]
MINIBATCH = 20


def make(**config):
    config = {
        "train_batch_size": 60,
        "sgd_minibatch_size": MINIBATCH,
        "standardize_advantages": False,
        "grad_clip": None,
        **config,
    }
    return recurrent_policy("ppo", **config)


@pytest.fixture(scope="module")
def one():
    with make(num_gpus=1, fake_gpus=True) as policy:
        policy.start = policy.get_state()
        yield policy


@pytest.fixture(scope="module")
def two():
    with make(num_gpus=2, fake_gpus=True) as policy:
        policy.start = policy.get_state()
        yield policy


@pytest.fixture(scope="module")
def short():
    """Sequences of 2 rows need no padding here."""
    with make(max_seq_len=2) as policy:
        yield policy


@pytest.fixture(autouse=True)
def _start_again(one, two):
    one.set_state(one.start)
    two.set_state(two.start)


def reference(policy, obs, state, seq_lens=None):
    """Outputs [B, 4] and the states after each row, sequence by sequence and step by step."""
    w = policy.get_weights()
    outputs, states = [], []
    starts = [0] if seq_lens is None else np.cumsum(seq_lens) - seq_lens
    for row, x in enumerate(obs):
        h = state[row] if row in starts else states[-1]
        states.append(np.tanh(x @ w["w"] + w["b"] + h @ w["u"]))
        outputs.append(states[-1] @ w["out"])
    return np.array(outputs), np.array(states)


def assert_equal_states(found, expected):
    tf.nest.assert_same_structure(found, expected)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def assert_same_gradients(found, expected):
    for first, second in zip(found, expected, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def part_of(batch, first, length):
    part = {k: v[first : first + length] for k, v in batch.items() if k != "seq_lens"}
    return {**part, "seq_lens": np.int32([length])}


def test_the_state_is_told_and_its_initial_value_cannot_be_changed_from_outside(one):
    assert one.is_recurrent() and one.num_state_tensors() == 1
    (state,) = one.get_initial_state()
    np.testing.assert_allclose(state, [-0.5, -1 / 6, 1 / 6, 0.5], rtol=1e-6)
    state[:] = 9
    assert one.get_initial_state()[0][0] == -0.5
    assert one.batch_divisibility_req == MAX_SEQ_LEN


def test_every_column_of_the_state_is_asked_for(one):  # d11
    views = one.view_requirements
    assert views["state_in_0"].used_for_compute_actions and views["state_in_0"].used_for_training
    # Postprocessing bootstraps from the state after the last step.
    assert views["state_out_0"].used_for_training
    assert not views["state_out_0"].used_for_compute_actions
    assert one.acting_columns == ("obs", "state_in_0")


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_any_number_of_rows_acts_from_the_initial_state_where_none_is_given(one, rows):  # e25
    obs = ppo_batch(rows)["obs"]
    initial = np.repeat(one.get_initial_state()[0][None], rows, axis=0)
    outputs, states = reference(one, obs, initial, np.ones(rows, int))
    for given in (None, [], [initial], [initial.astype(np.float64)]):
        _, (state,), extras = one.compute_actions(obs, given, explore=False)
        np.testing.assert_allclose(state, states, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(extras["action_dist_inputs"], outputs[:, :3], rtol=1e-4)
        np.testing.assert_allclose(extras["vf_preds"], outputs[:, 3], rtol=1e-4, atol=1e-6)


def test_each_row_goes_on_from_a_state_of_its_own(one):
    obs = ppo_batch(6)["obs"]
    state = [np.repeat(one.get_initial_state()[0][None], 2, axis=0)]
    found = []
    for step in range(3):
        _, state, extras = one.compute_actions(obs[[step, 3 + step]], state, explore=False)
        found.append(extras["action_dist_inputs"])
    starts = np.repeat(one.get_initial_state()[0][None], 6, axis=0)
    expected, _ = reference(one, obs, starts, np.int32([3, 3]))
    np.testing.assert_allclose(np.array(found)[:, 0], expected[:3, :3], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.array(found)[:, 1], expected[3:, :3], rtol=1e-4, atol=1e-6)


def test_single_actions_carry_a_state_without_a_batch_dimension(one):
    obs, state = ppo_batch(3)["obs"], None
    for row in obs:
        action, state, extras = one.compute_single_action(row, state, explore=False)
        assert one.action_space.contains(action)
    starts = np.repeat(one.get_initial_state()[0][None], 3, axis=0)
    outputs, states = reference(one, obs, starts)
    assert state[0].shape == (4,) and extras["action_dist_inputs"].shape == (3,)
    np.testing.assert_allclose(state[0], states[-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(extras["action_dist_inputs"], outputs[-1, :3], rtol=1e-4)


def test_values_and_likelihoods_depend_on_the_state(one):
    batch = recurrent_batch([1, 1, 1])
    _, _, extras = one.compute_actions(batch["obs"], [batch["state_in_0"]], explore=False)
    columns = {"obs": batch["obs"], "state_in_0": batch["state_in_0"]}
    np.testing.assert_array_equal(one.compute_values(columns), extras["vf_preds"])
    mode = extras["action_dist_inputs"].argmax(axis=1)
    found = one.compute_log_likelihoods(mode, batch["obs"], [batch["state_in_0"]])
    np.testing.assert_allclose(found, extras["action_logp"], rtol=1e-6)
    assert not np.allclose(found, one.compute_log_likelihoods(mode, batch["obs"]))


def test_a_fragment_that_goes_on_is_bootstrapped_from_the_state_after_it(one):
    rows = 3
    obs = ppo_batch(rows + 1)["obs"]
    starts = np.repeat(one.get_initial_state()[0][None], rows + 1, axis=0)
    outputs, states = reference(one, obs, starts)
    batch = {
        "obs": obs[:rows],
        "new_obs": obs[1:],
        "actions": np.zeros(rows, np.int64),
        "rewards": np.zeros(rows, np.float32),
        "terminateds": np.zeros(rows, bool),
        "truncateds": np.zeros(rows, bool),
        "vf_preds": np.zeros(rows, np.float32),
        "state_in_0": np.concatenate([starts[:1], states[: rows - 1]]).astype(np.float32),
        "state_out_0": states[:rows].astype(np.float32),
    }
    found = one.postprocess_trajectory(SampleBatch(batch))
    discount = one.config.gamma
    trace = (discount * one.config["lambda"]) ** np.arange(rows)[::-1]
    np.testing.assert_allclose(
        found["advantages"], trace * discount * outputs[-1, 3], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("policy", ["one", "two"])
def test_learning_runs_the_network_as_acting_did(policy, request):
    # Sequences that acting has gone through; if learning did anything else, KL were not 0.
    policy = request.getfixturevalue(policy)
    batch = recurrent_batch(LENGTHS)
    first = np.cumsum(LENGTHS) - LENGTHS
    inputs, row = [], 0
    for start, length in zip(first, LENGTHS, strict=True):
        state = [batch["state_in_0"][start : start + 1]]
        for row in range(start, start + length):
            batch["state_in_0"][row] = state[0][0]
            _, state, extras = policy.compute_actions(batch["obs"][row : row + 1], state)
            inputs.append(extras["action_dist_inputs"][0])
    batch["action_dist_inputs"] = np.array(inputs)
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert abs(stats["kl"]) < 1e-6
    probabilities = np.exp(inputs) / np.exp(inputs).sum(axis=1, keepdims=True)
    entropy = -(probabilities * np.log(probabilities)).sum(axis=1).mean()
    assert stats["entropy"] == pytest.approx(entropy, rel=1e-5)


def test_padding_changes_neither_loss_nor_statistics_nor_gradients(one, short):  # i1, i3
    short.set_weights(one.get_weights())
    batch = recurrent_batch([2, 2, 2, 2])
    padded, padded_result = one.compute_gradients(batch)
    plain, plain_result = short.compute_gradients(batch)
    assert padded_result["learner_stats"] == pytest.approx(plain_result["learner_stats"], rel=1e-5)
    assert padded_result["num_rows"] == plain_result["num_rows"] == 8
    assert_same_gradients(padded, plain)


@pytest.mark.parametrize("policy", ["one", "two"])
def test_every_real_row_counts_alike_however_long_its_sequence(policy, request):  # i1, i3
    policy = request.getfixturevalue(policy)
    batch, total = recurrent_batch(LENGTHS), sum(LENGTHS)
    found, result = policy.compute_gradients(batch)
    starts = np.cumsum(LENGTHS) - LENGTHS
    parts = [part_of(batch, *bounds) for bounds in zip(starts, LENGTHS, strict=True)]
    computed = [policy.compute_gradients(part) for part in parts]
    shares = np.array(LENGTHS) / total
    for index, gradient in enumerate(found):
        expected = sum(share * g[index] for share, (g, _) in zip(shares, computed, strict=True))
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)
    for name in ("total_loss", "policy_loss", "vf_loss", "kl", "entropy"):
        means = [part["learner_stats"][name] for _, part in computed]
        assert result["learner_stats"][name] == pytest.approx(shares @ means, rel=1e-4)
    assert (result["num_rows"], result["num_rows_dropped"]) == (total, 0)


@pytest.mark.parametrize("lengths", [LENGTHS, [3], [5, 5], [1, 1, 1], [2, 5, 5]])
def test_two_towers_split_at_sequences_and_make_the_update_of_one(one, two, lengths):  # c2
    batch = recurrent_batch(lengths)
    results = [policy.learn_on_batch(batch) for policy in (one, two)]
    assert results[0]["learner_stats"] == pytest.approx(results[1]["learner_stats"], rel=1e-4)
    assert results[0]["num_rows"] == results[1]["num_rows"] == sum(lengths)
    for name, weight in one.get_weights().items():
        np.testing.assert_allclose(two.get_weights()[name], weight, rtol=0, atol=1e-6)


def test_loaded_sequences_are_dealt_whole_and_every_offset_equals_that_of_one_tower(one, two):
    lengths = [5, 1, 3, 2, 4, 4, 5, 1]
    batch = recurrent_batch(lengths)
    assert one.load_batch_into_buffer(batch) == 8 * MAX_SEQ_LEN
    assert two.load_batch_into_buffer(batch) == 4 * MAX_SEQ_LEN
    for minibatch in range(2):
        expected = one.learn_on_loaded_batch(minibatch * MINIBATCH)
        found = two.learn_on_loaded_batch(minibatch * MINIBATCH // 2)
        assert found["learner_stats"] == pytest.approx(expected["learner_stats"], rel=1e-4)
        rows = sum(lengths[minibatch * 4 : minibatch * 4 + 4])
        for result in (expected, found):
            assert (result["num_rows"], result["num_rows_dropped"]) == (rows, 0)
    for name, weight in one.get_weights().items():
        np.testing.assert_allclose(two.get_weights()[name], weight, rtol=0, atol=1e-6)


def test_real_rows_are_counted_and_those_of_a_left_over_sequence_as_dropped(two):  # c4, j19
    assert two.load_batch_into_buffer(recurrent_batch(LENGTHS)) == 2 * MAX_SEQ_LEN
    result = two.learn_on_loaded_batch()
    assert (result["num_rows"], result["num_rows_dropped"]) == (4 + 2 + 5 + 1, 3)
    result = two.learn_on_buffer(2)
    assert (result["num_rows"], result["num_rows_dropped"]) == (12, 3)


@pytest.mark.parametrize("policy", ["one", "two"])
def test_learning_on_the_buffer_is_the_loop_over_sequences_in_the_same_order(policy, request):
    policy = request.getfixturevalue(policy)
    number = len(policy._devices)
    lengths = np.array([5, 1, 3, 2, 4, 4, 5, 1, 2, 3])
    batch, starts = recurrent_batch(lengths), np.cumsum(lengths) - lengths
    stream = SeedStream(0, "reproduced")
    stream.set_state(policy.get_state()["random"]["shuffling"])
    policy.load_batch_into_buffer(batch)
    result = policy.learn_on_buffer(num_sgd_iter=2)
    weights = policy.get_weights()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        orders = session.run(epoch_permutations(stream.next(), 2, 10 // number))
    policy.set_state(policy.start)
    for order in orders:
        sequences = (order[:, None] * number + np.arange(number)).ravel()
        rows = np.concatenate([np.arange(starts[s], starts[s] + lengths[s]) for s in sequences])
        shuffled = {name: column[rows] for name, column in batch.items() if name != "seq_lens"}
        policy.load_batch_into_buffer({**shuffled, "seq_lens": lengths[sequences]})
        looped = [
            policy.learn_on_loaded_batch(minibatch * MINIBATCH // number) for minibatch in range(2)
        ]
    for name, weight in policy.get_weights().items():
        np.testing.assert_allclose(weights[name], weight, rtol=0, atol=1e-6)
    assert result["num_rows"] == sum(each["num_rows"] for each in looped)
    assert result["num_rows"] + result["num_rows_dropped"] == lengths.sum()


def test_sequences_are_found_from_ends_and_changes_of_episode_and_fragment(one):
    rows = 15
    batch = recurrent_batch([2, 3, 1, 5, 4])
    expected = one.compute_gradients(batch)
    del batch["seq_lens"]
    batch["terminateds"] = np.arange(rows) == 1
    batch["truncateds"] = np.arange(rows) == 4
    batch["eps_id"] = np.repeat([7, 3], [6, 9])
    # 9 rows go on after row 5: they are cut after 5 of them.
    batch["unroll_id"] = np.repeat([1, 2], [6, 9])
    found = one.compute_gradients(batch)
    assert found[1] == expected[1]
    assert_equal_states(found[0], expected[0])


def test_only_the_state_before_the_first_row_of_a_sequence_is_read(one):
    batch = recurrent_batch(LENGTHS)
    expected, _ = one.compute_gradients(batch)
    inner = np.ones(sum(LENGTHS), bool)
    inner[np.cumsum(LENGTHS) - LENGTHS] = False
    batch["state_in_0"][inner] = np.nan
    found, _ = one.compute_gradients(batch)
    assert_equal_states(found, expected)


def without(batch, *names):
    return {name: column for name, column in batch.items() if name not in names}


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (
            lambda p: p.compute_actions(np.zeros((3, 4)), [np.zeros((2, 4))]),
            ValueError,
            "`state_in_0`: expected 3 rows, got 2",
        ),
        (
            lambda p: p.compute_actions(np.zeros((3, 4)), [np.zeros((3, 5))]),
            ValueError,
            r"`state_in_0`: expected shape \(B, 4\), got \(3, 5\)",
        ),
        (
            lambda p: p.compute_actions(np.zeros((3, 4)), [np.zeros((3, 4))] * 2),
            ValueError,
            "`state_batches`: expected 1 arrays, got 2",
        ),
        (
            lambda p: p.compute_actions_from_input_dict({"state_in_0": np.zeros((1, 4))}),
            KeyError,
            "needs the column 'obs'",
        ),
        (
            lambda p: p.compute_actions_from_input_dict(
                {"obs": np.zeros((1, 4)), "state_in_1": np.zeros((1, 4))}
            ),
            KeyError,
            "no column 'state_in_1'. Did you mean 'state_in_0'",
        ),
        (
            lambda p: p.learn_on_batch(without(recurrent_batch([3]), "state_in_0")),
            KeyError,
            "lacks what learning reads: state_in_0",
        ),
        (
            lambda p: p.learn_on_batch(without(recurrent_batch([3]), "seq_lens")),
            KeyError,
            "`terminateds`",
        ),
        (
            lambda p: p.learn_on_batch({**recurrent_batch([3, 2]), "seq_lens": [3, 3]}),
            ValueError,
            "expected the lengths of sequences in 5 rows",
        ),
        (
            lambda p: p.learn_on_batch(recurrent_batch([6])),
            ValueError,
            "at most `max_seq_len` = 5, got 6",
        ),
        (
            lambda p: p.load_batch_into_buffer({**recurrent_batch([3]), "seq_lens": [3.0]}),
            ValueError,
            "expected integers",
        ),
        (
            lambda p: (
                p.load_batch_into_buffer(recurrent_batch([3, 2])),
                p.learn_on_loaded_batch(3),
            ),
            ValueError,
            "in 0 to 9, a multiple of 5, got 3",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(one, use, error, text):
    with pytest.raises(error, match=text):
        use(one)
    assert_equal_states(one.get_state(), one.start)
