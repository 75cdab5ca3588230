"""When observations enter the statistics of a filter, and what is learned under which of them."""

import gymnasium as gym
import numpy as np
import pytest
from filtered_policies import (
    FILTER,
    MOMENTS,
    NO_KL,
    Pair,
    act,
    assert_moments,
    assert_same,
    moments,
    normalize,
    observe,
)
from small_policies import (
    OBS,
    TINY,
    Recurrent,
    Regression,
    recurrent_batch,
    small_policy,
)

S = gym.spaces


@pytest.fixture(scope="module")
def made():
    pair = Pair()
    yield pair
    pair.close()


@pytest.fixture
def pair(made):
    return made.reset()


@pytest.fixture
def policy(pair):
    return pair.filtered


def test_a_batch_enters_once_however_often_it_is_learned_from(policy):
    batches = [observe(128, seed) for seed in range(3)]
    policy.load_batch_into_buffer(act(policy, batches[0]))
    assert_moments(policy, batches[0])
    for offset in (0, 32, 64):
        policy.learn_on_loaded_batch(offset // policy.batch_divisibility_req)
    policy.learn_on_buffer(num_sgd_iter=3)
    assert_moments(policy, batches[0])
    policy.learn_on_batch(act(policy, batches[1]))
    assert_moments(policy, *batches[:2])
    policy.load_batch_into_buffer(act(policy, batches[2]))
    assert_moments(policy, *batches)


def learn_by_minibatch(policy, batch):
    policy.load_batch_into_buffer(batch)
    return policy.learn_on_loaded_batch()


def learn_in_one_call(policy, batch):
    policy.load_batch_into_buffer(batch)
    # Nothing of the first minibatch is left in means over more of them.
    return policy.learn_on_buffer(num_sgd_iter=1, shuffle=False)


def learn_on_batch(policy, batch):
    return policy.learn_on_batch(batch)


LEARNING = pytest.mark.parametrize(
    "learn, rows", [(learn_by_minibatch, 128), (learn_in_one_call, 32), (learn_on_batch, 128)]
)


@LEARNING
def test_the_ratio_is_one_before_the_first_step(made, learn, rows):
    # Statistics that a batch would change a lot, and ones that there are none of yet.
    for seen in ([], [observe(8, 5) + 3.0]):
        policy = made.reset(*seen).filtered
        batch = act(policy, observe(rows))
        stats = learn(policy, batch)["learner_stats"]
        assert abs(stats["kl"]) < NO_KL
        # Without a ratio other than 1 the surrogate is the mean advantage, standardized over all.
        advantages = batch["advantages"]
        standardized = (advantages - advantages.mean()) / advantages.std()
        expected = -standardized[: 32 if learn is learn_by_minibatch else rows].mean()
        assert stats["policy_loss"] == pytest.approx(expected, abs=1e-6)


@LEARNING
def test_the_update_is_that_of_the_plain_policy_on_normalized_observations(made, learn, rows):
    seen = observe(200, 1)
    pair = made.reset(seen)
    batch = act(pair.filtered, observe(rows))
    found = learn(pair.filtered, batch)
    expected = learn(pair.plain, {**batch, "obs": normalize(batch["obs"], seen)})
    assert_same(found["learner_stats"], expected["learner_stats"], rtol=1e-4, atol=1e-5)
    weights = {k: v for k, v in pair.filtered.get_weights().items() if not k.startswith(MOMENTS)}
    # A step of Adam is as large as the rate, whatever the gradient.
    assert_same(weights, pair.plain.get_weights(), atol=2e-5)
    assert_moments(pair.filtered, seen, batch["obs"])


def test_each_buffer_keeps_the_statistics_of_its_own_batch():
    first, second = observe(128, 1), observe(128, 2) * 3.0
    with small_policy(num_multi_gpu_tower_stacks=2, sgd_minibatch_size=32, **FILTER) as policy:
        for index, obs in enumerate((first, second)):
            policy.load_batch_into_buffer(act(policy, obs), buffer_index=index)
        weights = policy.get_weights()
        for index in (1, 0):
            policy.set_weights(weights)
            stats = policy.learn_on_loaded_batch(buffer_index=index)["learner_stats"]
            assert abs(stats["kl"]) < NO_KL


def test_computing_and_applying_gradients_leaves_the_statistics(made):
    policy = made.reset(observe(50)).filtered
    batch = act(policy, observe(64, 1))
    before = policy.get_state()
    gradients, result = policy.compute_gradients(batch)
    assert "num_rows_not_finite" not in result
    policy.apply_gradients(gradients)
    applied = policy.get_weights()
    assert_same(moments(policy), moments(made.reset(observe(50)).filtered))
    policy.set_state(before)
    policy.learn_on_batch(batch)
    trained = {name: applied[name] for name in policy.trainable_names}
    assert_same({name: policy.get_weights()[name] for name in trained}, trained)


def test_rows_that_are_not_finite_are_counted_and_stay_out(policy):
    obs = observe(128)
    batch = act(policy, obs)
    batch["obs"] = obs.copy()
    batch["obs"][[3, 70], [0, 2]] = np.nan, np.inf
    policy.load_batch_into_buffer(batch)
    assert_moments(policy, np.delete(obs, [3, 70], axis=0))
    # The first minibatch would hold the NaN.
    for offset in (32, 96):
        result = policy.learn_on_loaded_batch(offset // policy.batch_divisibility_req)
        assert result["num_rows_not_finite"] == 2
    assert policy.learn_on_batch(act(policy, obs))["num_rows_not_finite"] == 0


def test_a_batch_that_is_refused_does_not_enter(made):
    policy = made.reset(observe(50)).filtered
    state = policy.get_state()
    good = act(policy, observe(64, 1))
    bad = {**good, "advantages": np.full(64, np.nan, np.float32)}
    with pytest.raises(FloatingPointError):
        policy.learn_on_batch(bad)
    for learn in (policy.learn_on_batch, policy.load_batch_into_buffer):
        with pytest.raises(KeyError, match="value_targets"):
            learn({name: value for name, value in good.items() if name != "value_targets"})
        with pytest.raises(ValueError, match=r"expected shape \(B, 4\), got \(64, 3\)"):
            learn({**good, "obs": good["obs"][:, :3]})
    assert_same(policy.get_weights(), state["weights"])


def test_a_loss_that_reads_no_observations_still_needs_them_for_the_filter():
    class Blind(Regression):
        def loss(self, model, dist_class, train_batch):
            columns = {"obs": train_batch["new_obs"]}
            return super().loss(model, dist_class, _Columns(train_batch, columns))

    with Blind(OBS, S.Discrete(3), {"model": TINY, "seed": 0, **FILTER}) as policy:
        new_obs, rewards = observe(8), np.zeros(8, np.float32)
        with pytest.raises(KeyError, match="lacks `obs`, whose mean"):
            policy.learn_on_batch({"new_obs": new_obs, "rewards": rewards})
        policy.learn_on_batch({"new_obs": new_obs, "rewards": rewards, "obs": observe(8, 1)})
        assert_moments(policy, observe(8, 1))


class _Columns(dict):
    """A train batch with other columns."""

    def __init__(self, batch, columns):
        super().__init__(columns)
        self._batch = batch

    def __missing__(self, name):
        return self._batch[name]

    def mean(self, values):
        return self._batch.mean(values)


def test_learning_is_the_same_compiled(made):
    policy = made.reset(observe(100, 1)).filtered
    with small_policy(sgd_minibatch_size=32, jit_compile=True, **FILTER) as compiled:
        compiled.set_state(policy.get_state())
        batch = act(policy, observe(128))
        for each in (policy, compiled):
            each.load_batch_into_buffer(batch)
            assert abs(each.learn_on_loaded_batch()["learner_stats"]["kl"]) < NO_KL
            each.learn_on_buffer(num_sgd_iter=2, shuffle=False)
            assert_moments(each, observe(100, 1), observe(128))
        assert_same(compiled.get_weights(), policy.get_weights(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "number, jit", [(2, False), (3, False), (2, True)], ids=["2", "3", "2 compiled"]
)
def test_any_number_of_towers_makes_the_statistics_and_the_update_of_one(made, number, jit):
    towers = {"num_gpus": number, "fake_gpus": True, "jit_compile": jit}
    # Rows are left over, which are learned from by no tower of several, but have been seen.
    obs = observe(97)
    one = made.reset(observe(50, 1)).filtered
    with small_policy(sgd_minibatch_size=96, **towers, **FILTER) as several:
        several.set_weights(one.get_weights())
        batch = act(one, obs)
        result, expected = several.learn_on_batch(batch), one.learn_on_batch(batch)
        assert_same(result["learner_stats"], expected["learner_stats"], rtol=1e-4, atol=1e-6)
        assert_same(moments(several), moments(one))
        several.load_batch_into_buffer(act(several, obs))
        stats = several.learn_on_loaded_batch()["learner_stats"]
        assert abs(stats["kl"]) < NO_KL
        several.learn_on_buffer(num_sgd_iter=2)
        assert_moments(several, observe(50, 1), obs, obs)


@pytest.mark.parametrize("burn_in", [0, 2])
def test_padding_and_rows_that_warm_up_never_enter(burn_in):
    towers = {"num_gpus": 2, "fake_gpus": True}
    lengths = [4, 2, 5, 1, 3, 5]
    batch = recurrent_batch(lengths)
    batch["obs"] += 50.0
    if burn_in:
        batch["burn_in"] = np.zeros(20, bool)
        # Of the third and the last sequence.
        batch["burn_in"][[6, 7, 15, 16]] = True
    model = {"custom_model": Recurrent, "burn_in": burn_in, "max_seq_len": 5}
    with small_policy(model={"fcnet_hiddens": [4], **model}, **towers, **FILTER) as policy:
        entering = ~batch.get("burn_in", np.zeros(20, bool))
        policy.learn_on_batch(batch)
        assert_moments(policy, batch["obs"][entering])
        policy.load_batch_into_buffer(batch)
        assert_moments(policy, batch["obs"][entering], batch["obs"][entering])
