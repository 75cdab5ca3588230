"""The statistics of a filter travel with weights, states, checkpoints and exports."""

import gymnasium as gym
import keras
import numpy as np
import pytest
import tf_keras
from filtered_policies import (
    FILTER,
    MOMENTS,
    NO_KL,
    OBS_OF_ANY_SIZE,
    Pair,
    act,
    assert_moments,
    assert_same,
    moments,
    normalize,
    observe,
)
from small_policies import (
    small_policy,
)

from tfpolicy.inspection import describe
from tfpolicy.served_policy import load_policy
from tfpolicy.verification import verify

S = gym.spaces


@pytest.fixture(scope="module")
def made():
    pair = Pair()
    yield pair
    pair.close()


@pytest.fixture
def pair(made):
    return made.reset()


@pytest.fixture
def policy(pair):
    return pair.filtered


def test_a_restored_policy_makes_the_next_update_bit_by_bit(policy):  # g7
    policy.load_batch_into_buffer(act(policy, observe(128)))
    policy.learn_on_buffer(num_sgd_iter=2)
    state = policy.get_state()
    batch = act(policy, observe(128, 1))
    policy.set_state(state)
    with small_policy(sgd_minibatch_size=32, **FILTER) as other:
        other.set_state(state)
        assert_same(moments(other), moments(policy))
        for each in (policy, other):
            each.load_batch_into_buffer(batch)
            each.learn_on_buffer(num_sgd_iter=2)
        assert_same(other.get_weights(), policy.get_weights())


@pytest.mark.parametrize("clip", [0.5, None])
def test_a_checkpoint_holds_statistics_and_settings_of_the_filter(tmp_path, clip):  # g7, g10
    obs, seen = observe(20), observe(100, 1)
    with small_policy(observation_filter_clip=clip, **FILTER) as policy:
        policy.update_observation_filter({"obs": seen})
        policy.save(tmp_path / "c")
        expected = policy.compute_actions(obs, explore=False)
        with type(policy).from_checkpoint(tmp_path / "c") as restored:
            assert restored.config.observation_filter == "MeanStdFilter"
            assert restored.config.observation_filter_clip == clip
            assert_moments(restored, seen)
            found = restored.compute_actions(obs, explore=False)
            assert_same(found[2], expected[2])
        with load_policy(tmp_path / "c") as served:
            found = served.compute_actions(obs)
            np.testing.assert_array_equal(found[0], expected[0])
            assert_same(found[2], expected[2], rtol=1e-6, atol=1e-6)
    with small_policy() as plain:
        if clip is not None:
            plain_extras = plain.compute_actions(normalize(obs, seen, clip), explore=False)[2]
            assert_same(expected[2], plain_extras, rtol=1e-4, atol=1e-5)
        with pytest.raises(ValueError, match="unexpected: observation_filter/count"):
            plain.restore(tmp_path / "c")


def test_who_gets_the_weights_acts_as_the_one_who_learned(policy):
    obs = observe(30)
    policy.learn_on_batch(act(policy, observe(128)))
    with small_policy(sgd_minibatch_size=32, **FILTER) as actor:
        actor.set_weights(policy.get_weights())
        expected = policy.compute_actions(obs, explore=False)
        found = actor.compute_actions(obs, explore=False)
        np.testing.assert_array_equal(found[0], expected[0])
        assert_same(found[2], expected[2])
        # What it collects is learned from under the statistics that it was collected under.
        stats = policy.learn_on_batch(act(actor, observe(128, 1)))["learner_stats"]
        assert abs(stats["kl"]) < NO_KL


SPACES = {
    "discrete": S.Discrete(3),
    "continuous": S.Box(-2, 5, (2,)),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_an_exported_policy_acts_as_the_one_in_training_and_stays_as_it_is(space, tmp_path):
    obs = observe(50)
    with small_policy(action_space=space, obs_space=OBS_OF_ANY_SIZE, **FILTER) as policy:
        policy.update_observation_filter({"obs": observe(100, 1)})
        version = policy.export_model(tmp_path)
        expected, _, extras = policy.compute_actions(obs, explore=False)
        for row in range(3):
            action = policy.compute_single_action(obs[row], explore=False)[0]
            with load_policy(version) as served:
                np.testing.assert_allclose(served.compute_single_action(obs[row])[0], action, 1e-6)
        # What is learned afterwards does not reach it.
        policy.update_observation_filter({"obs": observe(100, 2) * 7.0})
        with load_policy(version) as served:
            for _ in range(2):
                actions, _, found = served.compute_actions(obs)
                assert_same(found, extras, rtol=1e-6, atol=1e-6)
        if isinstance(space, S.Discrete):
            np.testing.assert_array_equal(actions, expected)


def test_an_h5_file_carries_the_statistics_beside_the_network(made, tmp_path):
    seen, obs = observe(100, 1), observe(20)
    policy = made.reset(seen).filtered
    policy.export_model_to_h5(tmp_path / "w.h5")
    expected = policy.compute_actions(obs, explore=False)
    for library in (tf_keras, keras):
        network = library.models.load_model(tmp_path / "w.h5", compile=False)
        assert sorted(layer.name for layer in network.layers if layer.weights) == LAYERS
        outputs, values = network.predict(normalize(obs, seen), verbose=0)
        np.testing.assert_allclose(outputs, expected[2]["action_dist_inputs"], 1e-4, 1e-5)
        np.testing.assert_allclose(values[:, 0], expected[2]["vf_preds"], 1e-4, 1e-5)
    report = made.reset().filtered.import_model_from_h5(tmp_path / "w.h5")
    assert report.complete and report.loaded[f"{MOMENTS}count"] == f"tfpolicy/{MOMENTS}count"
    assert_moments(policy, seen)
    assert_same(policy.compute_actions(obs, explore=False)[2], expected[2])
    text = describe(tmp_path / "w.h5")
    assert f"{MOMENTS}obs/variance: float64 [4]" in text and "tfpolicy/" not in text
    assert all(line.same for line in verify(tmp_path / "w.h5"))


LAYERS = ["fc_1", "fc_out", "fc_value_1", "value_out"]


def test_weights_without_statistics_are_refused_unless_those_there_are_are_to_stay(made, tmp_path):
    policy = made.reset(observe(50)).filtered
    before = policy.get_weights()
    weights = made.plain.get_weights()
    weights["fc_1/bias"] += 1.0
    made.plain.set_weights(weights)
    made.plain.export_model_to_h5(tmp_path / "w.h5")
    with pytest.raises(ValueError, match=r"no moments of an observation filter \(.*strict=False"):
        policy.import_model_from_h5(tmp_path / "w.h5")
    assert_same(policy.get_weights(), before)
    report = policy.import_model_from_h5(tmp_path / "w.h5", strict=False)
    assert report.missing == tuple(moments(policy)) and not report.complete
    assert_moments(policy, observe(50))
    assert_same(policy.get_weights(), {**before, **weights})
    assert policy.import_model_from_h5(tmp_path / "w.h5", layers=["fc_1"]).complete


def test_moments_of_another_filter_are_refused_unless_what_fits_is_asked_for(made, tmp_path):
    policy = made.reset(observe(50)).filtered
    policy.export_model_to_h5(tmp_path / "w.h5")
    made.reset()
    before = made.plain.get_weights()
    with pytest.raises(ValueError, match=r"w.h5` holds .* this policy has no filter"):
        made.plain.import_model_from_h5(tmp_path / "w.h5")
    assert_same(made.plain.get_weights(), before)
    report = made.plain.import_model_from_h5(tmp_path / "w.h5", strict=False)
    assert report.left_out == tuple(moments(policy))
    made.plain.import_model_from_h5(tmp_path / "w.h5", network="value")
    with small_policy(obs_space=S.Box(-1, 1, (2, 2)), **FILTER) as other:
        with pytest.raises(ValueError, match=r"obs/mean': \(4,\).*expected .*obs/mean': \(2, 2\)"):
            other.import_model_from_h5(tmp_path / "w.h5")
        assert moments(other)[f"{MOMENTS}count"] == 0
