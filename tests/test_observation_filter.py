"""Policies act on normalized observations, in whatever way they are asked to act.

What a policy with a filter does on observations is compared with what a policy of the same weights
without one does on observations that NumPy has normalized.
"""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from filtered_policies import (
    FILTER,
    MOMENTS,
    NO_KL,
    OBS_OF_ANY_SIZE,
    Pair,
    act,
    assert_same,
    moments,
    normalize,
    observe,
)
from small_policies import (
    ppo_batch,
    small_policy,
)

from tfpolicy.models import ModelOutput

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


def test_without_statistics_observations_are_left_alone(pair):
    obs = observe(9)
    expected = pair.plain.compute_actions(obs, explore=False)
    found = pair.filtered.compute_actions(obs, explore=False)
    np.testing.assert_array_equal(found[0], expected[0])
    assert_same(found[2], expected[2])


def test_every_way_to_act_sees_the_same_normalized_observations(made):  # e31
    seen, obs = observe(200, 1), observe(6)
    pair = made.reset(seen)
    normalized = normalize(obs, seen)
    actions, _, extras = pair.filtered.compute_actions(obs, explore=False)
    expected_actions, _, expected = pair.plain.compute_actions(normalized, explore=False)
    np.testing.assert_array_equal(actions, expected_actions)
    assert_same(extras, expected, rtol=1e-4, atol=1e-5)
    by_dict = pair.filtered.compute_actions_from_input_dict({"obs": obs}, explore=False)
    assert_same(by_dict[2], extras)
    for row in range(len(obs)):
        action, _, single = pair.filtered.compute_single_action(obs[row], explore=False)
        assert action == actions[row]
        assert_same(single, {name: value[row] for name, value in extras.items()}, 1e-6, 1e-6)
    logp = pair.filtered.compute_log_likelihoods(actions, obs)
    np.testing.assert_allclose(logp, extras["action_logp"], rtol=1e-6)
    np.testing.assert_array_equal(pair.filtered.compute_values({"obs": obs}), extras["vf_preds"])


def test_acting_never_changes_the_statistics(made):  # e31
    policy = made.reset(observe(50)).filtered
    before = moments(policy)
    policy.compute_actions(observe(20, 1))
    policy.compute_single_action(observe(1, 2)[0])
    policy.compute_values({"obs": observe(5, 3)})
    assert_same(moments(policy), before)


def test_what_is_far_out_or_never_varied_gives_finite_outputs(made):
    policy = made.reset(observe(50)).filtered
    obs = np.float32([[1e30, -1e30, np.inf, 7.0]])
    extras = policy.compute_actions(obs, explore=False)[2]
    expected = made.plain.compute_actions(np.float32([[10, -10, 10, 6.9]]), explore=False)[2]
    assert_same(extras, expected, rtol=1e-5, atol=1e-6)


def test_nan_is_still_an_error(made):
    policy = made.reset(observe(50)).filtered
    with pytest.raises(FloatingPointError, match=r"rows \[1\]"):
        policy.compute_actions(np.float32([[1, 2, 3, 4], [1, np.nan, 3, 4]]), explore=False)


def test_an_action_mask_is_never_filtered():
    space = S.Dict(action_mask=S.Box(0, 1, (3,)), observations=OBS_OF_ANY_SIZE)
    rng = np.random.default_rng(0)
    mask = (rng.random((64, 3)) < 0.5).astype(np.float32)
    mask[np.arange(64), rng.integers(0, 3, 64)] = 1.0
    obs = {"action_mask": mask, "observations": observe(64)}
    with small_policy(obs_space=space, **FILTER) as policy:
        assert list(moments(policy)) == [
            f"{MOMENTS}count",
            f"{MOMENTS}obs_observations/mean",
            f"{MOMENTS}obs_observations/variance",
        ]
        stats = policy.learn_on_batch(act(policy, obs))["learner_stats"]
        assert abs(stats["kl"]) < NO_KL
        actions = policy.compute_actions(obs)[0]
        assert (mask[np.arange(64), actions] == 1.0).all()
        with pytest.raises(ValueError, match="at least one of the 3 actions must be allowed"):
            policy.compute_actions({**obs, "action_mask": np.zeros_like(mask)})


def linear(columns, factor):
    """A network as a function, which sees observations as they come."""
    assert columns["obs"].dtype.name == "float32"
    weight = tf.compat.v1.get_variable("weight", initializer=np.float32(factor))
    return ModelOutput(columns["obs"] * weight, columns["obs"][:, 0])


def test_networks_of_ones_own_see_normalized_floats_too():
    space = S.Box(-1000, 1000, (3,), np.int64)
    obs = np.random.default_rng(0).integers(-1000, 1000, (40, 3))
    model = {"custom_model": linear, "custom_model_config": {"factor": 2.0}}
    with small_policy("pg", space, model=model, **FILTER) as policy:
        policy.update_observation_filter({"obs": obs})
        found = policy.compute_actions(obs, explore=False)[2]["action_dist_inputs"]
        np.testing.assert_allclose(found, 2.0 * normalize(obs, obs), rtol=1e-5)


def test_without_a_filter_the_graph_has_nothing_of_it(made):
    names = [op.name for op in made.plain.get_session().graph.get_operations()]
    assert not [name for name in names if "filter" in name or "frozen" in name]
    filtered = [op.name for op in made.filtered.get_session().graph.get_operations()]
    assert any("filter" in name for name in filtered) and any("frozen" in n for n in filtered)
    assert not moments(made.plain)
    result = made.plain.learn_on_batch(ppo_batch(16))
    assert "num_rows_not_finite" not in result


def test_without_a_filter_there_is_nothing_to_update(made):
    with pytest.raises(ValueError, match="has no observation filter"):
        made.plain.update_observation_filter({"obs": observe(4)})


@pytest.mark.parametrize("space", [S.Discrete(4), S.Box(0, 255, (84, 84, 3), np.uint8)], ids=str)
def test_a_filter_with_nothing_to_normalize_is_refused(space):
    with pytest.raises(ValueError, match="`observation_filter`: there is nothing to normalize"):
        small_policy(obs_space=space, **FILTER)
