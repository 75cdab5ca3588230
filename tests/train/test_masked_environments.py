"""Environments with action masks: nothing illegal is done, whatever the autoreset mode."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from tfpolicy.policies import policy_class
from tfpolicy.train.environments import Environments
from tfpolicy.train.rollout import Rollout


class LegalEnv(gym.Env):
    """Episodes of 1 to 4 steps that accept legal actions alone; at the end nothing is legal."""

    observation_space = gym.spaces.Dict(
        action_mask=gym.spaces.MultiBinary(4), observations=gym.spaces.Box(0, 1, (2,))
    )
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps_left = int(self.np_random.integers(1, 5))
        return self._obs(), {}

    def step(self, action):
        assert self._steps_left > 0, "stepped beyond the end"
        assert self._mask[action], "did what is not legal"
        self._steps_left -= 1
        return self._obs(), 1.0, self._steps_left == 0, False, {}

    def _obs(self):
        self._mask = np.zeros(4, np.int8)
        if self._steps_left:
            self._mask[self.np_random.integers(4)] = 1
            self._mask |= self.np_random.integers(0, 2, 4, dtype=np.int8)
        return {"action_mask": self._mask, "observations": self.np_random.random(2, np.float32)}


@pytest.fixture(scope="module")
def policy():
    config = {"seed": 1, "model": {"fcnet_hiddens": [8]}, "train_batch_size": 32}
    config["sgd_minibatch_size"] = 16
    built = policy_class("ppo")(LegalEnv.observation_space, LegalEnv.action_space, config)
    yield built
    built.close()


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_episodes_that_end_without_a_legal_action_are_sampled_and_learned_from(
    policy, mode, num_envs
):
    env = SyncVectorEnv([LegalEnv] * num_envs, autoreset_mode=mode)
    rollout = Rollout(policy, Environments(env, seed=3))
    try:
        batches = [rollout.sample(steps) for steps in (1, 40, 7)]
    finally:
        env.close()
    for batch in batches:
        mask = batch["obs"]["action_mask"]
        assert mask[np.arange(batch.count), batch["actions"]].all()
        ends = batch["terminateds"]
        assert not batch["new_obs"]["action_mask"][ends].any()
    stats = policy.learn_on_batch(batches[1])["learner_stats"]
    assert np.isfinite(list(stats.values())).all()
