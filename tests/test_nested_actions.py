"""Policies with Dict and Tuple actions do all that other policies do."""

from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.vector import SyncVectorEnv
from small_policies import OBS, small_policy

from tfpolicy.columns import map_column
from tfpolicy.models import FullyConnected
from tfpolicy.policies.ppo import PPOPolicy
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.served_policy import load_policy
from tfpolicy.spaces import flatten, leaf_spaces, unbatch, unsquash_action
from tfpolicy.train.environments import Environments
from tfpolicy.train.rollout import Rollout

S = gym.spaces
# Neither in alphabetical order nor starting at 0, with an integer box and a float64 one.
ACTIONS = S.Dict(
    OrderedDict(
        z=S.Box(0, 5, (2,), np.float64),
        a=S.Tuple(
            [
                S.Discrete(3, start=1),
                S.MultiDiscrete([2, 3]),
                S.MultiBinary(2),
                S.Box(-3, 3, (1,), np.int8),
            ]
        ),
    )
)
NUM_INPUTS = 2 * 2 + 3 + 5 + 2 + 7


class ReadsPrevious(FullyConnected):
    """Adds what the previous action says to the observation, for something to depend on it."""

    def __call__(self, columns):
        previous = columns["prev_actions"]
        sums = [
            tf.reduce_sum(tf.reshape(tf.cast(leaf, tf.float32), [tf.shape(leaf)[0], -1]), axis=1)
            for leaf in tf.nest.flatten(previous)
        ]
        return super().__call__({"obs": columns["obs"] + 0.1 * tf.stack(sums[:4], axis=1)})


def observe(rows, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (rows, 4)).astype(np.float32)


def assert_same_actions(left, right, space=ACTIONS):
    for first, second in zip(flatten(space, left), flatten(space, right), strict=True):
        np.testing.assert_array_equal(first, second)


def train_batch(policy, rows=32):
    obs = observe(rows)
    actions, _, extras = policy.compute_actions(obs)
    rng = np.random.default_rng(0)
    targets = {
        name: rng.normal(0, 1, rows).astype(np.float32) for name in ("advantages", "value_targets")
    }
    return {"obs": obs, "actions": actions, **extras, **targets}


@pytest.fixture(scope="module")
def policy():
    config = {"train_batch_size": 32, "sgd_minibatch_size": 16}
    with small_policy(action_space=ACTIONS, **config) as built:
        yield built


def test_actions_have_the_structure_and_the_dtypes_of_the_space(policy):
    actions, _, extras = policy.compute_actions(observe(5))
    assert list(actions) == ["z", "a"] and isinstance(actions["a"], tuple)
    for leaf, column in zip(
        leaf_spaces(ACTIONS, "a").values(), flatten(ACTIONS, actions), strict=True
    ):
        assert column.shape == (5, *leaf.shape)
        assert column.dtype == (np.float32 if leaf.dtype.kind == "f" else leaf.dtype)
    assert extras["action_dist_inputs"].shape == (5, NUM_INPUTS)
    assert extras["action_logp"].shape == (5,)


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"unsquash_actions": False, "clip_actions": True}])
def test_a_single_action_is_contained_in_the_space(policy, explore, arguments):  # e3, e10
    for seed in range(20):
        action, _, _ = policy.compute_single_action(
            observe(1, seed)[0], explore=explore, **arguments
        )
        assert ACTIONS.contains(action), action


def test_greedy_actions_are_repeatable_and_the_most_likely(policy):  # e10, j11
    obs = observe(50)
    greedy, _, extras = policy.compute_actions(obs, explore=False)
    assert_same_actions(greedy, policy.compute_actions(obs, explore=False)[0])
    _, _, sampled = policy.compute_actions(obs, explore=True)
    assert extras["action_logp"].shape == (50,)
    assert (extras["action_logp"] > sampled["action_logp"]).all()


def test_log_likelihoods_take_every_form_of_the_actions(policy):
    obs = observe(6)
    actions, _, extras = policy.compute_actions(obs)
    reordered = {"a": actions["a"], "z": actions["z"].astype(np.float64)}
    for form in (actions, reordered, unbatch(actions)):
        logp = policy.compute_log_likelihoods(form, obs)
        np.testing.assert_allclose(logp, extras["action_logp"], rtol=1e-5)
    # As the environment takes them: those within the bounds come back as they were.
    inside = {**actions, "z": np.clip(actions["z"], -0.9, 0.9)}
    expected = policy.compute_log_likelihoods(inside, obs)
    taken = unsquash_action(inside, ACTIONS)
    for form in (taken, unbatch(taken)):
        logp = policy.compute_log_likelihoods(form, obs, actions_normalized=False)
        np.testing.assert_allclose(logp, expected, rtol=1e-4)


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda actions: {"z": actions["z"]}, KeyError, r"`actions`: .*\['a'\] are missing"),
        (lambda actions: {**actions, "b": 1}, ValueError, r"`actions`: .* got \['b'\] too"),
        (lambda actions: {**actions, "z": actions["z"][:, :1]}, ValueError, "`actions_z`: expect"),
        (lambda actions: {**actions, "z": actions["z"][:3]}, ValueError, "as many rows in every"),
        (lambda actions: unbatch(actions)[:3], ValueError, "expected 6 rows .* got 3"),
    ],
)
def test_log_likelihoods_refuse_actions_that_do_not_fit(policy, change, error, message):
    actions, _, _ = policy.compute_actions(observe(6))
    with pytest.raises(error, match=message):
        policy.compute_log_likelihoods(change(actions), observe(6))


def test_learning_makes_what_paid_more_likely(policy):
    weights = policy.get_weights()
    batch = train_batch(policy)
    for column in ("advantages", "value_targets"):
        batch[column][:] = 0.0
    policy.load_batch_into_buffer(batch)
    before = policy.compute_log_likelihoods(batch["actions"], batch["obs"])
    paid = before > np.median(before)
    batch["advantages"][paid] = 3.0
    batch["advantages"][~paid] = -3.0
    policy.load_batch_into_buffer(batch)
    stats = policy.learn_on_buffer(num_sgd_iter=30)["learner_stats"]
    change = policy.compute_log_likelihoods(batch["actions"], batch["obs"]) - before
    policy.set_weights(weights)
    assert np.isfinite(list(stats.values())).all()
    assert change[paid].mean() > change[~paid].mean() + 0.05


def test_two_towers_learn_as_one(policy):
    batch = train_batch(policy)
    config = {"train_batch_size": 32, "sgd_minibatch_size": 16, "num_gpus": 2, "fake_gpus": True}
    with small_policy(action_space=ACTIONS, **config) as two:
        two.set_weights(policy.get_weights())
        gradients = [each.compute_gradients(batch)[0] for each in (policy, two)]
        for expected, gradient in zip(*gradients, strict=True):
            np.testing.assert_allclose(gradient, expected, atol=1e-6)
        assert two.load_batch_into_buffer(batch) == 16
        assert np.isfinite(list(two.learn_on_buffer()["learner_stats"].values())).all()


def test_state_and_checkpoint_continue_bit_for_bit(policy, tmp_path):
    policy.save(tmp_path / "checkpoint")
    with PPOPolicy.from_checkpoint(tmp_path / "checkpoint") as restored:
        assert restored.action_space == ACTIONS
        batch = train_batch(policy)
        assert_same_actions(batch["actions"], train_batch(restored)["actions"])
        state = policy.get_state()
        for each in (policy, restored):
            each.learn_on_batch(batch)
        for name, weight in restored.get_weights().items():
            np.testing.assert_array_equal(weight, policy.get_weights()[name])
        policy.set_state(state)


def test_weights_go_to_h5_and_back(policy, tmp_path):
    before = policy.get_weights()
    policy.export_model_to_h5(tmp_path / "weights.h5")
    policy.set_weights({name: 0 * weight for name, weight in before.items()})
    policy.import_model_from_h5(tmp_path / "weights.h5")
    for name, weight in policy.get_weights().items():
        np.testing.assert_array_equal(weight, before[name])


def test_an_export_has_an_output_for_each_leaf_and_acts_as_the_policy(policy, tmp_path):  # a10
    path = policy.export_model(tmp_path)
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    obs = observe(9)
    outputs = signature(obs=tf.constant(obs))
    names = list(leaf_spaces(ACTIONS, "actions"))
    assert names == ["actions_z", "actions_a_0", "actions_a_1", "actions_a_2", "actions_a_3"]
    greedy = unsquash_action(policy.compute_actions(obs, explore=False)[0], ACTIONS)
    for name, leaf, expected in zip(
        names, leaf_spaces(ACTIONS, "a").values(), flatten(ACTIONS, greedy), strict=True
    ):
        assert outputs[name].dtype.as_numpy_dtype == leaf.dtype
        np.testing.assert_allclose(outputs[name], expected, atol=1e-6)
    with load_policy(path) as served:
        for explore in (False, True):
            action, _, _ = served.compute_single_action(obs[0], explore=explore)
            assert ACTIONS.contains(action)


ACTIONS_OF_SIX = {
    "z": np.linspace(-1, 1, 12).reshape(6, 2).astype(np.float32),
    "a": (
        np.array([1, 2, 3, 1, 2, 3]),
        np.tile([1, 2], (6, 1)),
        np.tile(np.int8([0, 1]), (6, 1)),
        np.full((6, 1), -2, np.int8),
    ),
}


def test_an_onnx_file_acts_as_the_policy(policy, tmp_path):
    for package in ("tf2onnx", "onnx", "onnxruntime"):
        pytest.importorskip(package)
    # It is run and compared before it is published.
    assert (policy.export_model(tmp_path, onnx=17) / "model.onnx").exists()


def test_previous_actions_may_be_nested():
    model = {"fcnet_hiddens": [8], "custom_model": ReadsPrevious}
    with small_policy("a2c", action_space=ACTIONS, model=model) as policy:
        obs = observe(6)
        forms = (ACTIONS_OF_SIX, unbatch(ACTIONS_OF_SIX), map_column(np.zeros_like, ACTIONS_OF_SIX))
        outputs = [
            policy.compute_actions(obs, prev_action_batch=form)[2]["action_dist_inputs"]
            for form in forms
        ]
        np.testing.assert_array_equal(outputs[0], outputs[1])
        assert (outputs[0] != outputs[2]).any(axis=1).all()
        previous = unbatch(ACTIONS_OF_SIX)[0]
        assert ACTIONS.contains(policy.compute_single_action(obs[0], prev_action=previous)[0])
        sampled = sample_episodes(policy)
        before = np.where(sampled["t"][1:] == 0, 0, sampled["actions"]["a"][0][:-1])
        np.testing.assert_array_equal(sampled["prev_actions"]["a"][0][1:], before)
        assert np.isfinite(list(policy.learn_on_batch(sampled)["learner_stats"].values())).all()


class NestedActionEnv(gym.Env):
    """Episodes of 5 steps that take nothing but actions of the space."""

    observation_space = OBS
    action_space = ACTIONS

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._t += 1
        return self._obs(), float(action["a"][0]), self._t == 5, False, {}

    def _obs(self):
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


def sample_episodes(policy):
    env = SyncVectorEnv([NestedActionEnv] * 2, autoreset_mode="Disabled")
    rollout = Rollout(policy, Environments(env, seed=3))
    try:
        return rollout.sample(8)
    finally:
        env.close()


def test_a_rollout_gives_the_environment_its_own_actions(policy):
    batch = sample_episodes(policy)
    assert isinstance(batch, SampleBatch) and batch.count == 16
    np.testing.assert_array_equal(batch["rewards"], batch["actions"]["a"][0])
    logp = policy.compute_log_likelihoods(batch["actions"], batch["obs"])
    np.testing.assert_allclose(logp, batch["action_logp"], rtol=1e-5)
    assert np.isfinite(list(policy.learn_on_batch(batch)["learner_stats"].values())).all()


def test_a_random_start_and_noise_act_within_the_space():
    exploration = {"type": "GaussianNoise", "random_timesteps": 100}
    with small_policy("pg", action_space=ACTIONS, exploration_config=exploration) as policy:
        for _ in range(2):
            actions, _, extras = policy.compute_actions(observe(100))
            assert np.isfinite(extras["action_logp"]).all()
            for action in unbatch(unsquash_action(actions, ACTIONS)):
                assert ACTIONS.contains(action)
