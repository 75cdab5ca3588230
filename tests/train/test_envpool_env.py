import csv
import io
import re

import gymnasium as gym
import numpy as np
import pytest
from counting import AnyPolicy

from tfpolicy.policies import policy_class
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.train.environments import Environments, episode_seed, make_vector_env
from tfpolicy.train.evaluation import evaluate
from tfpolicy.train.loop import Trainer
from tfpolicy.train.rollout import Rollout
from tfpolicy.train.run import Run, RunSpec, Stop
from tfpolicy.view_requirement import ViewRequirement

envpool = pytest.importorskip("envpool")

TINY = {"train_batch_size": 32, "sgd_minibatch_size": 16, "num_sgd_iter": 1, "seed": 1}


def _env(env_id="CartPole-v1", num_envs=3, **env_config):
    return make_vector_env(env_id, num_envs, "envpool", env_config)


def _actions(num_steps, num_envs=3):
    return np.random.default_rng(0).integers(2, size=(num_steps, num_envs))


def _walk(env, seed, num_steps=60):
    seen = [env.reset(seed=seed)[0]]
    seen += [env.step(actions)[0] for actions in _actions(num_steps, env.num_envs)]
    return np.stack(seen)


def test_a_seed_fixes_the_episodes_of_each_sub_environment():
    env = _env()
    walked = _walk(env, 7)
    np.testing.assert_array_equal(_walk(env, 7), walked)
    assert not np.array_equal(_walk(env, 8), walked)
    np.testing.assert_array_equal(_walk(env, [7, 8, 9]), walked)
    # Each from its own seed on, whoever is beside it.
    np.testing.assert_array_equal(_env(num_envs=1).reset(seed=8)[0], walked[0, 1:2])


def test_it_steps_as_the_pool_itself_does():
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=3, seed=[7, 8, 9])
    steps = [pool.reset()[0]] + [pool.step(actions)[0] for actions in _actions(60)]
    np.testing.assert_array_equal(_walk(_env(), 7), np.stack(steps))


def test_a_run_seed_beyond_the_range_of_envpool_is_taken():
    first = _env().reset(seed=2**32 - 1)[0]
    assert not np.array_equal(first[0], first[1])


def test_without_a_seed_episodes_are_drawn_and_then_go_on():
    env = _env()
    first = env.reset()[0]
    assert not np.array_equal(first, env.reset()[0])
    assert not np.array_equal(first, _env().reset()[0])


def test_the_step_after_an_end_is_a_reset_and_no_transition():
    environments = Environments(_env(max_episode_steps=4), seed=3)
    assert not environments.replayable
    environments.reset()
    for t in range(10):
        before = environments.episodes.copy()
        step = environments.step(np.array([0, 1, 0]))
        # Cart-pole falls after 8 steps at the earliest: all are cut off, none has terminated.
        assert not step.terminateds.any()
        np.testing.assert_array_equal(step.truncateds, t % 5 == 3)
        if t % 5 == 4:
            assert not step.valid.any() and step.started.all()
            np.testing.assert_array_equal(environments.episodes, before + 1)
            assert (np.abs(step.obs) <= 0.05).all()
        else:
            assert step.valid is None or step.valid.all()


def test_a_fall_is_a_termination_and_no_truncation():
    environments = Environments(_env(), seed=3)
    environments.reset()
    ends = [environments.step(np.ones(3, np.int64)) for _ in range(30)]
    assert any(step.terminateds.any() for step in ends)
    assert not any(step.truncateds.any() for step in ends)


def test_a_rollout_gives_the_transitions_and_the_last_observations():
    env, seed, steps = _env(max_episode_steps=9), 5, 40
    views = {SampleBatch.NEXT_OBS: ViewRequirement(SampleBatch.OBS, shift=1)}
    policy = AnyPolicy(env.single_observation_space, env.single_action_space, views=views)
    batch = Rollout(policy, Environments(env, seed)).sample(steps)
    pool = _env(max_episode_steps=9)
    obs, _ = pool.reset(seed=episode_seed(seed, 3, 0))
    rows, ended = [[], [], []], np.zeros(3, bool)
    for t in range(steps):
        actions = np.arange(t + 1, t + 4) % 2
        after, rewards, terminateds, truncateds, _ = pool.step(actions)
        for i in np.flatnonzero(~ended):
            rows[i].append((obs[i], actions[i], rewards[i], terminateds[i], truncateds[i]))
            rows[i][-1] += (after[i],)
        obs, ended = after, terminateds | truncateds
    names = ("obs", "actions", "rewards", "terminateds", "truncateds", "new_obs")
    for name, column in zip(names, zip(*(rows[0] + rows[1] + rows[2]), strict=True), strict=True):
        np.testing.assert_array_equal(batch[name], np.stack(column), err_msg=name)
    assert batch.count < steps * 3 and batch["truncateds"].any()
    assert (batch["t"][batch["truncateds"]] == 8).all()


@pytest.mark.parametrize(
    "env_id", ["Pendulum-v1", "CartpoleBalance-v1", "Taxi-v3", "Blackjack-v1", "Catch-v0"]
)
def test_a_policy_learns_in_the_spaces_that_envpool_has(env_id):
    env = _env(env_id, 2)
    spaces = env.single_observation_space, env.single_action_space
    policy = policy_class("ppo")(*spaces, {**TINY, "model": {"fcnet_hiddens": [4]}})
    trainer = Trainer(policy, env, seed=1)
    try:
        assert np.isfinite(trainer.train_iteration()["learner_stats"]["total_loss"])
    finally:
        trainer.close()


def _returns(run):
    """Trains; the mean returns and lengths of episodes after each iteration."""
    try:
        run.train(checkpoint_freq=1, stream=io.StringIO())
    finally:
        run.close()
    with (run.directory / "progress.csv").open(newline="") as file:
        return [
            (row["timesteps_total"], row["episodes_total"], row["episode_return_mean"])
            for row in csv.DictReader(file)
        ]


def test_a_run_is_reproduced_and_goes_on_with_new_episodes(tmp_path):
    config = {**TINY, "jit_compile": False, "model": {"fcnet_hiddens": [4]}}
    spec = RunSpec("CartPole-v1", num_envs=2, vectorization="envpool", seed=4, config=config)
    first = _returns(Run.start(spec, tmp_path / "first", Stop(160)))
    assert first == _returns(Run.start(spec, tmp_path / "second", Stop(160)))
    with pytest.warns(UserWarning, match="start afresh, running episodes are given up: their vec"):
        run = Run.resume(tmp_path / "first", timesteps=320)
    # Not those with which the run began.
    assert run.trainer._environments.episodes.sum() > 0
    began = _env(num_envs=2).reset(seed=episode_seed(4, 2, 0))[0]
    assert not np.array_equal(run.trainer._rollout._obs, began)
    with run.trainer.policy.__class__.from_checkpoint(
        sorted((tmp_path / "first" / "checkpoints").iterdir())[-1] / "policy"
    ) as policy:
        # What learned in envpool acts in gymnasium.
        assert evaluate(policy, gym.make("CartPole-v1"), episodes=1).lengths[0] >= 8
    assert _returns(run)[: len(first)] == first
    assert int(_returns(Run.resume(tmp_path / "first", timesteps=480))[-1][0]) >= 480


def test_bounds_that_are_none_are_infinite():
    env = _env("CartpoleBalance-v1")
    free = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    assert env.single_observation_space["velocity"] == free
    assert env.reset(seed=1)[0] in env.observation_space


def test_spaces_of_cart_pole_are_those_of_gymnasium():
    env, single = _env(), gym.make("CartPole-v1")
    assert env.single_observation_space == single.observation_space
    assert env.single_action_space == single.action_space
    assert env.observation_space.shape == (3, 4)


@pytest.mark.parametrize(
    "env_id, env_config, error, message",
    [
        ("CartPol-v1", {}, gym.error.NameNotFound, "no environment 'CartPol-v1'.*CartPole-v1"),
        ("Go9x9-v1", {}, ValueError, "must have one player, got 2"),
        ("CartPole-v1", {"gravity": 9.8}, TypeError, "does not take `env_config` {'gravity': 9.8}"),
        ("CartPole-v1", {"seed": 1, "batch_size": 2}, ValueError, "not have batch_size, seed for"),
    ],
)
def test_what_envpool_does_not_have_is_named(env_id, env_config, error, message):
    with pytest.raises(error, match=message):
        _env(env_id, **env_config)


def test_reset_has_no_options_and_comes_before_a_step():
    env = _env()
    with pytest.raises(gym.error.ResetNeeded, match="`reset` before the first `step`"):
        env.step(np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="`options` must be empty for envpool, got {'reset_mask'"):
        env.reset(options={"reset_mask": np.ones(3, bool)})


def test_an_envpool_whose_observations_are_garbage_with_this_numpy_is_refused(monkeypatch):
    monkeypatch.setattr(envpool, "__version__", "0.8.4")
    with pytest.raises(ImportError, match=re.escape("envpool must be 1.2 or later, got 0.8.4")):
        _env()
