"""What every policy does, whatever its spaces: each function checks one part of it."""

import copy
import warnings

import gymnasium as gym
import numpy as np
import tensorflow as tf
from gymnasium.vector import SyncVectorEnv

from tfpolicy.columns import select
from tfpolicy.policies.ppo import PPOPolicy
from tfpolicy.served_policy import load_policy
from tfpolicy.spaces import (
    environment_transform,
    first_action,
    flatten,
    leaf_spaces,
    unbatch,
    unflatten,
)
from tfpolicy.train.environments import Environments
from tfpolicy.train.rollout import Rollout

STEPS, NUM_ENVS = 6, 2
MODEL = {"fcnet_hiddens": [4], "vf_share_layers": True}


class SmallPPO(PPOPolicy):
    """PPO by momentum: two ways to add up one gradient differ no more after a step than before.

    Adam would make a step of full length of a gradient that is nothing but rounding.
    """

    def optimizer(self, learning_rate):
        """One slot for each weight."""
        return tf.compat.v1.train.MomentumOptimizer(learning_rate, 0.5)


class DrawnEnv(gym.Env):
    """Draws observations from a space and takes nothing but actions of another."""

    def __init__(self, observation_space, action_space):
        # Copies: they are seeded here, and the policy's own are not.
        self.observation_space = copy.deepcopy(observation_space)
        self.action_space = copy.deepcopy(action_space)

    def reset(self, *, seed=None, options=None):
        """Episodes of 4 steps."""
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        """Pays something else at every step."""
        assert self.action_space.contains(action), action
        self._t += 1
        obs, reward = self.observation_space.sample(), self.np_random.normal()
        return obs, float(reward), self._t == 4, False, {}


def build(observation_space, action_space, model=None, **config):
    """A policy whose weights are large enough for its actions to depend on what it sees."""
    policy = SmallPPO(
        observation_space,
        action_space,
        {"seed": 1, "train_batch_size": 12, "sgd_minibatch_size": 6, "lr": 0.05, "kl_coeff": 0.5,
         "entropy_coeff": 0.01, "model": {**MODEL, **(model or {})}, **config},
    )  # fmt: skip
    rng = np.random.default_rng(7)
    policy.set_weights({k: rng.normal(0, 0.6, v.shape) for k, v in policy.get_weights().items()})
    return policy


def sample(policy):
    """A batch as training makes it: episodes of a vector environment, postprocessed."""
    spaces = policy.observation_space, policy.action_space
    env = SyncVectorEnv([lambda: DrawnEnv(*spaces)] * NUM_ENVS, autoreset_mode="Disabled")
    try:
        return Rollout(policy, Environments(env, seed=3)).sample(STEPS)
    finally:
        env.close()


def check_acting(policy, batch):
    """Actions have the shapes and dtypes of the space, and greedy ones are the same each time."""
    for explore in (True, False):
        actions, _, extras = policy.compute_actions(batch["obs"], explore=explore)
        leaves = flatten(policy.action_space, actions)
        for leaf, column in zip(leaves_of(policy.action_space), leaves, strict=True):
            assert column.shape == (batch.count, *leaf.shape)
            assert column.dtype == (np.float32 if leaf.dtype.kind == "f" else leaf.dtype)
        for name in ("action_logp", "action_prob", "vf_preds"):
            assert extras[name].shape == (batch.count,) and np.isfinite(extras[name]).all()
    for obs in (batch["obs"], unbatch(batch["obs"])):
        again = policy.compute_actions(obs, explore=False)
        tf.nest.map_structure(np.testing.assert_array_equal, again, (actions, [], extras))


def check_single_actions(policy, batch):
    """One action is what the environment takes, and greedily that of its row in the batch."""
    expected = greedy_actions(policy, batch)
    for row, obs in enumerate(unbatch(batch["obs"])):
        for arguments in ({"explore": True}, {"unsquash_actions": False, "clip_actions": True}):
            action, _, _ = policy.compute_single_action(obs, **arguments)
            assert_contained(policy.action_space, action)
        action, _, _ = policy.compute_single_action(obs, explore=False)
        for column, value in zip(expected, flatten(policy.action_space, action), strict=True):
            assert_close(value, column[row])


def check_log_likelihoods(policy, batch):
    """Actions have the log-probabilities with which they were taken, in every form."""
    for actions in (batch["actions"], unbatch(batch["actions"])):
        logp = policy.compute_log_likelihoods(actions, batch["obs"])
        assert (logp.shape, logp.dtype) == ((batch.count,), np.float32)
        np.testing.assert_allclose(logp, batch["action_logp"], rtol=1e-5, atol=1e-5)


def check_learning(policy, batch):
    """The loss sees what acting saw, so that at first nothing has changed. Then something has."""
    before = copy.deepcopy(dict(batch))
    weights, stats = policy.get_weights(), policy.learn_on_batch(batch)["learner_stats"]
    assert np.isfinite(list(stats.values())).all()
    np.testing.assert_allclose([stats["kl"], stats["policy_loss"]], 0.0, atol=1e-5)
    assert any((value != weights[name]).any() for name, value in policy.get_weights().items())
    tf.nest.map_structure(np.testing.assert_array_equal, dict(batch), before)


def check_towers(policy, batch):
    """Two devices learn as one."""
    spaces = policy.observation_space, policy.action_space
    with SmallPPO(*spaces, policy.config.replace(num_gpus=2, fake_gpus=True)) as two:
        two.set_state(policy.get_state())
        tf.nest.map_structure(assert_close, two.learn_on_batch(batch), policy.learn_on_batch(batch))
        tf.nest.map_structure(assert_close, two.get_weights(), policy.get_weights())


def check_state(policy, batch, path):
    """After a restart from a checkpoint the next update and draws are the same, bit for bit."""

    def go_on():
        results = policy.learn_on_batch(batch), policy.compute_actions(batch["obs"])
        return policy.get_state(), results

    policy.learn_on_batch(batch)
    policy.save(path)
    first = go_on()
    policy.restore(path)
    tf.nest.map_structure(np.testing.assert_array_equal, go_on(), first)


def check_saved_model(policy, batch, path):
    """TensorFlow alone, and `load_policy`, act as the policy does."""
    version = policy.export_model(path)
    obs_space, action_space = policy.observation_space, policy.action_space
    expected = greedy_actions(policy, batch)
    _, _, extras = policy.compute_actions(batch["obs"], explore=False)
    names = leaf_spaces(obs_space, "obs")
    given = dict(zip(names, flatten(obs_space, batch["obs"]), strict=True))
    loaded = tf.saved_model.load(str(version))
    for name in ("sample", "serving_default"):
        act = loaded.signatures[name]
        # What nothing depends on is no input.
        taken = act.structured_input_signature[1]
        outputs = act(**{key: tf.constant(given[key]) for key in taken})
        found = [outputs[key].numpy() for key in leaf_spaces(action_space, "actions")]
        assert_all_contained(action_space, unflatten(action_space, found))
    tf.nest.map_structure(assert_close, found, expected)
    for key in ("action_logp", "action_dist_inputs", "vf_preds"):
        assert_close(outputs[key].numpy(), extras[key])
    with load_policy(version) as served:
        assert (served.observation_space, served.action_space) == (obs_space, action_space)
        for explore in (True, False):
            actions, _, _ = served.compute_actions(batch["obs"], explore=explore)
            assert_all_contained(action_space, actions)
        tf.nest.map_structure(assert_close, flatten(action_space, actions), expected)


def check_h5(policy, path):
    """Weights come back from a file that Keras opens."""
    weights = policy.get_weights()
    policy.export_model_to_h5(path)
    policy.set_weights({name: 0 * value for name, value in weights.items()})
    policy.import_model_from_h5(path)
    tf.nest.map_structure(np.testing.assert_array_equal, policy.get_weights(), weights)


def greedy_actions(policy, batch):
    """The leaves of the environment's actions [B, ...]."""
    own, _, _ = policy.compute_actions(batch["obs"], explore=False)
    space, config = policy.action_space, policy.config
    transform = environment_transform(
        space, unsquash=config.normalize_actions, clip=config.clip_actions
    )
    return flatten(space, transform(own))


def leaves_of(space):
    return list(leaf_spaces(space, "leaf").values())


def assert_contained(space, action):
    """`contains` casts what is no array of the dtype, with a warning; environments may not."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert space.contains(action), (space, action)
    for leaf, value in zip(leaves_of(space), flatten(space, action), strict=True):
        assert np.asarray(value).dtype == leaf.dtype, (leaf, value)


def assert_all_contained(space, batch):
    for row in range(len(flatten(space, batch)[0])):
        assert_contained(space, first_action(space, select(batch, slice(row, None))))


def assert_close(found, expected):
    """Up to the last digits, of which float16 has few."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if found.dtype.kind == "f":
        tolerance = 1e-3 if found.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(found, expected, tolerance, tolerance)
    else:
        np.testing.assert_array_equal(found, expected)
