"""What a policy collects is what its model, its loss and its postprocessing really read."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.graph.discovery import recording_batch
from tfpolicy.graph.towers import LossOutput
from tfpolicy.models import Model, ModelOutput
from tfpolicy.policies.a2c import A2CPolicy
from tfpolicy.policies.pg import PGPolicy
from tfpolicy.policies.ppo import PPOPolicy
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.tf_policy import TFPolicy
from tfpolicy.train.environments import Environments, make_vector_env
from tfpolicy.train.rollout import Rollout
from tfpolicy.view_requirement import ViewRequirement

OBS = gym.spaces.Box(0.5, 1.5, (2,))
THREE = gym.spaces.Discrete(3)
CONFIG = {"seed": 0, "model": {"fcnet_hiddens": [4]}, "train_batch_size": 4}
PPO_CONFIG = {**CONFIG, "sgd_minibatch_size": 4}
# What writers and evaluation need whatever is learned (d6).
KEPT = {
    "obs", "actions", "rewards", "terminateds", "truncateds", "infos", "eps_id", "unroll_id",
    "agent_index", "t",
}  # fmt: skip


class Probe(TFPolicy):
    """Reports the means of the columns that it is told to read; subclasses say which."""

    columns = ()

    def loss(self, model, dist_class, train_batch):
        read = {name: train_batch[name] for name in self.columns}
        means = {
            name: tf.reduce_mean(tf.cast(tf.nest.flatten(column)[0], tf.float32))
            for name, column in read.items()
        }
        return LossOutput(train_batch.mean(model(train_batch).vf_preds), means)


def probe(*columns, obs_space=OBS, action_space=THREE, **members):
    """Builds a policy that reads `columns`, of a subclass with `members`."""
    made = type("Probing", (Probe,), {"columns": columns, **members})
    return made(obs_space, action_space, CONFIG)


def trajectory(rows=3, **columns):
    """Three steps of an episode that is cut off."""
    obs = np.linspace(0.5, 1.5, 2 * rows + 2, dtype=np.float32).reshape(rows + 1, 2)
    return SampleBatch(
        obs=obs[:-1],
        new_obs=obs[1:],
        actions=np.arange(rows) % 3,
        rewards=np.arange(1, rows + 1, dtype=np.float32),
        terminateds=np.zeros(rows, bool),
        truncateds=np.zeros(rows, bool),
        **columns,
    )


def trained(policy):
    return {name for name, view in policy.view_requirements.items() if view.used_for_training}


def acted(policy):
    views = policy.view_requirements
    return {name for name, view in views.items() if view.used_for_compute_actions}


# What is found.


def test_ppo_collects_what_it_reads_and_what_is_always_kept():
    with PPOPolicy(OBS, THREE, PPO_CONFIG) as policy:
        offered = {"action_dist_inputs", "action_logp", "vf_preds"}
        assert set(policy.view_requirements) == KEPT | offered | {"new_obs"}
        read = {"obs", "actions", "rewards", "terminateds", "truncateds", "new_obs", *offered}
        assert trained(policy) == read
        assert acted(policy) == set(policy.acting_columns) == {"obs"}


def test_reinforce_needs_neither_the_next_observation_nor_what_acting_offers():  # d6
    with PGPolicy(OBS, THREE, CONFIG) as policy:
        assert set(policy.view_requirements) == KEPT
        assert trained(policy) == {"obs", "actions", "rewards", "terminateds", "truncateds"}
        batch = policy.postprocess_trajectory(trajectory())
        # What is not read need not be there, and what nobody reads may be.
        policy.learn_on_batch({name: batch[name] for name in ("obs", "actions", "advantages")})
        policy.learn_on_batch(SampleBatch(batch, infos=np.array([{}, {"a": 1}, {}])))


def test_column_is_collected_because_the_loss_reads_it():
    with probe("rewards", "new_obs") as policy:
        assert trained(policy) == {"obs", "rewards", "new_obs"}
        assert policy.view_requirements["new_obs"] == ViewRequirement(
            "obs", OBS, 1, used_for_compute_actions=False
        )
        stats = policy.learn_on_batch(trajectory())["learner_stats"]
        assert stats["rewards"] == pytest.approx(2.0)
        assert stats["new_obs"] == pytest.approx(trajectory()["new_obs"].mean())


def test_previous_actions_and_rewards_are_those_of_the_step_before():  # d5
    with probe("prev_actions", "prev_rewards") as policy:
        batch = trajectory()
        for name in ("prev_actions", "prev_rewards"):
            view = policy.view_requirements[name]
            assert view.used_for_training and not view.used_for_compute_actions
            batch[name] = view.apply(batch[view.data_col])
        # Before the first step are zeros, not copies of the first value.
        assert batch["prev_actions"].tolist() == [0, 0, 1]
        assert batch["prev_rewards"].tolist() == [0.0, 1.0, 2.0]
        stats = policy.learn_on_batch(batch)["learner_stats"]
        assert (stats["prev_actions"], stats["prev_rewards"]) == pytest.approx((1 / 3, 1.0))


def test_loss_reads_views_of_any_shift():
    views = {
        "next_reward": ViewRequirement("rewards", shift=1),  # d2
        "action_after_next": ViewRequirement("actions", shift=2),
        "neighbours": ViewRequirement("rewards", shift=[-1, 1]),
        "past": ViewRequirement("rewards", shift="-2:0"),
        "future": ViewRequirement("rewards", shift="0:1"),
    }
    expected = {
        "next_reward": [2, 3, 0],
        "action_after_next": [2, 0, 0],
        "neighbours": [[0, 2], [1, 3], [2, 0]],
        "past": [[0, 0, 1], [0, 1, 2], [1, 2, 3]],
        "future": [[1, 2], [2, 3], [3, 0]],
    }
    with probe(*views, trajectory_views=lambda self: views) as policy:
        batch = trajectory()
        for name, rows in expected.items():
            view = policy.view_requirements[name]
            batch[name] = view.apply(batch[view.data_col])
            assert batch[name].tolist() == rows, name
        stats = policy.learn_on_batch(batch)["learner_stats"]
        for name, rows in expected.items():
            assert stats[name] == pytest.approx(np.mean(rows)), name


def test_window_of_observations_takes_the_space_of_the_observations():
    obs_space = gym.spaces.Dict({"camera": gym.spaces.Box(0, 255, (2, 2), np.uint8), "speed": OBS})

    class Windowed(Probe):
        def trajectory_views(self):
            return {"stack": ViewRequirement("obs", shift="-3:0")}

        def loss(self, model, dist_class, train_batch):
            stack = train_batch["stack"]
            assert stack["camera"].shape.as_list() == [None, 4, 2, 2]
            assert stack["camera"].dtype == tf.uint8
            assert stack["speed"].shape.as_list() == [None, 4, 2]
            newest = tf.reduce_mean(stack["speed"][:, -1] - train_batch["obs"]["speed"])
            return LossOutput(train_batch.mean(model(train_batch).vf_preds), {"newest": newest})

    with Windowed(obs_space, THREE, CONFIG) as policy:
        obs = {"camera": np.full((3, 2, 2), 7, np.uint8), "speed": np.ones((3, 2), np.float32)}
        stack = policy.view_requirements["stack"].apply(obs)
        stats = policy.learn_on_batch({"obs": obs, "stack": stack})["learner_stats"]
        assert stats["newest"] == 0.0


def test_loss_sees_nested_observations_in_their_own_structure():  # d15
    obs_space = gym.spaces.Dict({"b": gym.spaces.Discrete(4), "a": gym.spaces.Tuple((OBS, OBS))})

    class Nested(Probe):
        def loss(self, model, dist_class, train_batch):
            obs, new_obs = train_batch["obs"], train_batch["new_obs"]
            assert obs["b"].shape.as_list() == [None] and obs["b"].dtype == tf.int64
            assert obs["a"][1].shape.as_list() == [None, 2]
            moved = tf.reduce_mean(new_obs["a"][1] - obs["a"][1])
            return LossOutput(train_batch.mean(model(train_batch).vf_preds), {"moved": moved})

    with Nested(obs_space, THREE, CONFIG) as policy:
        parts = trajectory()
        batch = {
            name: {"b": np.array([0, 1, 3]), "a": (parts[name], parts[name])}
            for name in ("obs", "new_obs")
        }
        stats = policy.learn_on_batch(batch)["learner_stats"]
        assert stats["moved"] == pytest.approx((parts["new_obs"] - parts["obs"]).mean(), rel=1e-5)


def test_model_reads_windows_while_acting_and_while_learning():
    class Stacked(Model):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.weight = tf.compat.v1.get_variable("weight", initializer=1.0, use_resource=True)

        def view_requirements(self):
            return {"stack": ViewRequirement("obs", shift="-1:0")}

        def __call__(self, columns):
            values = tf.reduce_sum(columns["stack"], axis=[1, 2]) * self.weight
            return ModelOutput(tf.stack([values] * 3, axis=1), values)

    config = {**CONFIG, "model": {"custom_model": Stacked}}
    with A2CPolicy(OBS, THREE, config) as policy:
        assert acted(policy) == set(policy.acting_columns) == {"obs", "stack"}
        assert "stack" in trained(policy)
        batch = trajectory()
        batch["stack"] = policy.view_requirements["stack"].apply(batch["obs"])
        _, _, extras = policy.compute_actions_from_input_dict(
            {"obs": batch["obs"], "stack": batch["stack"]}
        )
        sums = batch["obs"].sum(axis=1)
        np.testing.assert_allclose(extras["vf_preds"], sums + [0, *sums[:-1]], 1e-6)
        batch["vf_preds"] = extras["vf_preds"]
        after = policy.postprocess_trajectory(batch)["value_targets"][-1]
        assert after == pytest.approx(3 + 0.99 * (batch["new_obs"][-2:].sum()), rel=1e-5)
        policy.learn_on_batch(policy.postprocess_trajectory(batch))
        with pytest.raises(KeyError, match="Acting needs the column 'stack', got: obs"):
            policy.compute_actions(batch["obs"])
        with pytest.raises(KeyError, match="no column 'stak'.*Did you mean 'stack'"):
            policy.compute_actions(batch["obs"], stak=batch["stack"])


def test_action_at_hand_is_there_for_losses_of_a_network_but_not_to_act():
    class Imitating(Model):
        acts_on_it = False

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.scale = tf.compat.v1.get_variable("scale", initializer=1.0, use_resource=True)

        def view_requirements(self):
            return {"acts": ViewRequirement("actions", shift="-1:0")}

        def __call__(self, columns):
            rows = columns["acts" if self.acts_on_it else "obs"][:, :1]
            rows = tf.cast(rows, tf.float32) * self.scale
            return ModelOutput(tf.tile(rows, [1, 3]), rows[:, 0])

        def metrics(self, columns):
            return {"newest": tf.cast(columns["acts"][:, 1], tf.float32)}

    class Acting(Imitating):
        acts_on_it = True

    with A2CPolicy(OBS, THREE, {**CONFIG, "model": {"custom_model": Imitating}}) as policy:
        assert acted(policy) == {"obs"} and "acts" in trained(policy)
    with pytest.raises(KeyError, match="no column 'acts'"):
        A2CPolicy(OBS, THREE, {**CONFIG, "model": {"custom_model": Acting}})


# Postprocessing.


class Weighted(Probe):
    """Its postprocessing makes columns of its own, out of what it alone reads."""

    columns = ("vf_weights", "steps_left")

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        batch = SampleBatch(sample_batch)
        batch["vf_weights"] = np.exp(-batch["rewards"].astype(np.float64))
        batch["steps_left"] = len(batch["new_obs"]) - 1 - np.asarray(batch["t"])
        return batch


def test_column_made_by_postprocessing_gets_an_input_when_the_loss_reads_it():
    with Weighted(OBS, THREE, CONFIG) as policy:
        batch = policy.postprocess_trajectory(trajectory(t=np.arange(3)))
        stats = policy.learn_on_batch(batch)["learner_stats"]
        assert stats["vf_weights"] == pytest.approx(np.exp([-1, -2, -3]).mean())
        assert stats["steps_left"] == pytest.approx(1.0)
        with pytest.raises(KeyError, match="lacks what learning reads: steps_left, vf_weights"):
            policy.learn_on_batch(trajectory())


def test_what_postprocessing_reads_is_collected_and_what_it_makes_is_not():
    with Weighted(OBS, THREE, CONFIG) as policy:
        # Read from a copy of the batch, which counts, too.
        assert trained(policy) == {"obs", "rewards", "new_obs", "t"}
        assert set(policy.view_requirements) == KEPT | {"new_obs"}


@pytest.mark.parametrize(
    "read",
    [
        lambda batch: batch["new_obs"],
        lambda batch: batch.get("new_obs"),
        lambda batch: SampleBatch(batch)["new_obs"],
        lambda batch: SampleBatch(batch[1:])["new_obs"],
        lambda batch: batch.copy()["new_obs"],
        lambda batch: dict(batch)["new_obs"],
        lambda batch: {name: column for name, column in batch.items()}["new_obs"],
        lambda batch: list(batch.rows())[0]["new_obs"],
    ],
    ids=["item", "get", "copy", "copied slice", "deep copy", "dict", "items", "rows"],
)
def test_every_way_of_reading_counts(read):
    batch, reads = recording_batch(trajectory())
    read(batch)
    assert "new_obs" in reads


def test_wrapping_cutting_and_extending_a_batch_reads_nothing():
    batch, reads = recording_batch(trajectory())
    wrapped = SampleBatch(batch[1:])
    wrapped["ones"] = np.ones(wrapped.count)
    assert "new_obs" in wrapped and "new_obs" in list(wrapped) and len(batch.timeslices(2)) == 2
    assert reads == set()


def test_padding_can_be_told_from_a_real_action_0_by_who_reads_the_mask():  # d3
    views = {
        "history": ViewRequirement("actions", shift="-2:-1"),
        "future": ViewRequirement("rewards", shift=[1]),
    }
    columns = ("history", "history_valid", "future_valid")
    with probe(*columns, trajectory_views=lambda self: views) as policy:
        assert trained(policy) >= set(columns) and "future" not in trained(policy)
        batch = trajectory()
        for name in columns:
            view = policy.view_requirements[name]
            batch[name] = view.apply(batch[view.data_col])
        assert batch["history"].tolist() == [[0, 0], [0, 0], [0, 1]]
        assert batch["history_valid"].tolist() == [[False, False], [False, True], [True, True]]
        stats = policy.learn_on_batch(batch)["learner_stats"]
        assert stats["history_valid"] == pytest.approx(0.5)
        assert stats["future_valid"] == pytest.approx(2 / 3)


def test_mask_must_be_given_to_a_model_that_reads_it_while_acting():  # d3
    class Cautious(Model):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.scale = tf.compat.v1.get_variable("scale", initializer=9.0, use_resource=True)

        def __call__(self, columns):
            known = tf.cast(columns["prev_actions_valid"], tf.float32)
            action = tf.where(columns["prev_actions_valid"], columns["prev_actions"], -1)
            return ModelOutput(tf.one_hot(action, 3) * self.scale, known * self.scale)

    with A2CPolicy(OBS, THREE, {**CONFIG, "model": {"custom_model": Cautious}}) as policy:
        assert acted(policy) == {"obs", "prev_actions", "prev_actions_valid"}
        obs = trajectory()["obs"]
        given = {"prev_actions_valid": np.array([False, True, True])}
        previous = np.array([0, 0, 2])
        logits = policy.compute_actions(obs, None, previous, **given)[2]["action_dist_inputs"]
        np.testing.assert_array_equal(logits, [[0, 0, 0], [9, 0, 0], [0, 0, 9]])
        with pytest.raises(KeyError, match="Acting needs the column 'prev_actions_valid'"):
            policy.compute_actions(obs, None, previous)
        with pytest.raises(ValueError, match=r"`prev_actions_valid`: expected shape \(B\)"):
            policy.compute_actions(obs, None, previous, prev_actions_valid=np.ones((3, 1), bool))


def test_hooks_are_tried_on_observations_out_of_the_space_and_infos_that_are_dicts():  # d8
    seen = {}

    def postprocess(self, batch, other_agent_batches=None, episode=None):
        seen.update(batch)
        return batch

    space = gym.spaces.Dict({"goal": OBS, "mode": gym.spaces.Discrete(3, start=5)})
    before = space["goal"].np_random.bit_generator.state
    with probe(obs_space=space, postprocess_trajectory=postprocess):
        for name in ("obs", "new_obs"):
            assert ((seen[name]["goal"] >= 0.5) & (seen[name]["goal"] <= 1.5)).all()
            assert (seen[name]["mode"] >= 5).all()
        assert all(info == {} for info in seen["infos"]) and len(seen["infos"]) > 0
        assert all(THREE.contains(action) for action in seen["actions"])
    # Trying draws no numbers from the user's own space.
    assert space["goal"].np_random.bit_generator.state == before


def test_trying_never_takes_more_rows_than_a_train_batch():  # c11
    counts = []

    def postprocess(self, batch, other_agent_batches=None, episode=None):
        counts.append(batch.count)
        return batch

    made = type("Probing", (Probe,), {"postprocess_trajectory": postprocess})
    made(OBS, THREE, {**CONFIG, "train_batch_size": 1, "num_gpus": 0}).close()
    made(OBS, THREE, CONFIG).close()
    assert counts[0] == 1 and 1 < counts[1] <= 4


def test_infos_are_for_postprocessing_and_never_become_an_input():  # d14
    def postprocess(self, sample_batch, other_agent_batches=None, episode=None):
        batch = SampleBatch(sample_batch)
        lives = [info.get("lives", 3) for info in batch["infos"]]
        batch["lives"] = np.array(lives, np.float32)
        return batch

    with probe("lives", postprocess_trajectory=postprocess) as policy:
        assert "infos" in trained(policy)
        infos = np.array([{}, {"lives": 1, "other": [1, 2]}, {"lives": 2}], object)
        batch = policy.postprocess_trajectory(trajectory(infos=infos))
        assert policy.learn_on_batch(batch)["learner_stats"]["lives"] == pytest.approx(2.0)
    with pytest.raises(KeyError, match="no column 'infos'"):
        probe("infos")


@pytest.mark.parametrize("delete", [lambda b: b.pop("new_obs"), lambda b: b.__delitem__("new_obs")])
def test_column_that_postprocessing_deletes_is_there_every_time_and_nobody_is_warned(delete):  # d17
    def postprocess(self, sample_batch, other_agent_batches=None, episode=None):
        batch = SampleBatch(sample_batch)
        delete(batch)
        return batch

    env = make_vector_env("CartPole-v1", 2)
    spaces = {"obs_space": env.single_observation_space, "action_space": env.single_action_space}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with probe("rewards", postprocess_trajectory=postprocess, **spaces) as policy:
            rollout = Rollout(policy, Environments(env, seed=0))
            for _ in range(3):
                batch = rollout.sample(8)
                assert "new_obs" not in batch and "new_obs" in policy.view_requirements
                policy.learn_on_batch(batch)
    env.close()


# Mistakes.


@pytest.mark.parametrize(
    ("column", "nearest"),
    [("reward", "rewards"), ("next_obs", "new_obs"), ("prev_action", "prev_")],
)
def test_unknown_column_is_a_key_error_that_names_the_nearest(column, nearest):
    with pytest.raises(KeyError, match=f"no column '{column}'. Did you mean '{nearest}.*Columns:"):
        probe(column)


def test_batch_without_a_column_names_the_missing_and_the_present():
    with probe("rewards", "new_obs") as policy:
        batch = trajectory()
        del batch["new_obs"], batch["rewards"]
        before = policy.get_weights()
        with pytest.raises(KeyError, match="reads: new_obs, rewards. It has: obs, actions"):
            policy.learn_on_batch(batch)
        for name, weight in policy.get_weights().items():
            np.testing.assert_array_equal(weight, before[name])


def test_view_for_acting_without_a_space_says_so():
    class LooksAtValues(Model):
        def view_requirements(self):
            return {"last_value": ViewRequirement("vf_preds", shift=-1)}

        def __call__(self, columns):
            raise AssertionError("never called")

    config = {**CONFIG, "model": {"custom_model": LooksAtValues}}
    with pytest.raises(ValueError, match="used for acting must have a space"):
        Probe(OBS, THREE, config)


def test_dones_are_the_union_of_both_ends_in_the_loss():
    with probe("dones") as policy:
        assert trained(policy) == {"obs", "terminateds", "truncateds"}
        batch = trajectory(4)
        batch["terminateds"][1], batch["truncateds"][3] = True, True
        stats = policy.learn_on_batch(batch)["learner_stats"]
        assert stats["dones"] == pytest.approx(0.5)
