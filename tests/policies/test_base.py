"""Advantages in the real postprocessing of an actor-critic, whose critic is known."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from policy_reference import MODEL, OBS, gae, known_weights, network

from tfpolicy.models import Model, ModelOutput
from tfpolicy.policies.a2c import A2CConfig, A2CPolicy
from tfpolicy.policies.ppo import PPOConfig, PPOPolicy
from tfpolicy.sample_batch import SampleBatch, concat_samples
from tfpolicy.view_requirement import ViewRequirement

TWO = gym.spaces.Discrete(2)
GAMMA, LAMBDA = 0.9, 0.8
CONFIG = {"seed": 0, "model": MODEL, "train_batch_size": 8, "gamma": GAMMA, "lambda": LAMBDA}
PPO_CONFIG = {**CONFIG, "sgd_minibatch_size": 8}


class Remembering(Model):
    """V(s) counts, with powers of ten, what the network is shown: one look tells all of it.

    It reads the last three observations, the actions before them and a state that adds up.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.weight = tf.compat.v1.get_variable("weight", initializer=1.0, use_resource=True)

    def view_requirements(self):
        return {
            "stack": ViewRequirement("obs", shift="-2:0"),
            "acts": ViewRequirement("actions", shift=(-3, -1)),
        }

    def initial_state(self):
        return [np.zeros(1, np.float32)]

    def __call__(self, columns):
        stack = tf.cast(columns["stack"][:, :, 0], tf.float32)
        acts = tf.cast(columns["acts"], tf.float32)
        shown = tf.reduce_sum(stack * [[100.0, 10.0, 1.0]], axis=1) + columns["prev_rewards"] * 1e-2
        shown += tf.reduce_sum(acts * [[2000.0, 1000.0]], axis=1)
        num_sequences = tf.shape(columns["seq_lens"])[0]
        state = columns["state_in_0"] + 1e4
        by_sequence = tf.reshape(shown, [num_sequences, -1]) + columns["state_in_0"]
        values = tf.reshape(by_sequence, [-1]) * self.weight
        return ModelOutput(tf.stack([values, -values], axis=1), values, (state,))


@pytest.fixture(scope="module")
def policy():
    """γ = 0.9, λ = 0.8, one hidden layer."""
    with PPOPolicy(OBS, TWO, PPO_CONFIG) as made:
        made.set_weights(known_weights(made))
        yield made


@pytest.fixture(scope="module")
def constant():
    """A critic that says 2 of every state."""
    with A2CPolicy(OBS, TWO, {**CONFIG, "gamma": 0.5, "lambda": 0.5}) as made:
        weights = {name: np.zeros_like(weight) for name, weight in made.get_weights().items()}
        made.set_weights({**weights, "value_out/bias": np.float32([2.0])})
        yield made


def fragment(policy, rows, end=None, seed=0):
    """Steps of one episode as acting and the environment gave them."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (rows + 1, 3)).astype(np.float32)
    actions, _, extras = policy.compute_actions(obs[:-1])
    ends = {name: np.zeros(rows, bool) for name in ("terminateds", "truncateds")}
    for name in [end] if isinstance(end, str) else end or []:
        ends[name][-1] = True
    rewards = rng.normal(0, 1, rows).astype(np.float32)
    return SampleBatch(
        obs=obs[:-1], new_obs=obs[1:], actions=actions, rewards=rewards, **ends, **extras
    )


# Whether the end is a time limit or that of the fragment, the episode would have gone on (i6, i10).
ENDS = [None, "truncateds", "terminateds", ["terminateds", "truncateds"]]


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("end", ENDS)
def test_advantages_equal_the_slow_reference(policy, rows, end):
    batch = fragment(policy, rows, end)
    weights = known_weights(policy)
    _, values = network(weights, batch["obs"])
    # i9: the value of where the last step led to, not of where it began.
    _, next_values = network(weights, batch["new_obs"])
    terminated = end is not None and "terminateds" in end
    expected = gae(batch["rewards"], values, next_values, terminated, GAMMA, LAMBDA)
    result = policy.postprocess_trajectory(batch)
    np.testing.assert_allclose(result["advantages"], expected, 1e-4, 1e-5)
    np.testing.assert_allclose(result["value_targets"], expected + values, 1e-4, 1e-5)
    assert result["advantages"].dtype == result["value_targets"].dtype == np.float32


@pytest.mark.parametrize("config_class", [A2CConfig, PPOConfig])
@pytest.mark.parametrize("key", ["lr", "vf_loss_coeff", "entropy_coeff"])
def test_coefficients_are_finite_and_not_negative(config_class, key):
    for value, message in ((np.inf, "must be finite"), (-0.1, "must be at least 0.0")):
        with pytest.raises(ValueError, match=f"`{key}` {message}"):
            config_class.from_dict({key: value})
    with pytest.raises(ValueError, match="`entropy_coeff_schedule` must be at least 0.0 at all"):
        config_class.from_dict({"entropy_coeff_schedule": [[0, 0.1], [9, -0.1]]})


def test_the_kl_penalty_is_finite():
    with pytest.raises(ValueError, match="`kl_coeff` must be finite, got inf"):
        PPOConfig(kl_coeff=np.inf)


@pytest.mark.parametrize("config", [{}, {"use_critic": False}])
def test_a_fragment_without_steps_has_no_advantages(config):
    with A2CPolicy(OBS, TWO, {**CONFIG, **config}) as made:
        result = made.postprocess_trajectory(fragment(made, 2)[:0])
    for name in ("advantages", "value_targets"):
        assert (result[name].shape, result[name].dtype) == ((0,), np.float32)


def test_time_limit_and_cut_bootstrap_alike_and_termination_does_not(policy):
    advantages = {
        end: policy.postprocess_trajectory(fragment(policy, 4, end))["advantages"]
        for end in (None, "truncateds", "terminateds")
    }
    np.testing.assert_array_equal(advantages["truncateds"], advantages[None])
    batch = fragment(policy, 4)
    _, bootstrap = network(known_weights(policy), batch["new_obs"][-1:])
    # δ of the last step differs by γ V(s_T), that of step t by (γλ)^(T−1−t) as much.
    weight = GAMMA * (GAMMA * LAMBDA) ** np.arange(3, -1, -1)
    np.testing.assert_allclose(
        advantages[None] - advantages["terminateds"], weight * bootstrap, 1e-4, 1e-5
    )


def test_two_episodes_by_hand(constant):  # i7
    # V = 2 everywhere, γ = λ = ½, so that γV = 1 and γλ = ¼; rewards 1 2 | 4 8.
    # The first terminates:      δ = 1 + 1 − 2 = 0,  2 − 2 = 0;      Â = 0, 0
    # The second is truncated:   δ = 4 + 1 − 2 = 3,  8 + 1 − 2 = 7;  Â = 3 + 7/4, 7
    batch = fragment(constant, 4)
    batch["rewards"] = np.float32([1, 2, 4, 8])
    batch["terminateds"] = np.array([False, True, False, False])
    batch["truncateds"] = np.array([False, False, False, True])
    episodes = [constant.postprocess_trajectory(part) for part in batch.split_by_episode()]
    result = concat_samples(episodes)
    np.testing.assert_allclose(result["advantages"], [0, 0, 4.75, 7], atol=1e-6)
    np.testing.assert_allclose(result["value_targets"], [2, 2, 6.75, 9], atol=1e-6)


def test_episode_cut_in_two_has_the_targets_of_a_bootstrapped_prefix(policy):
    batch = fragment(policy, 6, "terminateds")
    whole = policy.postprocess_trajectory(batch)
    parts = [policy.postprocess_trajectory(batch[:3]), policy.postprocess_trajectory(batch[3:])]
    # Nothing is missing after the cut; before it, V stands for the rest.
    np.testing.assert_array_equal(parts[1]["advantages"], whole["advantages"][3:])
    _, values = network(known_weights(policy), batch["new_obs"][2:3])
    delta = batch["rewards"][2] + GAMMA * values[0] - batch["vf_preds"][2]
    assert parts[0]["advantages"][2] == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize("algorithm", ["policy", "constant"])
def test_postprocessing_does_not_change_the_callers_batch(request, algorithm):
    policy = request.getfixturevalue(algorithm)
    batch = fragment(policy, 3)
    before = batch.copy()
    result = policy.postprocess_trajectory(batch)
    assert set(result) - set(batch) == {"advantages", "value_targets"}
    assert set(batch) == set(before)
    for name, column in before.items():
        np.testing.assert_array_equal(batch[name], column)


def test_postprocessing_takes_plain_dicts(policy):
    batch = fragment(policy, 3)
    as_dict = policy.postprocess_trajectory(dict(batch))
    expected = policy.postprocess_trajectory(batch)["advantages"]
    np.testing.assert_array_equal(as_dict["advantages"], expected)


def test_without_gae_advantages_are_returns_minus_values():
    with PPOPolicy(OBS, TWO, {**PPO_CONFIG, "use_gae": False}) as policy:
        batch = fragment(policy, 3, "terminateds")
        batch["rewards"] = np.float32([1, 0, 10])
        result = policy.postprocess_trajectory(batch)
    # 1 + 0.9 · 0 + 0.81 · 10;  0 + 0.9 · 10;  10
    np.testing.assert_allclose(result["value_targets"], [9.1, 9.0, 10.0], 1e-5)
    np.testing.assert_allclose(
        result["advantages"], result["value_targets"] - batch["vf_preds"], 1e-5
    )


def test_without_critic_advantages_are_the_returns_themselves():
    with A2CPolicy(OBS, TWO, {**CONFIG, "use_critic": False}) as policy:
        batch = fragment(policy, 2, "terminateds")
        batch["rewards"] = np.float32([1, 10])
        result = policy.postprocess_trajectory(batch)
        cut = fragment(policy, 2)
        cut["rewards"] = np.float32([1, 10])
        bootstrap = policy.compute_values({"obs": cut["new_obs"][-1:]})[0]
        bootstrapped = policy.postprocess_trajectory(cut)
    np.testing.assert_allclose(result["advantages"], [1 + 0.9 * 10, 10], 1e-6)
    np.testing.assert_allclose(bootstrapped["advantages"][1], 10 + 0.9 * bootstrap, 1e-5)


def test_value_after_the_fragment_sees_what_acting_would_see():
    """State, windows and previous actions all move on by one step, however short the fragment."""
    space = gym.spaces.Box(0, 9, (1,), np.int64)
    config = {**PPO_CONFIG, "model": {"custom_model": Remembering, "max_seq_len": 4}}
    obs = np.arange(1, 7)[:, None]
    actions, rewards = np.array([0, 1, 1, 0, 1]), np.float32([1, 2, 3, 4, 5])
    with PPOPolicy(space, TWO, config) as policy:
        views = policy.view_requirements
        trajectory = SampleBatch(
            obs=obs[:-1],
            new_obs=obs[1:],
            actions=actions,
            rewards=rewards,
            terminateds=np.zeros(5, bool),
            truncateds=np.zeros(5, bool),
            vf_preds=np.zeros(5, np.float32),
            stack=views["stack"].apply(obs[:-1]),
            acts=views["acts"].apply(actions),
            # No row of the fragment that is row 4 alone has action 2 among its `acts`.
            acts_after=views["acts_after"].apply(actions),
            state_out_0=np.float32([[7]]) * np.arange(1, 6, dtype=np.float32)[:, None],
        )
        for start, end, acts in [(0, 5, [1, 1]), (3, 5, [1, 1]), (4, 5, [1, 1]), (0, 1, [0, 0])]:
            result = policy.postprocess_trajectory(trajectory[start:end])
            # Observations s_{T−2}, s_{T−1}, s_T; actions a_{T−3} and a_{T−1}; reward r_{T−1}.
            stack = [obs[t, 0] if t >= 0 else 0 for t in (end - 2, end - 1, end)]
            value = np.dot(stack, [100, 10, 1]) + np.dot(acts, [2000, 1000])
            value += rewards[end - 1] * 1e-2 + 7 * end
            expected = rewards[end - 1] + GAMMA * value
            assert result["advantages"][-1] == pytest.approx(expected, rel=1e-5), (start, end)
