"""Small deterministic environments whose observations tell where they come from, and policies."""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from tfpolicy.policy import Policy
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.view_requirement import ViewRequirement

# What the entries of an observation say.
TAG, LENGTH, STEP, LAST_ACTION = range(4)


class CountingEnv(gym.Env):
    """Episodes of 3 to 8 steps; an observation is (tag of the episode, its length, step, action).

    Episodes with an even tag terminate, the others are truncated. The reward of a step is its
    number, counted from 1. Without `function_of_seed` the tag depends on what happened before the
    reset.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(5)

    all_resets = 0

    def __init__(self, function_of_seed=True):
        self._function_of_seed = function_of_seed

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        CountingEnv.all_resets += 1
        self._tag = int(self.np_random.integers(2**20))
        if not self._function_of_seed:
            self._tag += CountingEnv.all_resets
        self._length = int(self.np_random.integers(3, 9))
        self._step, self._action = 0, -1
        return self._obs(), {"first": True}

    def step(self, action):
        assert self._step < self._length, "stepped beyond the end"
        self._step += 1
        self._action = int(action)
        ended = self._step == self._length
        terminated, truncated = ended and self._tag % 2 == 0, ended and self._tag % 2 == 1
        return self._obs(), float(self._step), terminated, truncated, {"step": self._step}

    def _obs(self):
        return np.array([self._tag, self._length, self._step, self._action], np.float32)


class NestedEnv(gym.ObservationWrapper):
    """The same with observations {"where": {"tag", "step"}, "rest": (length, action)}."""

    def __init__(self):
        super().__init__(CountingEnv())
        number = gym.spaces.Box(-np.inf, np.inf, (), np.float32)
        self.observation_space = gym.spaces.Dict(
            where=gym.spaces.Dict(tag=number, step=gym.spaces.Discrete(20)),
            rest=gym.spaces.Tuple((number, number)),
        )

    def observation(self, observation):
        tag, length, step, action = map(np.asarray, observation)
        return {"where": {"tag": tag, "step": int(step)}, "rest": (length, action)}


class CountingVectorEnv(VectorEnv):
    """A vector entry point of its own: only `reset(seed=int)`, and the mode that it is told."""

    def __init__(self, num_envs=1, mode="NextStep"):
        self._envs = SyncVectorEnv([CountingEnv] * num_envs, autoreset_mode=mode)
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode(mode)}
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space
        self.observation_space = self._envs.observation_space
        self.action_space = self._envs.action_space

    def reset(self, *, seed=None, options=None):
        assert seed is None or isinstance(seed, int)
        return self._envs.reset(seed=seed, options=options)

    def step(self, actions):
        return self._envs.step(actions)


gym.register("Counting-v0", entry_point=CountingEnv, vector_entry_point=CountingVectorEnv)
# Not the class: gymnasium 1.1 takes a wrapper class for an environment and misses its metadata.
gym.register("Nested-v0", entry_point=lambda: NestedEnv())


class AnyPolicy(Policy):
    """The least that a policy can be: acts by a fixed rule, learns nothing.

    It takes actions 0, 1, 2, ... in turn, whatever it sees.
    """

    def __init__(self, observation_space, action_space, config=None, views=None):
        self.observation_space = observation_space
        self.action_space = action_space
        self.config = config or {}
        self.view_requirements = views or {}
        self.calls = 0

    def compute_actions(self, obs_batch, state_batches=None, **kwargs):
        n = len(_first_leaf(obs_batch))
        self.calls += 1
        actions = np.arange(self.calls, self.calls + n) % self.action_space.n
        return actions, [], {"vf_preds": np.full(n, self.calls, np.float32)}

    def compute_single_action(self, obs, state=None, **kwargs):
        actions, state, extras = self.compute_actions(np.zeros((1, 1)), **kwargs)
        return actions[0], state, extras

    def learn_on_batch(self, samples):
        return {"learner_stats": {}}

    def get_weights(self):
        return {}

    def set_weights(self, weights):
        pass

    def get_state(self):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]


class StepCountingPolicy(AnyPolicy):
    """Its recurrent state counts the steps of the episode."""

    def get_initial_state(self):
        return [np.zeros(1, np.float32)]

    def compute_actions(self, obs_batch, state_batches=None, **kwargs):
        actions, _, extras = super().compute_actions(obs_batch)
        return actions, [state_batches[0] + 1], extras


class LookingBackPolicy(AnyPolicy):
    """Sees its last action and the last three observations; keeps what it was given."""

    def __init__(self, observation_space, action_space, config=None):
        views = {
            SampleBatch.OBS: ViewRequirement(space=observation_space),
            "prev_actions": ViewRequirement(SampleBatch.ACTIONS, action_space, shift=-1),
            "frames": ViewRequirement(SampleBatch.OBS, observation_space, shift="-2:0"),
            "prev_rewards": ViewRequirement(
                SampleBatch.REWARDS, shift=-1, used_for_compute_actions=False
            ),
            "next_actions": ViewRequirement(
                SampleBatch.ACTIONS, action_space, shift=1, used_for_compute_actions=False
            ),
        }
        super().__init__(observation_space, action_space, config, views)
        self.inputs = []

    def compute_actions(self, obs_batch, state_batches=None, extra_fetches=None, **kwargs):
        self.inputs.append(kwargs)
        return super().compute_actions(obs_batch)


def _first_leaf(obs):
    while isinstance(obs, dict):
        obs = next(iter(obs.values()))
    return obs
