"""What a subclass may say: optimizer, gradients, coefficients, statistics, batches, views."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, THREE, TINY, Regression, regression_batch

from tfpolicy.callbacks import DefaultCallbacks
from tfpolicy.graph.towers import LossOutput
from tfpolicy.models import Model, ModelOutput
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.schedules import make_schedule
from tfpolicy.view_requirement import ViewRequirement

S = gym.spaces


class Full(Regression):
    """Uses every hook."""

    def loss(self, model, dist_class, train_batch):
        error = model(train_batch).vf_preds - train_batch["rewards"]
        scale = train_batch.coefficients["scale"] * train_batch.coefficients["adaptive"]
        loss = train_batch.mean(tf.square(error)) * scale
        return LossOutput(loss, {"error": train_batch.mean(error), "square": loss})

    def coefficient_sources(self):
        return {"scale": make_schedule([[0, 1.0], [100, 3.0]]), "adaptive": 2}

    def optimizer(self, learning_rate):
        return tf.compat.v1.train.MomentumOptimizer(learning_rate, 0.5)

    def gradients(self, optimizer, loss, variables):
        # Twice the plain gradient, and none for kernels of the value's hidden layer.
        plain = tf.gradients(loss, variables)
        return [
            None if g is None or g.shape.as_list() == [4, 8] else 2.0 * tf.convert_to_tensor(g)
            for g in plain
        ]

    def stats(self, means):
        return {"error": means["error"], "ratio": means["square"] / means["total_loss"]}

    def prepare_train_batch(self, batch):
        prepared = SampleBatch(batch)
        prepared["rewards"] = batch["rewards"] - batch["rewards"].mean()
        return prepared


@pytest.fixture(scope="module")
def full():
    with Full(OBS, THREE, {"model": TINY, "seed": 1, "lr": 0.1}) as policy:
        policy.start = policy.get_state()
        yield policy


@pytest.fixture(autouse=True)
def _start_again(full):
    full.set_state(full.start)


def test_statistics_are_what_the_hook_makes_of_the_means_and_the_coefficients(full):
    stats = full.learn_on_batch(regression_batch(6))["learner_stats"]
    assert list(stats) == ["error", "ratio", "lr", "scale", "adaptive"]
    assert (stats["ratio"], stats["scale"], stats["adaptive"]) == (1.0, 1.0, 2.0)


def test_the_whole_batch_is_prepared_before_it_is_learned_from_or_loaded(full):
    batch = regression_batch(6)
    given = batch["rewards"].copy()
    first = full.learn_on_batch(batch)["learner_stats"]["error"]
    full.set_state(full.start)
    shifted = {**batch, "rewards": batch["rewards"] + 5}
    assert full.learn_on_batch(shifted)["learner_stats"]["error"] == pytest.approx(first, abs=1e-5)
    full.set_state(full.start)
    full.load_batch_into_buffer(shifted)
    found = full.learn_on_loaded_batch()["learner_stats"]["error"]
    assert found == pytest.approx(first, abs=1e-5)
    np.testing.assert_array_equal(batch["rewards"], given)


def test_the_optimizer_and_the_gradients_are_those_of_the_hooks(full):
    names = list(full.trainable_names)
    accumulated = dict.fromkeys(names, 0.0)
    for _ in range(3):
        gradients, _ = full.compute_gradients(regression_batch(6))
        before = full.get_weights()
        full.learn_on_batch(regression_batch(6))
        after = full.get_weights()
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is None:
                np.testing.assert_array_equal(after[name], before[name])
                continue
            accumulated[name] = 0.5 * accumulated[name] + gradient
            expected = before[name] - 0.1 * accumulated[name]
            np.testing.assert_allclose(after[name], expected, rtol=1e-4, atol=1e-5)
    present = {n for n, gradient in zip(names, gradients, strict=True) if gradient is not None}
    assert present == {"fc_value_1/bias", "value_out/kernel", "value_out/bias"}
    # One slot for each of these, and nothing for the others.
    assert len(full.get_state()["optimizer_variables"]) == 3


def test_coefficients_of_the_hook_are_scheduled_or_adapted_and_used_by_the_loss(full):
    def gradient():
        return full.compute_gradients(regression_batch(6))[0][-1]

    plain = gradient()
    full.on_global_var_update({"timestep": 50})
    np.testing.assert_allclose(gradient(), 2 * plain, rtol=1e-5)
    full.set_coefficient("adaptive", 10)
    np.testing.assert_allclose(gradient(), 10 * plain, rtol=1e-5)
    assert full.get_state()["coefficients"] == {"lr": 0.1, "scale": 2.0, "adaptive": 10.0}


def test_callbacks_are_made_for_the_policy_and_hear_of_its_creation():
    class Callbacks(DefaultCallbacks):
        def on_create_policy(self, *, policy, **kwargs):
            self.policy, self.finalized = policy, policy.get_session().graph.finalized

    with Regression(OBS, THREE, {"model": TINY, "callbacks": Callbacks}) as policy:
        assert policy.callbacks.policy is policy and policy.callbacks.finalized


class Looking(Regression):
    """Reads the next two actions and the last two rewards."""

    def trajectory_views(self):
        return {
            "next_actions": ViewRequirement("actions", THREE, [1, 2]),
            "last_rewards": ViewRequirement("rewards", None, "-2:-1"),
        }

    def loss(self, model, dist_class, train_batch):
        target = tf.reduce_sum(tf.cast(train_batch["next_actions"], tf.float32), axis=1)
        target += tf.reduce_sum(train_batch["last_rewards"], axis=1)
        loss = train_batch.mean(tf.square(model(train_batch).vf_preds - target))
        return LossOutput(loss, {"target": train_batch.mean(target)})


def test_a_loss_reads_windows_of_the_trajectory_that_the_model_does_not():  # d2
    with Looking(OBS, THREE, {"model": TINY, "seed": 1}) as policy:
        views = policy.view_requirements
        for name in ("next_actions", "last_rewards"):
            assert views[name].used_for_training and not views[name].used_for_compute_actions
        assert policy.acting_columns == ("obs",)
        batch = regression_batch(4)
        actions = np.array([1, 2, 0, 1])
        batch["next_actions"] = views["next_actions"].apply(actions)
        batch["last_rewards"] = views["last_rewards"].apply(batch["rewards"])
        expected = batch["next_actions"].sum(axis=1) + batch["last_rewards"].sum(axis=1)
        stats = policy.learn_on_batch(batch)["learner_stats"]
        assert stats["target"] == pytest.approx(expected.mean(), rel=1e-5)
        batch["next_actions"] = actions
        with pytest.raises(
            ValueError, match=r"`next_actions`: expected shape \(B, 2\), got \(4,\)"
        ):
            policy.learn_on_batch(batch)


class Table(Model):
    """A row of a table for each observation, kept in a list; there is no value for the policy."""

    def __init__(self, *args):
        super().__init__(*args)
        shape = (5, self.num_outputs + 1)
        self.tables = [tf.compat.v1.get_variable("table", shape, use_resource=True)]

    def __call__(self, columns):
        rows = tf.gather(self.tables[0], columns["obs"])
        return ModelOutput(rows[:, 1:], rows[:, 0])


@pytest.mark.parametrize(
    "config", [{}, {"num_gpus": 2, "fake_gpus": True, "jit_compile": True}], ids=["one", "compiled"]
)
def test_sparse_gradients_and_variables_in_lists_work_on_every_tower(config):
    config = {"model": {"custom_model": Table}, "seed": 1, "lr": 0.25, **config}
    with Regression(S.Discrete(5), THREE, config) as policy:
        table = policy.get_weights()["table"]
        batch = {"obs": np.array([2, 2, 4, 2]), "rewards": np.float32([1, 2, 3, 4])}
        policy.load_batch_into_buffer(batch)
        policy.learn_on_buffer()
        found = policy.get_weights()["table"]
        # d/dv of the mean of (v - r)², times the rate of 0.25.
        for row, rewards in ((2, [1, 2, 4]), (4, [3])):
            step = 0.25 * sum(2 * (table[row, 0] - r) for r in rewards) / 4
            assert found[row, 0] == pytest.approx(table[row, 0] - step, rel=1e-5)
        table[[2, 4], 0] = found[[2, 4], 0]
        np.testing.assert_array_equal(found, table)


class Silent(Model):
    """Has no value head."""

    def __init__(self, *args):
        super().__init__(*args)
        self.logits = tf.compat.v1.get_variable("logits", [self.num_outputs], use_resource=True)

    def __call__(self, columns):
        return ModelOutput(tf.zeros([tf.shape(columns["obs"])[0], 1]) + self.logits, None)


class Imitation(Regression):
    """Maximises the likelihood of the actions."""

    def loss(self, model, dist_class, train_batch):
        distribution = dist_class(model(train_batch).dist_inputs)
        loss = -train_batch.mean(distribution.log_prob(train_batch["actions"]))
        return LossOutput(loss, {"nll": loss})


def test_a_model_without_a_value_head_offers_no_values():
    with Imitation(OBS, THREE, {"model": {"custom_model": Silent}, "lr": 0.5}) as policy:
        obs = np.zeros((3, 4), np.float32)
        assert "vf_preds" not in policy.compute_actions(obs)[2]
        assert "vf_preds" not in policy.view_requirements
        with pytest.raises(ValueError, match="no value head"):
            policy.compute_values({"obs": obs})
        for _ in range(30):
            stats = policy.learn_on_batch({"obs": obs, "actions": [2, 2, 2]})["learner_stats"]
        assert stats["nll"] < 0.1
        assert policy.compute_actions(obs, explore=False)[0].tolist() == [2, 2, 2]
