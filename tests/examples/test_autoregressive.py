"""The worked example of auto-regressive actions."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from graph_evaluation import Evaluator
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from scipy.special import log_softmax, rel_entr

import tfpolicy
from tfpolicy.distributions import distribution_for
from tfpolicy.policies.ppo import PPOPolicy
from tfpolicy.served_policy import load_policy
from tfpolicy.spaces import unbatch

PATH = Path(tfpolicy.__file__).parents[1] / "examples" / "autoregressive.py"
SPACE = Dict(first=Discrete(3, start=1), second=Discrete(4, start=-1))
OBS = Box(-1, 1, (2,))
ROWS = 5


def load_example():
    spec = importlib.util.spec_from_file_location("autoregressive", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load_example()


def inputs_for(rows, seed=0):
    return np.random.default_rng(seed).normal(0, 1.5, (rows, 3 + 3 * 4)).astype(np.float32)


def pair_log_probs(inputs):
    """Log π(a, b) of all pairs, [B, 3, 4], slow on purpose."""
    log_pairs = np.zeros((len(inputs), 3, 4))
    for row, values in enumerate(inputs.astype(np.float64)):
        for a in range(3):
            table = values[3 + 4 * a : 3 + 4 * (a + 1)]
            log_pairs[row, a] = log_softmax(values[:3])[a] + log_softmax(table)
    return log_pairs


@pytest.fixture
def evaluate():
    return Evaluator(jit_compile=False)


@pytest.fixture(scope="module")
def policy():
    config = {
        "seed": 1,
        "model": {"fcnet_hiddens": [8], "custom_action_dist": example.FirstThenSecond},
        "train_batch_size": 32,
        "sgd_minibatch_size": 16,
    }
    with PPOPolicy(OBS, SPACE, config) as built:
        yield built


def test_log_probs_entropy_and_kl_are_those_of_all_pairs(evaluate):
    distribution = distribution_for(SPACE, example.FirstThenSecond)
    assert distribution.num_inputs == 15
    inputs, other = inputs_for(ROWS), inputs_for(ROWS, 1)
    log_p, log_q = pair_log_probs(inputs), pair_log_probs(other)
    first, second = (index.ravel() for index in np.indices((3, 4)))

    def values(x, y):
        p, q = distribution(x), distribution(y)
        every = distribution(tf.repeat(x, 12, axis=0))
        pairs = {"first": np.tile(first, ROWS) + 1, "second": np.tile(second, ROWS) - 1}
        return every.log_prob(pairs), p.entropy(), p.kl(q)

    logp, entropy, kl = evaluate(values, inputs, other)
    np.testing.assert_allclose(logp.reshape(ROWS, 3, 4), log_p, rtol=1e-5)
    np.testing.assert_allclose(entropy, -(np.exp(log_p) * log_p).sum((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(kl, rel_entr(np.exp(log_p), np.exp(log_q)).sum((1, 2)), rtol=1e-4)


def test_the_mode_is_the_most_likely_pair(evaluate):
    # P(a) = (0.4, 0.3, 0.3); b is certain after a = 1 and uniform after the others.
    row = np.concatenate([np.log([0.4, 0.3, 0.3]), np.zeros(4), [0, 0, 50, 0], np.zeros(4)])
    distribution = distribution_for(SPACE, example.FirstThenSecond)
    mode = evaluate(lambda x: distribution(x).mode(), row[None])
    assert (mode["first"], mode["second"]) == ([1 + 1], [2 - 1])
    inputs = inputs_for(200)
    modes = evaluate(lambda x: distribution(x).mode(), inputs)
    best = pair_log_probs(inputs).reshape(200, 12).argmax(axis=1)
    np.testing.assert_array_equal(4 * (modes["first"] - 1) + modes["second"] + 1, best)


def test_pairs_are_drawn_as_often_as_they_are_likely(evaluate):
    distribution = distribution_for(SPACE, example.FirstThenSecond)
    inputs = np.tile(inputs_for(1), (40_000, 1))
    pairs = evaluate(lambda x: distribution(x).sample(tf.constant([1, 2])), inputs)
    indices = 4 * (pairs["first"] - 1) + pairs["second"] + 1
    shares = np.bincount(indices, minlength=12) / 40_000
    np.testing.assert_allclose(shares, np.exp(pair_log_probs(inputs[:1])).ravel(), atol=0.012)


def test_other_spaces_are_refused():
    for space in (Dict(first=Discrete(2)), Tuple([Discrete(2), Discrete(2)])):
        with pytest.raises(ValueError, match="FirstThenSecond"):
            distribution_for(space, example.FirstThenSecond)


def test_a_policy_acts_learns_and_is_exported_with_it(policy, tmp_path):
    obs = np.random.default_rng(0).uniform(-1, 1, (32, 2)).astype(np.float32)
    actions, _, extras = policy.compute_actions(obs)
    assert all(SPACE.contains(action) for action in unbatch(actions))
    for explore in (False, True):
        assert SPACE.contains(policy.compute_single_action(obs[0], explore=explore)[0])
    logp = policy.compute_log_likelihoods(unbatch(actions), obs)
    np.testing.assert_allclose(logp, extras["action_logp"], rtol=1e-5)
    ones = np.ones(32, np.float32)
    batch = {"obs": obs, "actions": actions, **extras, "advantages": ones, "value_targets": ones}
    assert policy.learn_on_batch(batch)["learner_stats"]["kl"] == pytest.approx(0.0, abs=1e-6)
    greedy = policy.compute_actions(obs, explore=False)[0]
    with load_policy(policy.export_model(tmp_path / "export")) as served:
        for name, action in served.compute_actions(obs)[0].items():
            np.testing.assert_array_equal(action, greedy[name])
    policy.save(tmp_path / "checkpoint")
    model = {"custom_action_dist": example.FirstThenSecond}
    with PPOPolicy.from_checkpoint(tmp_path / "checkpoint", {"model": model}) as restored:
        np.testing.assert_array_equal(
            restored.compute_actions(obs, explore=False)[0]["second"], greedy["second"]
        )
    with pytest.raises(ValueError, match="model.custom_action_dist"):
        PPOPolicy.from_checkpoint(tmp_path / "checkpoint")


def test_the_second_choice_learns_to_follow_a_first_one_that_stays_random():
    # Independent choices earn at most about 1/4 (0.23 was measured), these up to 2/3.
    assert example.train(example.FirstThenSecond, iterations=45)[-1] > 0.5
