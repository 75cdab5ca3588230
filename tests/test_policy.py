"""The policy interface: what a policy of any making has to do, and how one is specified."""

import gymnasium as gym
import numpy as np
import pytest

from tfpolicy.policy import LEARNER_STATS_KEY, Policy, PolicySpec

OBS_SPACE = gym.spaces.Box(-1.0, 1.0, (3,))
ACTION_SPACE = gym.spaces.Discrete(2)


class CountingPolicy(Policy):
    """Always acts alike, and learns how many rows it was shown: as little as a policy can be."""

    def __init__(self, observation_space, action_space, config=None):
        self.observation_space = observation_space
        self.action_space = action_space
        self.config = config or {}
        self.view_requirements = {}
        self._count = np.zeros(1)

    def compute_actions(self, obs_batch, *args, **kwargs):
        return np.zeros(len(obs_batch), np.int64), [], {}

    def learn_on_batch(self, samples):
        self._count += len(samples["obs"])
        return {LEARNER_STATS_KEY: {"count": float(self._count[0])}}

    def get_weights(self):
        return {"count": self._count.copy()}

    def set_weights(self, weights):
        self._count = np.array(weights["count"])

    def get_state(self):
        return {"weights": self.get_weights()}

    def set_state(self, state):
        self.set_weights(state["weights"])


@pytest.fixture
def policy():
    return CountingPolicy(OBS_SPACE, ACTION_SPACE)


def test_minimal_policy_acts_learns_and_keeps_its_state(policy):
    actions, states, extras = policy.compute_actions(np.zeros((2, 3)))
    assert actions.tolist() == [0, 0] and states == [] and extras == {}
    assert policy.learn_on_batch({"obs": np.zeros((5, 3))}) == {"learner_stats": {"count": 5.0}}
    other = CountingPolicy(OBS_SPACE, ACTION_SPACE)
    other.set_state(policy.get_state())
    assert other.get_weights() == {"count": 5.0}


def test_minimal_policy_has_no_state_and_leaves_trajectories_alone(policy):
    assert policy.get_initial_state() == [] and policy.num_state_tensors() == 0
    assert not policy.is_recurrent()
    batch = {"obs": np.zeros((2, 3))}
    assert policy.postprocess_trajectory(batch) is batch


def test_minimal_policy_is_told_the_time_and_may_ignore_the_rest(policy):
    assert policy.global_timestep == 0
    policy.on_global_var_update({"timestep": np.int64(7)})
    assert policy.global_timestep == 7 and type(policy.global_timestep) is int
    policy.on_train_batch_end({"kl": 1.0})
    policy.close()


def test_recurrence_follows_from_the_initial_state(policy):
    policy.get_initial_state = lambda: [np.zeros(4), np.zeros(4)]
    assert policy.is_recurrent() and policy.num_state_tensors() == 2


def test_acting_on_single_observations_is_optional_but_says_so(policy):
    with pytest.raises(NotImplementedError, match="CountingPolicy does not act on single"):
        policy.compute_single_action(np.zeros(3))


def test_policy_without_its_parts_cannot_be_made():
    class ActsOnly(Policy):
        def compute_actions(self, obs_batch, *args, **kwargs):
            return None

    with pytest.raises(TypeError, match="learn_on_batch"):
        ActsOnly()


def test_every_field_of_a_spec_is_optional():
    spec = PolicySpec()
    assert vars(spec) == {
        "policy_class": None,
        "observation_space": None,
        "action_space": None,
        "config": None,
    }
    assert spec == PolicySpec(config=None)


def test_spec_builds_its_policy():
    policy = PolicySpec(CountingPolicy, OBS_SPACE, ACTION_SPACE, {"gamma": 0.5}).build()
    assert type(policy) is CountingPolicy
    assert policy.observation_space is OBS_SPACE and policy.action_space is ACTION_SPACE
    assert policy.config == {"gamma": 0.5}
    assert PolicySpec(CountingPolicy, OBS_SPACE, ACTION_SPACE).build().config == {}


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        (PolicySpec(), "policy_class"),
        (PolicySpec(CountingPolicy), "observation_space"),
        (PolicySpec(CountingPolicy, OBS_SPACE), "action_space"),
        (PolicySpec(CountingPolicy, action_space=ACTION_SPACE), "observation_space"),
    ],
)
def test_spec_that_is_not_complete_names_what_is_missing(spec, missing):
    with pytest.raises(ValueError, match=f"`PolicySpec.{missing}` must be set before `build`"):
        spec.build()
