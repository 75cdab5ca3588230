"""Models that see more than the present observation are sampled for, trained and resumed."""

import numpy as np
import pytest
import tensorflow as tf
from small_policies import Recurrent

from tfpolicy.models import Model, ModelOutput
from tfpolicy.policies import policy_class
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.train.environments import make_vector_env
from tfpolicy.train.loop import Trainer
from tfpolicy.view_requirement import ViewRequirement


class LookingBack(Model):
    """A linear map of the last two observations, the previous action and the previous reward."""

    def __init__(self, observation_space, action_space, num_outputs, config, seed):
        super().__init__(observation_space, action_space, num_outputs, config, seed)
        values = np.random.default_rng(seed).normal(0, 0.1, (2 * 4 + 2, num_outputs + 1))
        self.w = tf.compat.v1.get_variable(
            "w", initializer=values.astype(np.float32), use_resource=True
        )

    def view_requirements(self):
        return {"frames": ViewRequirement(SampleBatch.OBS, self.observation_space, shift="-1:0")}

    def __call__(self, columns):
        frames = tf.reshape(tf.cast(columns["frames"], tf.float32), [-1, 8])
        previous = [tf.cast(columns[name], tf.float32) for name in ("prev_actions", "prev_rewards")]
        outputs = tf.concat([frames, tf.stack(previous, axis=1)], axis=1) @ self.w
        return ModelOutput(outputs[:, :-1], outputs[:, -1])


def _trainer(model):
    env = make_vector_env("CartPole-v1", 3)
    config = {
        "train_batch_size": 48,
        "sgd_minibatch_size": 16,
        "num_sgd_iter": 2,
        "model": {"custom_model": model, "fcnet_hiddens": [4], "max_seq_len": 4},
        "seed": 1,
        "intra_op_parallelism_threads": 1,
        "inter_op_parallelism_threads": 1,
    }
    spaces = env.single_observation_space, env.single_action_space
    return Trainer(policy_class("ppo")(*spaces, config), env, seed=5)


@pytest.mark.parametrize("model", [LookingBack, Recurrent])
def test_it_is_trained_and_goes_on_bit_for_bit_after_a_restart(tmp_path, model):
    going, resumed = _trainer(model), _trainer(model)
    before = going.policy.get_weights()
    for _ in range(2):
        going.train_iteration()
    going.save(tmp_path / "checkpoint")
    assert resumed.restore(tmp_path / "checkpoint")
    for trainer in (going, resumed):
        for _ in range(2):
            result = trainer.train_iteration()
    assert result["episodes_total"] > 0
    for name, weights in going.policy.get_weights().items():
        assert not np.array_equal(weights, before[name])
        np.testing.assert_array_equal(weights, resumed.policy.get_weights()[name])
    for trainer in (going, resumed):
        trainer.close()


def test_it_acts_on_what_it_is_trained_on():
    """The log-probability of an action is the same when it is taken and when it is learned from."""
    trainer = _trainer(LookingBack)
    batch = trainer._rollout.sample(40)
    views = {name: batch[name] for name in ("frames", "prev_actions", "prev_rewards")}
    logp = trainer.policy.compute_log_likelihoods(batch["actions"], batch["obs"], **views)
    np.testing.assert_allclose(logp, batch["action_logp"], atol=1e-5)
    trainer.close()
