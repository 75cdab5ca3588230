"""Callbacks of a policy: what they are called with, and what they may change."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.callbacks import DefaultCallbacks
from tfpolicy.graph.towers import LossOutput
from tfpolicy.policies.pg import PGPolicy
from tfpolicy.tf_policy import TFPolicy

OBS = gym.spaces.Box(-1.0, 1.0, (2,))
TWO = gym.spaces.Discrete(2)
CONFIG = {"seed": 0, "model": {"fcnet_hiddens": [4]}, "train_batch_size": 4}


class Recorder(DefaultCallbacks):
    """Notes what happens; halves the rewards that are learned from."""

    def __init__(self):
        self.events = []

    def on_create_policy(self, *, policy, **kwargs):
        self.events.append(("create", policy, policy.get_weights()))

    def on_learn_on_batch(self, *, policy, train_batch, result, **kwargs):
        self.events.append(("learn", policy, train_batch.count))
        result["mean_reward"] = float(np.mean(train_batch["rewards"]))
        train_batch["rewards"] *= 0.5
        train_batch["rewards"][0] = 0.0


class MeanReward(TFPolicy):
    """Reports the mean of the rewards that it learned from."""

    def loss(self, model, dist_class, train_batch):
        mean_reward = train_batch.mean(train_batch["rewards"])
        loss = train_batch.mean(tf.square(model(train_batch).vf_preds))
        return LossOutput(loss, {"mean_reward": mean_reward})


@pytest.fixture(scope="module", params=[0, 2], ids=["one tower", "two towers"])
def policy(request):
    """With the callbacks above, on one device and on two."""
    towers = {"num_gpus": request.param, "fake_gpus": True, "num_multi_gpu_tower_stacks": 2}
    with MeanReward(OBS, TWO, {**CONFIG, **towers, "callbacks": Recorder}) as made:
        yield made


@pytest.fixture
def batch():
    """Four rows with rewards 2, 4, 6, 8."""
    obs = np.zeros((4, 2), np.float32)
    return {"obs": obs, "rewards": np.float32([2, 4, 6, 8])}


def learn_on_batch(policy, batch):
    return policy.learn_on_batch(batch)


def learn_on_loaded_batch(policy, batch):
    policy.load_batch_into_buffer(batch)
    return policy.learn_on_loaded_batch()


def learn_on_buffer(policy, batch):
    policy.load_batch_into_buffer(batch)
    return policy.learn_on_buffer()


def compute_gradients(policy, batch):
    return policy.compute_gradients(batch)[1]


WAYS = [learn_on_batch, learn_on_loaded_batch, learn_on_buffer, compute_gradients]


def test_created_policy_is_complete_when_the_callback_sees_it(policy):
    event, created, weights = policy.callbacks.events[0]
    assert event == "create" and created is policy
    assert set(weights) == set(policy.get_weights())
    assert [name for name, *_ in policy.callbacks.events].count("create") == 1


@pytest.mark.parametrize("learn", WAYS)
def test_every_way_to_learn_calls_it_once_and_reports_what_it_found(policy, batch, learn):
    policy.callbacks.events.clear()
    result = learn(policy, batch)
    assert policy.callbacks.events == [("learn", policy, 4)]
    assert result["custom_metrics"] == {"mean_reward": 5.0}


@pytest.mark.parametrize("learn", WAYS)
def test_what_it_changes_is_learned_from_but_the_callers_batch_stays(policy, batch, learn):
    before = {name: column.copy() for name, column in batch.items()}
    result = learn(policy, batch)
    # Rewards 0, 2, 3, 4 in place of 2, 4, 6, 8.
    assert result["learner_stats"]["mean_reward"] == pytest.approx(2.25)
    assert list(batch) == list(before)
    for name, column in before.items():
        np.testing.assert_array_equal(batch[name], column)


def test_metrics_belong_to_the_buffer_that_was_loaded(policy, batch):
    policy.load_batch_into_buffer(batch, buffer_index=0)
    policy.load_batch_into_buffer({**batch, "rewards": np.ones(4, np.float32)}, buffer_index=1)
    results = [policy.learn_on_loaded_batch(buffer_index=index) for index in (0, 1, 0)]
    assert [r["custom_metrics"]["mean_reward"] for r in results] == [5.0, 1.0, 5.0]


def test_metrics_of_a_batch_that_could_not_be_loaded_are_not_reported(policy, batch):
    policy.load_batch_into_buffer(batch)
    with pytest.raises(ValueError, match="Column `obs`: expected"):
        policy.load_batch_into_buffer({**batch, "obs": np.zeros((4, 3), np.float32)})
    assert policy.learn_on_loaded_batch()["custom_metrics"] == {"mean_reward": 5.0}


def test_every_policy_has_an_instance_of_its_own():
    with PGPolicy(OBS, TWO, {**CONFIG, "callbacks": Recorder}) as one:
        with PGPolicy(OBS, TWO, {**CONFIG, "callbacks": Recorder}) as other:
            assert one.callbacks is not other.callbacks
            assert [event[1] for event in one.callbacks.events] == [one]


def test_without_callbacks_there_are_no_metrics_and_rewards_stay(batch):
    with MeanReward(OBS, TWO, CONFIG) as policy:
        result = policy.learn_on_batch(batch)
        assert result["custom_metrics"] == {}
        assert result["learner_stats"]["mean_reward"] == pytest.approx(5.0)


def test_default_callbacks_answer_every_event_and_take_what_later_versions_add():
    callbacks = DefaultCallbacks()
    nothing = {"policy": None, "episode": None, "env_index": 0, "result": {}, "added_later": 1}
    batches = {"train_batch": {}, "postprocessed_batch": {}, "original_batch": {}}
    events = [name for name in dir(callbacks) if name.startswith("on_")]
    assert len(events) == 7
    for event in events:
        getattr(callbacks, event)(**nothing, **batches)
    assert nothing["result"] == {} and batches["train_batch"] == {}


def test_what_is_no_callbacks_class_is_refused_before_anything_is_built():
    with pytest.raises(TypeError, match="`callbacks` must be a subclass of DefaultCallbacks"):
        PGPolicy(OBS, TWO, {**CONFIG, "callbacks": dict})
    with pytest.raises(TypeError, match="`callbacks` must be a class or None"):
        PGPolicy(OBS, TWO, {**CONFIG, "callbacks": Recorder()})
