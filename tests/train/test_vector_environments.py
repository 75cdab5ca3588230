import functools
import sys

import counting  # noqa: F401  (registers the environments)
import gymnasium as gym
import numpy as np
import pytest
from counting import LENGTH, STEP, TAG, CountingEnv, CountingVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tfpolicy.train.environments import Environments, episode_seed, make_vector_env


def _actions(step, num_envs):
    return (np.arange(num_envs) + step) % 5


def _walk(environments, steps):
    """Observations of `steps` steps, the first of each environment included."""
    seen = [np.array(environments.reset())]
    for step in range(steps):
        seen.append(np.array(environments.step(_actions(step, environments.num_envs)).obs))
    return np.stack(seen)


@pytest.mark.parametrize("vectorization, cls", [("sync", SyncVectorEnv), ("async", AsyncVectorEnv)])
def test_sub_environments_are_never_reset_behind_our_back(vectorization, cls):
    env = make_vector_env("Counting-v0", 2, vectorization)
    try:
        assert isinstance(env.unwrapped, cls)
        assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        assert Environments(env, seed=0).replayable
    finally:
        env.close()


def test_the_environments_own_vector_entry_point_is_used_and_configured():
    env = make_vector_env("Counting-v0", 3, "vector_entry_point", {"mode": "SameStep"})
    assert isinstance(env.unwrapped, CountingVectorEnv)
    environments = Environments(env, seed=0)
    assert environments.autoreset_mode is AutoresetMode.SAME_STEP
    assert not environments.replayable


@pytest.mark.parametrize(
    "num_envs, vectorization, message",
    [
        (2, "parallel", "`vectorization` must be one of sync, async, vector_entry_point"),
        (0, "sync", "`num_envs` must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(num_envs, vectorization, message):
    with pytest.raises(ValueError, match=message):
        make_vector_env("Counting-v0", num_envs, vectorization)


def test_envpool_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(
        ImportError, match=r"needs the package envpool.*pip install tfpolicy\[envpool"
    ):
        make_vector_env("CartPole-v1", 2, "envpool")


def test_the_name_that_gymnasium_would_take_for_its_own_environment_is_refused():
    with pytest.raises(ValueError, match="'CartPole-v1' with vectorization 'envpool'"):
        make_vector_env("envpool:CartPole-v1", 2)


def test_a_vector_environment_must_say_how_it_resets():
    env = CountingVectorEnv(2)
    env.metadata = {}
    with pytest.raises(ValueError, match="autoreset_mode.*got None"):
        Environments(env, seed=0)


def test_episode_seeds_differ_by_run_environment_and_number():
    seeds = {episode_seed(r, i, e) for r in range(5) for i in range(5) for e in range(5)}
    assert len(seeds) == 125
    assert episode_seed(1, 2, 3) == episode_seed(1, 2, 3)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_episode_is_a_function_of_its_seed_and_its_actions(vectorization):
    env = make_vector_env("Counting-v0", 3, vectorization)
    try:
        environments = Environments(env, seed=7)
        seen = _walk(environments, 40)
    finally:
        env.close()
    for i in range(3):
        starts = seen[seen[:, i, STEP] == 0, i]
        assert len(starts) == environments.episodes[i] + 1
        for number, start in enumerate(starts):
            single = CountingEnv()
            obs, _ = single.reset(seed=episode_seed(7, i, number))
            np.testing.assert_array_equal(obs, start)


@pytest.mark.parametrize("mode", ["Disabled", "NextStep", "SameStep"])
@pytest.mark.parametrize("make", [CountingVectorEnv, None], ids=["own", "gymnasium"])
def test_every_autoreset_mode_tells_starts_ends_and_final_observations(mode, make):
    env = make(4, mode) if make else SyncVectorEnv([CountingEnv] * 4, autoreset_mode=mode)
    environments = Environments(env, seed=3)
    before = np.array(environments.reset())
    ended_before = np.zeros(4, bool)
    for step in range(60):
        done = environments.step(_actions(step, 4))
        obs = np.array(done.obs)
        valid = np.ones(4, bool) if done.valid is None else done.valid
        started = np.zeros(4, bool) if done.started is None else done.started
        ended = done.terminateds | done.truncateds
        np.testing.assert_array_equal(ended, valid & (before[:, STEP] + 1 == before[:, LENGTH]))
        np.testing.assert_array_equal(started, obs[:, STEP] == 0)
        np.testing.assert_array_equal(valid, ~ended_before if mode == "NextStep" else True)
        followed = obs.copy()
        if done.final is not None:
            followed[done.final.env_indices] = done.final.leaves[0]
        np.testing.assert_array_equal(followed[valid, TAG], before[valid, TAG])
        np.testing.assert_array_equal(followed[valid, STEP], before[valid, STEP] + 1)
        before, ended_before = obs, ended


def test_same_step_resets_need_the_final_observation():
    env = CountingVectorEnv(1, "SameStep")
    inner = env.step
    env.step = lambda actions: (*inner(actions)[:4], {})
    environments = Environments(env, seed=0)
    environments.reset()
    with pytest.raises(ValueError, match=r"infos\['final_obs'\]"):
        for step in range(10):
            environments.step(_actions(step, 1))


def test_infos_are_those_of_the_transition_in_every_mode():
    for mode in ("Disabled", "NextStep", "SameStep"):
        environments = Environments(SyncVectorEnv([CountingEnv] * 3, autoreset_mode=mode), seed=3)
        before = np.array(environments.reset())
        for step in range(20):
            done = environments.step(_actions(step, 3))
            for i, info in enumerate(done.info_rows()):
                reset = done.valid is not None and not done.valid[i]
                assert info == ({"first": True} if reset else {"step": before[i, STEP] + 1})
            before = np.array(done.obs)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_replay_brings_back_running_episodes_of_different_lengths(vectorization):
    env = make_vector_env("CartPole-v1", 3, vectorization)
    try:
        environments = Environments(env, seed=5)
        environments.reset()
        rng = np.random.default_rng(0)
        actions = [[] for _ in range(3)]
        for _ in range(37):
            chosen = rng.integers(2, size=3)
            done = environments.step(chosen)
            for i in range(3):
                actions[i].append(chosen[i])
                if done.started is not None and done.started[i]:
                    actions[i].clear()
        expected, numbers = np.array(done.obs), environments.episodes.copy()
        assert len({len(a) for a in actions}) == 3
        fresh = Environments(make_vector_env("CartPole-v1", 3), seed=5)
        fresh.episodes[:] = numbers
        replayed = fresh.replay([[np.array(a, np.int64)] for a in actions])
        np.testing.assert_array_equal(replayed, expected)
        np.testing.assert_array_equal(fresh.episodes, numbers)
        # What follows is the same, too: the ends of these episodes and the episodes after them.
        for _ in range(60):
            chosen = rng.integers(2, size=3)
            np.testing.assert_array_equal(environments.step(chosen).obs, fresh.step(chosen).obs)
    finally:
        env.close()


class StrictEnv(gym.Env):
    """Says which of its actions are legal, one in three, and raises on the others."""

    observation_space = gym.spaces.Box(0, 2**31, (2,), np.int64)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action):
        if action != self._legal:
            raise ValueError(f"expected {self._legal}, got {action}")
        return self._draw(), 1.0, self.np_random.random() < 0.1, False, {}

    def _draw(self):
        self._legal = int(self.np_random.integers(3))
        return np.array([self.np_random.integers(2**20), self._legal])


@pytest.mark.parametrize("make", [SyncVectorEnv, AsyncVectorEnv])
def test_replay_takes_no_action_that_is_not_legal(make):
    env = make([StrictEnv] * 4, autoreset_mode="Disabled")
    fresh = Environments(SyncVectorEnv([StrictEnv] * 4, autoreset_mode="Disabled"), seed=2)
    try:
        environments = Environments(env, seed=2)
        obs = np.array(environments.reset())
        actions = [[] for _ in range(4)]
        lengths = set()
        for _ in range(60):
            done = environments.step(obs[:, 1])
            for i in range(4):
                actions[i].append(obs[i, 1])
                if done.started is not None and done.started[i]:
                    actions[i].clear()
            obs = np.array(done.obs)
            fresh.episodes[:] = environments.episodes
            replayed = fresh.replay([[np.array(a, np.int64)] for a in actions])
            np.testing.assert_array_equal(replayed, obs)
            lengths.add(tuple(len(a) > 0 for a in actions))
        # Some that had begun and some that had not, more than once.
        assert len(lengths) > 3
    finally:
        env.close()


def test_replay_aligns_sub_environments_that_differ():
    short = functools.partial(gym.wrappers.TimeLimit, CountingEnv(), max_episode_steps=3)
    environments = Environments(SyncVectorEnv([CountingEnv, short], autoreset_mode="Disabled"), 3)
    environments.reset()
    # While the second waits, it cannot play as long an episode as the first does.
    actions = [[np.zeros(7, np.int64)], [np.zeros(2, np.int64)]]
    while (obs := environments.replay(actions)) is None or obs[0, LENGTH] == 7:
        environments.episodes += 1
    np.testing.assert_array_equal(obs[:, STEP], [7, 2])
    for i in range(2):
        start, _ = CountingEnv().reset(seed=episode_seed(3, i, int(environments.episodes[i])))
        assert obs[i, TAG] == start[TAG]


def test_replay_before_the_first_step_is_a_reset():
    environments = Environments(make_vector_env("CartPole-v1", 2), seed=1)
    expected = np.array(environments.reset())
    nothing = [[np.zeros(0, np.int64)]] * 2
    np.testing.assert_array_equal(environments.replay(nothing), expected)


def test_replay_says_when_an_episode_ends_too_early():
    environments = Environments(make_vector_env("Counting-v0", 2), seed=1)
    environments.reset()
    assert environments.replay([[np.zeros(50, np.int64)]] * 2) is None
