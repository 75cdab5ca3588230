"""Training with an observation filter: bit-exact from a checkpoint, and what it is good for."""

import counting  # noqa: F401  (registers the environments)
import gymnasium as gym
import numpy as np
import pytest
from filtered_policies import FILTER, MOMENTS, assert_same
from small_policies import TINY

from tfpolicy.policies import policy_class
from tfpolicy.served_policy import load_policy
from tfpolicy.train.environments import make_vector_env
from tfpolicy.train.loop import Trainer
from tfpolicy.train.run import RunSpec, Stop


def test_training_goes_on_bit_by_bit_from_a_checkpoint(tmp_path):  # g7
    config = {"train_batch_size": 32, "sgd_minibatch_size": 16, "num_sgd_iter": 2, "seed": 3}
    results = []
    for run in range(2):
        env = make_vector_env("Counting-v0", num_envs=2)
        spaces = env.single_observation_space, env.single_action_space
        policy = policy_class("ppo")(*spaces, {**config, "model": TINY, **FILTER})
        trainer = Trainer(policy, env, seed=5)
        if run:
            trainer.restore(tmp_path / "c")
        else:
            trainer.train_iteration()
            trainer.save(tmp_path / "c")
        trainer.train_iteration()
        results.append(policy.get_state())
        trainer.close()
    assert results[1]["weights"][f"{MOMENTS}count"] == 64
    for part in ("weights", "optimizer_variables"):
        assert_same(results[1][part], results[0][part])


class OddUnits(gym.ObservationWrapper):
    """Positions in millimetres from a far away origin, speeds in kilometres per second."""

    _SCALES = np.array([1e3, 1e-3, 1e3, 1e-3], np.float32)
    _ORIGIN = np.array([2e4, 0.0, -5e3, 0.0], np.float32)

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation):
        return observation * self._SCALES + self._ORIGIN


gym.register("OddUnits-v0", OddUnits)


@pytest.mark.slow
def test_ppo_balances_a_pole_in_odd_units_with_a_filter_only_and_serves_what_it_learned(tmp_path):
    returns = {}
    for name in ("NoFilter", "MeanStdFilter"):
        config = {"model": {"fcnet_hiddens": [64, 64]}, "observation_filter": name}
        trainer = RunSpec("OddUnits-v0", seed=0, config=config).make_trainer()
        stop = Stop(100_000, 450.0)
        while stop.reason(trainer) is None:
            trainer.train_iteration()
        returns[name] = trainer.statistics.summary()["episode_return_mean"]
        version = trainer.policy.export_model(tmp_path / name)
        env = OddUnits()
        observations = np.stack([env.reset(seed=seed)[0] for seed in range(1000)])
        expected, _, extras = trainer.policy.compute_actions(observations, explore=False)
        with load_policy(version) as served:
            actions, _, found = served.compute_actions(observations)
        np.testing.assert_array_equal(actions, expected)
        extras.pop("action_prob"), found.pop("action_prob")
        assert_same(found, extras, rtol=1e-6, atol=1e-6)
        trainer.close()
    assert returns["MeanStdFilter"] >= 450.0
    assert returns["NoFilter"] < 100.0
