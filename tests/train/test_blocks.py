"""Blocks of steps are postprocessed at once, and it comes to the same as fragment by fragment."""

import counting  # Registers the environments.
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tfpolicy.policies import policy_class
from tfpolicy.train.environments import Environments
from tfpolicy.train.rollout import Rollout
from tfpolicy.view_requirement import ViewRequirement

PPO = policy_class("ppo")
LSTM = {"use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 4}
CASES = {
    "ppo": ("ppo", {}, {}),
    "ppo without gae": ("ppo", {"use_gae": False}, {}),
    "ppo without critic": ("ppo", {"use_critic": False}, {}),
    "ppo with one network": ("ppo", {}, {"vf_share_layers": True}),
    "ppo with a filter": ("ppo", {"observation_filter": "MeanStdFilter"}, {}),
    "a2c": ("a2c", {}, {}),
    "pg": ("pg", {}, {}),
    "lstm that sees its last action and reward": (
        "ppo",
        {},
        {**LSTM, "lstm_use_prev_action": True, "lstm_use_prev_reward": True},
    ),
    "attention over a window": (
        "ppo",
        {},
        {"use_attention": True, "attention_dim": 4, "attention_head_dim": 2, "max_seq_len": 4},
    ),
}


def short_cart_pole():
    """Terminates after some ten steps, or is truncated after twenty."""
    return gym.make("CartPole-v1", max_episode_steps=20)


def sampled(kind, reset_mode, *, by_fragments):
    """Two samples of a policy, and how often it was asked for fragments."""
    algo, config, model = CASES[kind]
    base = policy_class(algo)
    asked = []

    class ByFragments(base):
        def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
            asked.append(sample_batch.count)
            return super().postprocess_trajectory(sample_batch, other_agent_batches, episode)

    env = SyncVectorEnv([short_cart_pole] * 3, autoreset_mode=reset_mode)
    model = {"fcnet_hiddens": [4], **model}
    cls = ByFragments if by_fragments else base
    with cls(
        env.single_observation_space, env.single_action_space, {"seed": 0, "model": model, **config}
    ) as policy:
        asked.clear()
        rollout = Rollout(policy, Environments(env, 0))
        batches = [rollout.sample(60), rollout.sample(9)]
    env.close()
    return batches, asked


@pytest.mark.parametrize("reset_mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("kind", CASES)
def test_a_block_has_the_advantages_of_its_fragments(kind, reset_mode):
    blocks, _ = sampled(kind, reset_mode, by_fragments=False)
    fragments, asked = sampled(kind, reset_mode, by_fragments=True)
    # Both kinds of ends lie within, and the ends of the blocks lie within episodes.
    assert len(asked) > 2 * 3
    assert blocks[0]["terminateds"].any() and blocks[0]["truncateds"].any()
    for block, by_fragments in zip(blocks, fragments, strict=True):
        assert set(block) == set(by_fragments)
        for name in block:
            np.testing.assert_allclose(
                block[name], by_fragments[name], rtol=1e-6, atol=1e-6, err_msg=name
            )
        if kind == "ppo":
            assert block["advantages"].dtype == by_fragments["advantages"].dtype == np.float32


@pytest.fixture
def watched():
    """Makes a rollout of 3 cart-poles, and lists the rows of its calls for values and actions."""
    env = SyncVectorEnv([short_cart_pole] * 3, autoreset_mode=AutoresetMode.DISABLED)
    policies = []

    def watch(cls=PPO, **model):
        spaces = env.single_observation_space, env.single_action_space
        policy = cls(*spaces, {"seed": 0, "model": {"fcnet_hiddens": [4], **model}})
        policies.append(policy)
        compute_values, compute_actions = policy.compute_values, policy.compute_actions
        asked, fetched = [], []

        def watched_values(columns):
            asked.append(len(columns["obs"]))
            return compute_values(columns)

        def watched_actions(*args, extra_fetches, **kwargs):
            fetched.append(set(extra_fetches))
            return compute_actions(*args, extra_fetches=extra_fetches, **kwargs)

        policy.compute_values, policy.compute_actions = watched_values, watched_actions
        return Rollout(policy, Environments(env, 0)), asked, fetched

    yield watch
    for policy in policies:
        policy.close()
    env.close()


def test_a_value_network_of_its_own_is_run_for_the_whole_block(watched):
    rollout, asked, fetched = watched()
    batch = rollout.sample(400)
    assert not any("vf_preds" in names for names in fetched)
    # A few hundred rows a call, and what lies beyond ends in one.
    whole, beyond = asked[:-1], asked[-1]
    assert sum(whole) == 1200 and len(whole) == 3
    assert beyond < 400
    expected = rollout.policy.compute_actions(batch["obs"], extra_fetches=["vf_preds"])[2]
    np.testing.assert_allclose(batch["vf_preds"], expected["vf_preds"], atol=1e-6)


@pytest.mark.parametrize("model", [{"vf_share_layers": True}, LSTM])
def test_a_value_network_that_acting_needs_too_is_run_while_acting(watched, model):
    rollout, asked, fetched = watched(**model)
    assert not rollout.policy.values_apart
    rollout.sample(40)
    assert len(asked) == 1
    assert all("vf_preds" in names for names in fetched)


class NotANumberAtTheEnd(gym.Wrapper):
    """Shows what no network can value where an episode has ended."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs * np.float32(np.nan if terminated else 1), reward, terminated, truncated, info


def test_where_a_step_is_a_reset_nothing_is_valued_that_is_not_acted_on():
    def make():
        return NotANumberAtTheEnd(gym.make("CartPole-v1"))

    env = SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    with PPO(env.single_observation_space, env.single_action_space, {"seed": 0}) as policy:
        batch = Rollout(policy, Environments(env, 0)).sample(60)
        assert batch["terminateds"].any() and np.isfinite(batch["advantages"]).all()
        assert np.isfinite(policy.learn_on_batch(batch)["learner_stats"]["total_loss"])
    env.close()


class LooksBackAtValues(PPO):
    """Learns with the value of the step before."""

    def trajectory_views(self):
        last = ViewRequirement("vf_preds", shift=-1, used_for_compute_actions=False)
        return {**super().trajectory_views(), "last_vf": last}

    def loss(self, model, dist_class, train_batch):
        output = super().loss(model, dist_class, train_batch)
        return output._replace(stats={**output.stats, "last_vf": train_batch["last_vf"]})


def test_a_view_of_values_sees_those_of_the_steps_before(watched):
    rollout, _, fetched = watched(LooksBackAtValues)
    batch = rollout.sample(40)
    assert all("vf_preds" in names for names in fetched)
    for fragment in batch.split_by_episode():
        first = fragment["t"] == 0
        before = np.roll(fragment["vf_preds"], 1)
        np.testing.assert_array_equal(fragment["last_vf"][1:], before[1:])
        assert not fragment["last_vf"][first].any() and fragment["vf_preds"].all()


def test_who_postprocesses_fragments_is_given_the_values_of_acting(watched):
    class Own(PPO):
        def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
            assert "vf_preds" in sample_batch
            return super().postprocess_trajectory(sample_batch)

    class OwnOfBlocks(PPO):
        def postprocess_block(self, columns):
            assert "vf_preds" in columns
            return super().postprocess_block(columns)

    for cls in (Own, OwnOfBlocks):
        rollout, _, fetched = watched(cls)
        rollout.sample(40)
        assert all("vf_preds" in names for names in fetched)


def test_a_view_of_what_comes_later_is_made_fragment_by_fragment():
    env = gym.make_vec("Counting-v0", 4, vectorization_mode="sync")
    policy = counting.LookingBackPolicy(env.single_observation_space, env.single_action_space)
    policy.postprocess_block = lambda columns: pytest.fail("A late view needs fragments.")
    batch = Rollout(policy, Environments(env, 0)).sample(20)
    env.close()
    assert "next_actions" in batch
