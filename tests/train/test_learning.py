"""Learning runs: too long for every test run, `pytest -m slow` does them."""

import gymnasium as gym
import pytest

from tfpolicy.train.run import RunSpec, Stop

NETWORK = {"fcnet_hiddens": [64, 64]}


class PositionsOnly(gym.ObservationWrapper):
    """Cart-pole that does not show how fast anything moves."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1").unwrapped)
        self.observation_space = gym.spaces.Box(-5.0, 5.0, (2,))

    def observation(self, observation):
        return observation[::2]


gym.register("PositionsOnly-v0", PositionsOnly, max_episode_steps=500)


def _train(spec, stop):
    """Trains until it is time to stop; returns the mean return of the last 100 episodes."""
    trainer = spec.make_trainer()
    try:
        while stop.reason(trainer) is None:
            trainer.train_iteration()
        return trainer.statistics.summary()["episode_return_mean"]
    finally:
        trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["a2c", "pg"])
def test_one_step_algorithms_learn_to_balance(algo):
    spec = RunSpec("CartPole-v1", algo=algo, seed=0, config={"model": NETWORK})
    assert _train(spec, Stop(100_000, 150.0)) >= 150.0


@pytest.mark.slow
@pytest.mark.parametrize("vectorization", ["sync", "async", "vector_entry_point"])
def test_ppo_solves_cart_pole_however_environments_are_vectorized(vectorization):
    config = {"model": NETWORK, "rollout_fragment_length": 256}
    spec = RunSpec("CartPole-v1", vectorization=vectorization, seed=0, config=config)
    assert _train(spec, Stop(150_000, 475.0)) >= 475.0


@pytest.mark.slow
def test_ppo_swings_up_a_pendulum_with_normalized_actions():
    config = {"model": NETWORK, "lr": 1e-3, "gamma": 0.9}
    spec = RunSpec("Pendulum-v1", seed=0, config=config)
    assert _train(spec, Stop(400_000, -250.0)) >= -250.0


@pytest.mark.slow
@pytest.mark.parametrize("num_frames, solves", [(3, True), (1, False)])
def test_only_who_sees_several_frames_balances_without_velocities(num_frames, solves):
    model = {**NETWORK, "num_framestacks": num_frames}
    config = {"model": model, "rollout_fragment_length": 256}
    mean = _train(RunSpec("PositionsOnly-v0", seed=0, config=config), Stop(150_000, 400.0))
    assert (mean >= 400.0) if solves else (mean < 150.0)
