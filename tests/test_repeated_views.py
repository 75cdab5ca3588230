"""Views of which a whole sequence sees one value: that of its first step."""

import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, THREE, Recurrent, small_policy

from tfpolicy import load_policy
from tfpolicy.graph.towers import LossOutput
from tfpolicy.models import Model, ModelOutput
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.tf_policy import TFPolicy
from tfpolicy.train.environments import Environments, make_vector_env
from tfpolicy.train.rollout import Rollout
from tfpolicy.view_requirement import ViewRequirement

T = 4
# Episodes of 4, 2 and 5 steps make sequences of 4, 2, 4 and 1.
EPISODES = (4, 2, 5)
FIRST_ROWS = [0, 4, 6, 10]
SEQUENCE_OF_ROW = [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3]


class Remembering(Model):
    """Adds up the present observation, and what it remembers of two steps before a sequence."""

    repeat = T

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scale = tf.compat.v1.get_variable("scale", initializer=1.0, use_resource=True)

    def view_requirements(self):
        space = self.observation_space
        return {"memory": ViewRequirement("obs", space, "-2:-1", batch_repeat_value=self.repeat)}

    def __call__(self, columns):
        length = columns["max_seq_len"]
        memory = tf.reduce_sum(columns["memory"], axis=[1, 2])
        known = tf.reduce_sum(tf.cast(columns["memory_valid"], tf.float32), axis=1)
        remembered = tf.repeat(10.0 * memory + 100.0 * known, length)
        values = (tf.reduce_sum(columns["obs"], axis=1) + remembered) * self.scale
        logits = values[:, None] * tf.constant([0.0, 0.01, 0.02])
        return ModelOutput(logits, values)


class ValueOf(TFPolicy):
    """Its loss is the mean value of a row."""

    def loss(self, model, dist_class, train_batch):
        return LossOutput(train_batch.mean(model(train_batch).vf_preds), {})


def remembering(policy_class=None, **config):
    config = {"model": {"custom_model": Remembering, "max_seq_len": T}, **config}
    if policy_class is None:
        return small_policy("ppo", **config)
    return policy_class(OBS, THREE, {"seed": 1, "train_batch_size": 16, **config})


def episodes(policy):
    """The rows of the episodes above, as they are sampled: one value of a view a row."""
    rng = np.random.default_rng(0)
    batches = []
    for number, length in enumerate(EPISODES):
        obs = rng.uniform(-1, 1, (length, 4)).astype(np.float32)
        ends = np.arange(length) == length - 1
        columns = {"obs": obs, "terminateds": ends, "truncateds": np.zeros(length, bool)}
        for name in ("memory", "memory_valid"):
            view = policy.acting_views[name]
            single = ViewRequirement("obs", OBS, view.shift, as_mask=view.as_mask)
            columns[name] = single.apply(obs)
        columns["eps_id"] = np.full(length, number)
        batches.append(columns)
    return SampleBatch.concat_samples(batches)


def values_by_hand(batch):
    rows = np.array(FIRST_ROWS)[SEQUENCE_OF_ROW]
    memory, known = batch["memory"][rows].sum(axis=(1, 2)), batch["memory_valid"][rows].sum(axis=1)
    return batch["obs"].sum(axis=1) + 10 * memory + 100 * known


@pytest.mark.parametrize("num_gpus", [0, 2])
def test_each_sequence_learns_from_what_its_first_step_saw(num_gpus):
    with remembering(ValueOf, num_gpus=num_gpus, fake_gpus=True) as policy:
        batch = episodes(policy)
        assert batch["memory_valid"][:, 0].tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1]
        stats = policy.learn_on_batch(batch)
        assert stats["num_rows"] == 11
        expected = values_by_hand(batch).mean()
        assert stats["learner_stats"]["total_loss"] == pytest.approx(expected, rel=1e-5)
        policy.set_weights({"scale": np.float32(1.0)})
        # Every sequence takes up T rows.
        assert policy.load_batch_into_buffer(batch) == 4 * T // max(num_gpus, 1)
        loaded = policy.learn_on_loaded_batch()
        assert loaded["learner_stats"]["total_loss"] == pytest.approx(expected, rel=1e-5)


def test_to_act_every_row_has_a_value_of_its_own():
    with remembering() as policy:
        batch = episodes(policy)
        views = {name: batch[name] for name in ("memory", "memory_valid")}
        values = policy.compute_actions(batch["obs"], **views)[2]["vf_preds"]
        memory = 10 * batch["memory"].sum(axis=(1, 2)) + 100 * batch["memory_valid"].sum(axis=1)
        np.testing.assert_allclose(values, batch["obs"].sum(axis=1) + memory, rtol=1e-5)
        with pytest.raises(KeyError, match="Acting needs the column 'memory'"):
            policy.compute_actions(batch["obs"])
        assert not policy.is_recurrent()


def test_it_is_sampled_trained_and_exported(tmp_path):
    env = make_vector_env("CartPole-v1", 2)
    model = {"custom_model": Remembering, "max_seq_len": T}
    spaces = env.single_observation_space, env.single_action_space

    class Two(Remembering):
        def __call__(self, columns):
            output = super().__call__(columns)
            return output._replace(dist_inputs=output.dist_inputs[:, :2])

    model["custom_model"] = Two
    config = {"train_batch_size": 64, "sgd_minibatch_size": 16, "model": model}
    with small_policy("ppo", *spaces, **config) as policy:
        rollout = Rollout(policy, Environments(env, seed=0))
        batch = rollout.sample(32)
        assert batch["memory"].shape == (64, 2, 4)
        policy.load_batch_into_buffer(batch)
        stats = policy.learn_on_buffer()["learner_stats"]
        assert np.isfinite(list(stats.values())).all()
        views = {name: batch[name] for name in ("memory", "memory_valid")}
        expected = policy.compute_actions(batch["obs"], explore=False, **views)[0]
        with load_policy(policy.export_model(tmp_path)) as served:
            found = served.compute_actions(batch["obs"], **views)[0]
        np.testing.assert_array_equal(found, expected)
    env.close()


# What has no meaning.


def test_a_network_on_single_rows_has_no_use_for_repeated_values():
    class Looking(ValueOf):
        def trajectory_views(self):
            return {"before": ViewRequirement("obs", OBS, -1, batch_repeat_value=5)}

        def loss(self, model, dist_class, train_batch):
            tf.nest.flatten(train_batch["before"])
            return super().loss(model, dist_class, train_batch)

    with pytest.raises(ValueError, match="`before`: `batch_repeat_value` 5 is for .* sequences"):
        Looking(OBS, THREE, {"train_batch_size": 16})


def test_a_value_is_repeated_for_a_whole_sequence_or_not_at_all():
    class Uneven(Remembering):
        repeat = 3

    with pytest.raises(ValueError, match=r"`memory`: .* must be 1 or `max_seq_len` \(4\).* got 3"):
        small_policy(model={"custom_model": Uneven, "max_seq_len": T})


def test_what_nobody_reads_is_not_refused():
    class Looking(ValueOf):
        def trajectory_views(self):
            return {"before": ViewRequirement("obs", OBS, -1, batch_repeat_value=5)}

    with Looking(OBS, THREE, {"train_batch_size": 16}) as policy:
        assert "before" not in policy.view_requirements


def test_the_loss_of_a_recurrent_policy_can_have_one_value_a_sequence():
    class Looking(ValueOf):
        def trajectory_views(self):
            return {"start": ViewRequirement("obs", OBS, [0], batch_repeat_value=T)}

        def loss(self, model, dist_class, train_batch):
            output = super().loss(model, dist_class, train_batch)
            start = tf.reduce_sum(train_batch["start"], axis=[1, 2])
            num_sequences = tf.cast(tf.shape(train_batch["seq_lens"])[0], tf.float32)
            assert train_batch["state_in_0"].shape[0] is train_batch["start"].shape[0] is None
            return output._replace(stats={"start": tf.reduce_sum(start) / num_sequences})

    model = {"custom_model": Recurrent, "max_seq_len": T, "fcnet_hiddens": [4]}
    # One tower: several would weigh what is no mean of rows by their rows.
    with Looking(OBS, THREE, {"train_batch_size": 16, "num_gpus": 0, "model": model}) as policy:
        obs = np.random.default_rng(0).uniform(-1, 1, (7, 4)).astype(np.float32)
        batch = {
            "obs": obs,
            "start": obs[:, None],
            "state_in_0": np.zeros((7, 4), np.float32),
            "seq_lens": np.array([3, 4]),
        }
        stats = policy.learn_on_batch(batch)["learner_stats"]
        assert stats["start"] == pytest.approx(obs[[0, 3]].sum() / 2, rel=1e-5)
