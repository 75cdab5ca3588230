import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tfpolicy import LossOutput, SampleBatch, build_tf_policy

SPACES = (gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2))


def surrogate(policy, model, dist_class, train_batch):
    dist = dist_class(model(train_batch).dist_inputs)
    return -tf.reduce_mean(dist.log_prob(train_batch["actions"]) * train_batch["scores"])


def doubled_rewards(policy, sample_batch, other_agent_batches, episode):
    sample_batch["scores"] = 2 * sample_batch["rewards"]
    return sample_batch


def mean_score(policy, train_batch):
    return {"mean_score": tf.reduce_mean(train_batch["scores"])}


@pytest.fixture(scope="module")
def policy():
    policy_class = build_tf_policy(
        "SurrogatePolicy",
        loss_fn=surrogate,
        stats_fn=mean_score,
        postprocess_fn=doubled_rewards,
        optimizer_fn=lambda policy, rate: tf.compat.v1.train.GradientDescentOptimizer(rate),
        gradients_fn=lambda policy, optimizer, loss, variables: tf.gradients(2 * loss, variables),
        default_config={"lr": 0.5, "model": {"fcnet_hiddens": [4]}},
    )
    with policy_class(*SPACES, {"seed": 3}) as built:
        yield built


def batch_of(policy, num_rows=6):
    obs = np.linspace(-1, 1, 3 * num_rows, dtype=np.float32).reshape(num_rows, 3)
    actions, _, _ = policy.compute_actions(obs)
    rewards = np.arange(num_rows, dtype=np.float32)
    return policy.postprocess_trajectory(
        SampleBatch({"obs": obs, "actions": actions, "rewards": rewards})
    )


def test_defaults_are_those_given_and_can_be_overridden(policy):
    assert policy.config["lr"] == 0.5
    assert policy.config["model"]["fcnet_hiddens"] == (4,)
    assert type(policy).config_class.from_dict({"lr": 1.0}).lr == 1.0


def test_statistics_come_from_the_functions(policy):
    batch = batch_of(policy)
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert stats["mean_score"] == pytest.approx(5.0)


def test_the_update_is_that_of_the_given_optimizer_and_gradients(policy):
    batch = batch_of(policy)
    gradients, _ = policy.compute_gradients(batch)
    before = policy.get_weights()
    policy.learn_on_batch(batch)
    after = policy.get_weights()
    for gradient, name in zip(gradients, before, strict=True):
        expected = before[name] if gradient is None else before[name] - 0.5 * gradient
        np.testing.assert_allclose(after[name], expected, atol=1e-6)


def test_a_loss_output_keeps_its_own_statistics_and_reduction():
    def summed(policy, model, dist_class, train_batch):
        rewards = train_batch["rewards"]
        loss = tf.reduce_sum(tf.square(model(train_batch).vf_preds - rewards))
        return LossOutput(loss, {"reward": tf.reduce_mean(rewards)}, "sum")

    policy_class = build_tf_policy("SummedPolicy", loss_fn=summed)
    with policy_class(*SPACES, {"seed": 3, "model": {"fcnet_hiddens": [4]}}) as policy:
        batch = {"obs": np.zeros((4, 3), np.float32), "rewards": np.full(4, 7.0, np.float32)}
        stats = policy.learn_on_batch(batch)["learner_stats"]
    assert stats["reward"] == pytest.approx(7.0)
    assert stats["total_loss"] == pytest.approx(4 * 49.0, rel=0.5)
