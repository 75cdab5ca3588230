"""The state beyond a fragment is valued by what the model would have seen there."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from counting import STEP, TAG, CountingEnv

from tfpolicy.models import Model, ModelOutput
from tfpolicy.policies import policy_class
from tfpolicy.train.environments import Environments, make_vector_env
from tfpolicy.train.rollout import Rollout
from tfpolicy.view_requirement import ViewRequirement

OBS = CountingEnv.observation_space
ACTIONS = CountingEnv.action_space
VIEWS = {
    "frames": ViewRequirement("obs", OBS, "-2:0"),
    "every_other": ViewRequirement("obs", OBS, "-6:0:2"),
    "three_ago": ViewRequirement("obs", OBS, -3),
    "last_actions": ViewRequirement("actions", ACTIONS, "-3:-1"),
    "some_actions": ViewRequirement("actions", ACTIONS, [-1, -5]),
    "some_rewards": ViewRequirement("rewards", None, "-5:-1:2"),
    "states": ViewRequirement("state_out_0", None, "-4:-1:3"),
    "states_before": ViewRequirement("state_in_0", None, "-2:-1"),
}
READ = [*VIEWS, *(f"{name}_valid" for name in VIEWS), "prev_actions", "prev_rewards_valid"]
# Those that block by block can be moved on by one step.
DENSE = [name for name in READ if name.startswith(("frames", "last", "prev"))]


class Watching(Model):
    """Weighs everything that it is shown; its state counts the steps."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scale = tf.compat.v1.get_variable("scale", initializer=1.0, use_resource=True)

    def view_requirements(self):
        space = gym.spaces.Box(0, 99, (1,))
        rewards = gym.spaces.Box(-99, 99, ())
        spaces = {"states": space, "states_before": space, "some_rewards": rewards}
        return {
            name: ViewRequirement(view.data_col, spaces.get(name, view.space), view.shift)
            for name, view in VIEWS.items()
        }

    def initial_state(self):
        return [np.zeros(1, np.float32)]

    def __call__(self, columns):
        rng = np.random.default_rng(1)
        total = columns["state_in_0"][:, 0] * 0.0 if columns["max_seq_len"] == 1 else 0.0
        for name in self.config.custom_model_config["read"]:
            rows = tf.cast(columns[name], tf.float32)
            rows = tf.reshape(rows, [-1, int(np.prod(rows.shape[1:]))])
            weights = rng.normal(0, 1, (rows.shape[1], 1)).astype(np.float32)
            total += (tf.math.log1p(tf.abs(rows)) @ weights)[:, 0]
        values = total * self.scale
        return ModelOutput(values[:, None] * np.ones(5, np.float32), values, self._states(columns))

    def _states(self, columns):
        return (columns["state_in_0"] + tf.cast(columns["seq_lens"], tf.float32)[:, None],)


@pytest.fixture(scope="module", params=[READ, DENSE], ids=["all", "dense"])
def policy(request):
    reads = {"read": request.param}
    model = {"custom_model": Watching, "custom_model_config": reads, "max_seq_len": 4}
    config = {"seed": 1, "model": model, "gamma": 0.5, "train_batch_size": 16}
    config["sgd_minibatch_size"] = 16
    with policy_class("ppo")(OBS, ACTIONS, config) as built:
        yield built


def sampled(policy, num_envs, steps, blocks):
    env = make_vector_env("Counting-v0", num_envs)
    try:
        rollout = Rollout(policy, Environments(env, seed=3))
        return [rollout.sample(steps) for _ in range(blocks)]
    finally:
        env.close()


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_what_the_next_fragment_sees_is_what_the_last_one_was_bootstrapped_from(policy, steps):
    num_compared = 0
    batches = sampled(policy, 2, steps, 40 // steps)
    for batch, following in zip(batches, batches[1:], strict=False):
        for fragment in batch.split_by_episode():
            last, tag = fragment[-1:], fragment["obs"][0, TAG]
            same = (following["obs"][:, TAG] == tag) & (following["t"] == last["t"] + 1)
            if not last["dones"].any() and same.any():
                value = following["vf_preds"][same]
                expected = last["rewards"] + 0.5 * value
                np.testing.assert_allclose(last["value_targets"], expected, rtol=1e-5)
                num_compared += 1
    assert num_compared > 5


def test_masks_tell_which_steps_there_were(policy):
    read = policy.config.model.custom_model_config["read"]
    for batch in sampled(policy, 2, 7, 3):
        t = batch["obs"][:, STEP]
        for name in VIEWS.keys() & set(read):
            view = policy.view_requirements[name]
            expected = t[:, None] + np.array(view.offsets) >= 0
            expected = expected if view.is_window else expected[:, 0]
            np.testing.assert_array_equal(batch[f"{name}_valid"], expected, err_msg=name)
        np.testing.assert_array_equal(batch["prev_rewards_valid"], t > 0)
        if "some_rewards" not in read:
            continue
        np.testing.assert_array_equal(batch["some_rewards"][:, 2], t)
        np.testing.assert_array_equal(batch["states"][:, 1, 0], t)
        np.testing.assert_array_equal(batch["states_before"][:, 1, 0], np.maximum(t - 1, 0))


def test_the_loss_sees_of_masks_and_views_what_acting_saw(policy):
    batch = sampled(policy, 3, 11, 2)[1]
    views = {name: batch[name] for name in policy.config.model.custom_model_config["read"]}
    states = [batch["state_in_0"]]
    logp = policy.compute_log_likelihoods(batch["actions"], batch["obs"], states, **views)
    np.testing.assert_allclose(logp, batch["action_logp"], atol=1e-5)
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert np.isfinite(stats["total_loss"])
