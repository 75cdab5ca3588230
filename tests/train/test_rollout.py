import time

import gymnasium as gym
import numpy as np
import pytest
from counting import (
    LAST_ACTION,
    LENGTH,
    STEP,
    TAG,
    AnyPolicy,
    CountingEnv,
    CountingVectorEnv,
    LookingBackPolicy,
    StepCountingPolicy,
)
from gymnasium.vector import SyncVectorEnv

from tfpolicy.callbacks import DefaultCallbacks
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.train.environments import Environments, make_vector_env
from tfpolicy.train.rollout import Rollout
from tfpolicy.view_requirement import ViewRequirement

NEXT_OBS = {"new_obs": ViewRequirement("obs", shift=1)}


def _rollout(env, policy=AnyPolicy, callbacks=None, **options):
    environments = Environments(env, seed=3)
    made = policy(env.single_observation_space, env.single_action_space, **options)
    return Rollout(made, environments, callbacks)


def _environment(kind):
    if kind == "sync":
        return make_vector_env("Counting-v0", 4)
    if kind == "async":
        return make_vector_env("Counting-v0", 4, "async")
    if kind.startswith("own"):
        return CountingVectorEnv(4, kind.split()[1])
    return SyncVectorEnv([CountingEnv] * 4, autoreset_mode=kind)


KINDS = ["sync", "async", "NextStep", "SameStep", "own NextStep", "own SameStep", "own Disabled"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_transition_crosses_a_border_and_the_final_observation_is_the_true_one(kind):
    env = _environment(kind)
    rollout = _rollout(env, views=NEXT_OBS)
    try:
        batches = [rollout.sample(steps) for steps in (1, 7, 25, 2, 40)]
    finally:
        env.close()
    assert sum(episode.length for episode in rollout.pop_ended()) > 0
    for batch in batches:
        obs, after = batch["obs"], batch["new_obs"]
        np.testing.assert_array_equal(after[:, TAG], obs[:, TAG])
        np.testing.assert_array_equal(after[:, STEP], obs[:, STEP] + 1)
        np.testing.assert_array_equal(after[:, LAST_ACTION], batch["actions"])
        np.testing.assert_array_equal(batch["t"], obs[:, STEP])
        np.testing.assert_array_equal(batch["rewards"], obs[:, STEP] + 1)
        np.testing.assert_array_equal(batch["dones"], after[:, STEP] == after[:, LENGTH])
        for fragment in batch.split_by_episode():
            assert len(set(fragment["obs"][:, TAG])) == 1
            assert len(set(fragment["unroll_id"])) == 1
            np.testing.assert_array_equal(fragment["obs"][1:], fragment["new_obs"][:-1])


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_every_episode_is_sampled_once(kind):
    env = _environment(kind)
    rollout = _rollout(env)
    try:
        batch = SampleBatch.concat_samples([rollout.sample(11) for _ in range(7)])
    finally:
        env.close()
    ended = {episode.episode_id: episode for episode in rollout.pop_ended()}
    for eps_id, episode in ended.items():
        rows = np.flatnonzero(batch["eps_id"] == eps_id)
        length = batch["obs"][rows[0], LENGTH]
        np.testing.assert_array_equal(batch["obs"][rows, STEP], np.arange(length))
        assert episode.length == length
        assert episode.total_reward == length * (length + 1) / 2
    # Where resets cost no step, nothing at all is lost.
    if "NextStep" not in kind:
        assert batch.count == 4 * 77
    assert len(set(batch["unroll_id"])) == len(
        set(zip(batch["unroll_id"], batch["eps_id"], strict=True))
    )


def test_only_what_the_policy_wants_is_collected():
    always = {"obs", "actions", "rewards", "terminateds", "truncateds", "eps_id", "unroll_id"}
    always |= {"agent_index", "t"}
    env = make_vector_env("Counting-v0", 2)
    assert set(_rollout(env).sample(3)) == always
    views = {**NEXT_OBS, "vf_preds": ViewRequirement(), "infos": ViewRequirement()}
    batch = _rollout(env, views=views).sample(3)
    assert set(batch) == always | {"new_obs", "vf_preds", "infos"}
    assert [info["step"] for info in batch["infos"]] == batch["rewards"].tolist()
    assert batch["vf_preds"].tolist() == [1, 2, 3, 1, 2, 3]


def test_nested_observations_keep_their_structure():
    env = make_vector_env("Nested-v0", 3)
    batch = _rollout(env, views=NEXT_OBS).sample(30)
    obs, after = batch["obs"], batch["new_obs"]
    assert obs["where"]["step"].dtype == np.int64
    np.testing.assert_array_equal(after["where"]["step"], obs["where"]["step"] + 1)
    np.testing.assert_array_equal(after["where"]["tag"], obs["where"]["tag"])
    np.testing.assert_array_equal(after["rest"][1], batch["actions"])
    np.testing.assert_array_equal(batch["dones"], after["where"]["step"] == after["rest"][0])


@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_states_begin_anew_with_every_episode(kind):
    env = _environment(kind)
    views = {"state_out_0": ViewRequirement()}
    rollout = _rollout(env, StepCountingPolicy, views=views)
    try:
        batch = rollout.sample(50)
    finally:
        env.close()
    np.testing.assert_array_equal(batch["state_in_0"][:, 0], batch["obs"][:, STEP])
    np.testing.assert_array_equal(batch["state_out_0"], batch["state_in_0"] + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_views_hold_what_the_policy_saw_and_nothing_of_another_episode(kind):
    env = _environment(kind)
    rollout = _rollout(env, LookingBackPolicy)
    try:
        first, second = rollout.sample(20), rollout.sample(20)
    finally:
        env.close()
    assert set(rollout.policy.inputs[0]) == {"prev_actions", "frames"}
    for batch in (first, second):
        begun = batch["t"] > 0
        last_action = batch["obs"][:, LAST_ACTION]
        np.testing.assert_array_equal(batch["prev_actions"], np.where(begun, last_action, 0))
        np.testing.assert_array_equal(batch["prev_rewards"], batch["t"])
        np.testing.assert_array_equal(batch["frames"][:, 2], batch["obs"])
        np.testing.assert_array_equal(batch["frames"][:, 1, TAG], begun * batch["obs"][:, TAG])
        np.testing.assert_array_equal(
            batch["frames"][:, 0, STEP], np.maximum(batch["obs"][:, STEP] - 2, 0)
        )
        for fragment in batch.split_by_episode():
            # A positive shift ends in zeros (case d2).
            expected = [*fragment["actions"][1:], 0]
            np.testing.assert_array_equal(fragment["next_actions"], expected)


class BoxPolicy(AnyPolicy):
    """Always acts 2.0, beyond what a normalized action may be."""

    def compute_actions(self, obs_batch, state_batches=None, **kwargs):
        return np.full((len(obs_batch), 1), 2.0, np.float32), [], {}


@pytest.mark.parametrize(
    "config, told",
    [
        ({"normalize_actions": True}, 2.0),
        ({"clip_actions": True}, 2.0),
        ({"normalize_actions": False, "clip_actions": True}, 2.0),
        ({"normalize_actions": True, "clip_actions": True}, 2.0),
    ],
)
def test_the_batch_keeps_the_policys_action_and_the_environment_gets_a_legal_one(config, told):
    # Case e7: what is stored is what the log-prob belongs to.
    env = make_vector_env("Pendulum-v1", 2)
    rollout = _rollout(env, BoxPolicy, config=config)
    acted = []
    step = env.step
    env.step = lambda actions: acted.append(actions) or step(actions)
    batch = rollout.sample(2)
    assert batch["actions"].tolist() == [[2.0]] * 4
    np.testing.assert_array_equal(acted, np.full((2, 2, 1), told, np.float32))


def test_normalized_actions_are_unsquashed():
    env = make_vector_env("Pendulum-v1", 1)

    class Half(AnyPolicy):
        def compute_actions(self, obs_batch, state_batches=None, **kwargs):
            return np.full((1, 1), 0.5, np.float32), [], {}

    acted = []
    step = env.step
    env.step = lambda actions: acted.append(actions) or step(actions)
    _rollout(env, Half, config={"normalize_actions": True}).sample(1)
    _rollout(env, Half, config={}).sample(1)
    assert [float(actions[0, 0]) for actions in acted] == [1.0, 0.5]


def test_a_policy_for_another_environment_is_refused():
    env = make_vector_env("CartPole-v1", 1)
    policy = AnyPolicy(CountingEnv.observation_space, env.single_action_space)
    with pytest.raises(ValueError, match="`observation_space` is Box.*the environment's is Box"):
        Rollout(policy, Environments(env, 0))


class Diary(DefaultCallbacks):
    def __init__(self):
        self.events = []

    def on_episode_start(self, *, episode, env_index, **kwargs):
        episode.user_data["steps"] = 0
        self.events.append(("start", env_index))

    def on_episode_step(self, *, episode, env_index, **kwargs):
        episode.user_data["steps"] += 1
        assert episode.length == episode.user_data["steps"]

    def on_episode_end(self, *, episode, env_index, **kwargs):
        assert episode.length == episode.user_data["steps"]
        self.events.append(("end", env_index))

    def on_postprocess_trajectory(
        self, *, policy, episode, postprocessed_batch, original_batch, **kwargs
    ):
        assert "extra" in postprocessed_batch and "extra" not in original_batch
        postprocessed_batch["extra"] = np.full(original_batch.count, episode.episode_id)


class PostprocessingPolicy(AnyPolicy):
    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        sample_batch["extra"] = np.zeros(sample_batch.count, np.int64)
        return sample_batch


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_follow_episodes_and_may_change_fragments(kind):
    env, diary = _environment(kind), Diary()
    rollout = _rollout(env, PostprocessingPolicy, diary)
    try:
        batch = rollout.sample(30)
    finally:
        env.close()
    np.testing.assert_array_equal(batch["extra"], batch["eps_id"])
    for i in range(4):
        events = [event for event, env_index in diary.events if env_index == i]
        assert len(events) > 4
        assert events == ["start", "end"] * (len(events) // 2) + ["start"] * (len(events) % 2)


def _same_batch(left, right):
    assert set(left) == set(right)
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@pytest.mark.parametrize("policy", [AnyPolicy, StepCountingPolicy, LookingBackPolicy])
@pytest.mark.parametrize("steps", [0, 1, 29])
def test_a_restored_rollout_goes_on_bit_for_bit(policy, steps):
    going = _rollout(make_vector_env("Counting-v0", 3), policy)
    for _ in range(steps):
        going.sample(3)
    going.pop_ended()
    state, policy_state = going.get_state(), going.policy.get_state()
    resumed = _rollout(make_vector_env("Counting-v0", 3), policy)
    resumed.sample(5)
    resumed.policy.set_state(policy_state)
    assert resumed.set_state(state)
    for _ in range(4):
        _same_batch(going.sample(7), resumed.sample(7))
    assert going.pop_ended() == resumed.pop_ended()


def test_a_resumed_rollout_can_be_resumed_again():
    going, resumed = (_rollout(make_vector_env("CartPole-v1", 3)) for _ in range(2))
    for _ in range(3):
        going.sample(4)
        resumed.set_state(going.get_state())
        resumed.policy.set_state(going.policy.get_state())
        going, resumed = resumed, going
    _same_batch(going.sample(4), resumed.sample(4))


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: CountingVectorEnv(2, "NextStep"), "cannot be seeded episode by episode"),
        (
            lambda: make_vector_env("Counting-v0", 2, env_config={"function_of_seed": False}),
            "no function of seed and actions",
        ),
    ],
)
def test_environments_that_cannot_be_brought_back_start_afresh_and_it_is_said(make, reason):
    going, resumed = _rollout(make()), _rollout(make())
    last = going.sample(10)
    resumed.policy.set_state(going.policy.get_state())
    with pytest.warns(UserWarning, match=f"start afresh.*{reason}"):
        assert not resumed.set_state(going.get_state())
    batch = resumed.sample(5)
    assert set(batch["t"][batch["eps_id"] == batch["eps_id"].min()]) >= {0}
    assert batch["eps_id"].min() > last["eps_id"].max()


def test_actions_are_kept_for_running_episodes_only():
    rollout = _rollout(make_vector_env("Counting-v0", 3))
    rollout.sample(500)
    assert (rollout.get_state()["actions"]["lengths"] < 8).all()
    assert (rollout.get_state()["actions"]["lengths"] == rollout.get_state()["episodes"]["t"]).all()


def test_steps_that_are_all_resets_give_an_empty_batch():
    rollout = _rollout(CountingVectorEnv(1, "NextStep"))
    counts = [rollout.sample(1).count for _ in range(30)]
    assert len(rollout.pop_ended()) > 2
    assert set(counts) == {0, 1}


@pytest.mark.slow
def test_sampling_is_more_than_half_as_fast_as_random_stepping():
    env = make_vector_env("CartPole-v1", 8)
    rollout = _rollout(env)
    plain = make_vector_env("CartPole-v1", 8)
    environments = Environments(plain, 0)
    environments.reset()

    def timed(run):
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    def step_randomly():
        for _ in range(256):
            environments.step(plain.action_space.sample())

    ratios = [timed(step_randomly) / timed(lambda: rollout.sample(256)) for _ in range(15)]
    assert np.median(ratios) > 0.5


def test_gymnasium_environments_that_are_not_registered_can_be_used():
    env = SyncVectorEnv([lambda: gym.wrappers.TimeLimit(CountingEnv(), 2)] * 2)
    batch = _rollout(env, views=NEXT_OBS).sample(9)
    np.testing.assert_array_equal(batch["truncateds"], batch["new_obs"][:, STEP] == 2)
