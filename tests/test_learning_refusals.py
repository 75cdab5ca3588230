"""What may not be learned from, and losses that are none."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, THREE, ppo_batch, small_policy

from tfpolicy import LossOutput, TFPolicy

S = gym.spaces
TINY = {"seed": 1, "model": {"fcnet_hiddens": [4]}}


@pytest.fixture(scope="module")
def policy():
    with small_policy() as built:
        yield built


@pytest.mark.parametrize("learn", ["learn_on_batch", "compute_gradients", "load_batch_into_buffer"])
def test_an_action_that_is_none_is_named_before_anything_changes(policy, learn):
    batch = ppo_batch(8)
    batch["actions"] = np.where(np.arange(8) == 5, 7, batch["actions"])
    before = policy.get_weights()
    with pytest.raises(ValueError, match="`actions`: row 5 is 7, outside of Discrete"):
        getattr(policy, learn)(batch)
    assert policy.get_num_samples_loaded_into_buffer() == 0
    for name, value in policy.get_weights().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize(
    ("space", "given", "message"),
    [
        (
            S.Box(-2, 5, (2,), np.int32),
            [[0, 5], [6, 0]],
            r"`actions`: row 1 is \[6 0\], outside of",
        ),
        (
            S.Tuple([THREE, S.Box(1, 1, (1,), bool)]),
            (np.array([0, 2]), np.array([[True], [False]])),
            r"`actions_1`: row 1 is \[False\], outside of Box",
        ),
    ],
    ids=["integers", "nested truth values"],
)
def test_an_action_outside_of_a_box_of_choices_is_named(space, given, message):
    with small_policy("pg", action_space=space) as boxes:
        obs = np.zeros((2, 4), np.float32)
        actions = given if isinstance(given, tuple) else np.array(given, np.int32)
        batch = {"obs": obs, "actions": actions, "advantages": np.ones(2, np.float32)}
        for use in (
            lambda: boxes.learn_on_batch(batch),
            lambda: boxes.load_batch_into_buffer(batch),
            lambda: boxes.compute_log_likelihoods(actions, obs),
        ):
            with pytest.raises(ValueError, match=message):
                use()


@pytest.mark.parametrize("dtype", [np.int16, np.uint8, np.int32])
def test_discrete_observations_of_narrow_dtypes_act(dtype):
    space = gym.spaces.MultiDiscrete([3, 2], dtype=dtype)
    with small_policy(obs_space=space) as narrow:
        action, _, _ = narrow.compute_single_action(np.array([2, 1], dtype))
        assert THREE.contains(action)
        with pytest.raises(ValueError, match="row 0"):
            narrow.compute_actions(np.array([[3, 0]], dtype))


def loss_policy(loss):
    return type("LossPolicy", (TFPolicy,), {"loss": loss})(OBS, THREE, TINY)


def test_a_loss_that_is_a_bare_tensor_is_refused():
    with pytest.raises(TypeError, match="must return a `LossOutput`, got"):
        loss_policy(lambda self, model, dist, batch: tf.reduce_mean(model(batch).vf_preds))


def test_a_loss_that_was_not_reduced_is_refused():
    with pytest.raises(ValueError, match="must be a scalar"):
        loss_policy(lambda self, model, dist, batch: LossOutput(model(batch).vf_preds, {}))


@pytest.mark.parametrize("name", ["total_loss", "grad_gnorm", "lr"])
def test_a_statistic_may_not_take_the_name_of_another(name):
    def loss(self, model, dist, batch):
        mean = batch.mean(model(batch).vf_preds)
        return LossOutput(mean, {name: mean})

    with pytest.raises(ValueError, match=f"may not be named {name}"):
        loss_policy(loss)


def test_a_minibatch_that_towers_cannot_share_evenly_is_said():
    with pytest.warns(UserWarning, match="128 rows cannot be dealt evenly to 3 towers.*126"):
        small_policy(num_gpus=3, fake_gpus=True, sgd_minibatch_size=128).close()


def test_a_negative_timestep_is_refused(policy):
    with pytest.raises(ValueError, match="`timestep` must be at least 0, got -5"):
        policy.on_global_var_update({"timestep": -5})
