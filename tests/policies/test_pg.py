"""REINFORCE against the slow reference, through policies as they are used."""

import numpy as np
import pytest
from policy_reference import (
    MODEL,
    OBS,
    PIS,
    assert_gradients,
    batch_of,
    known_weights,
    network,
    pg_terms,
)

from tfpolicy.policies.pg import PGPolicy
from tfpolicy.sample_batch import SampleBatch

ROWS = 7
CONFIG = {"seed": 0, "model": MODEL, "train_batch_size": ROWS, "gamma": 0.5, "lr": 0.01}


@pytest.fixture(scope="module", params=PIS)
def pi(request):
    """Discrete and continuous actions."""
    return PIS[request.param]


@pytest.fixture(scope="module")
def policy(pi):
    """A policy with known weights."""
    with PGPolicy(OBS, pi.action_space, CONFIG) as made:
        made.set_weights(known_weights(made))
        yield made


@pytest.fixture(autouse=True)
def fresh(policy):
    """Every test finds the policy as it was built."""
    state = policy.get_state()
    yield
    policy.set_state(state)


def test_every_term_equals_the_reference(pi, policy):
    batch = batch_of(pi, ROWS)
    stats = policy.learn_on_batch(batch)["learner_stats"]
    terms = pg_terms(pi, known_weights(policy), batch)
    for name in ("total_loss", "policy_loss", "entropy"):
        assert stats[name] == pytest.approx(vars(terms)[name], rel=2e-5), name


def test_gradients_equal_those_of_the_reference_and_leave_the_critic_out(pi, policy):
    batch = batch_of(pi, ROWS)
    gradients, _ = policy.compute_gradients(batch)
    weights = known_weights(policy)
    named = dict(zip(weights, gradients, strict=True))
    critic = [name for name, gradient in named.items() if gradient is None]
    assert critic == [name for name in weights if "value" in name]
    actor = {name: weight for name, weight in weights.items() if name not in critic}
    assert_gradients(
        [named[name] for name in actor],
        lambda moved: pg_terms(pi, {**weights, **moved}, batch).total_loss,
        actor,
    )


def test_log_probs_equal_the_reference(pi, policy):
    batch = batch_of(pi, ROWS)
    inputs, _ = network(known_weights(policy), batch["obs"])
    expected = [pi(row).log_prob(a) for row, a in zip(inputs, batch["actions"], strict=True)]
    logp = policy.compute_log_likelihoods(batch["actions"], batch["obs"])
    np.testing.assert_allclose(logp, expected, 1e-5, 1e-5)


@pytest.mark.parametrize("end", ["terminateds", "truncateds", None])
def test_advantages_are_discounted_returns_of_the_rewards_alone(policy, end):
    batch = SampleBatch(
        rewards=np.float32([1, 2, 4]), terminateds=np.zeros(3, bool), truncateds=np.zeros(3, bool)
    )
    if end:
        batch[end] = np.array([False, False, True])
    result = policy.postprocess_trajectory(batch)
    # 4;  2 + 0.5 · 4;  1 + 0.5 · 4
    np.testing.assert_array_equal(result["advantages"], [3.0, 4.0, 4.0])
    assert result["advantages"].dtype == np.float32


def test_postprocessing_takes_a_dict_and_does_not_change_it(policy):
    batch = {
        "rewards": np.float32([1, 2]),
        "terminateds": np.array([False, True]),
        "truncateds": np.zeros(2, bool),
    }
    result = policy.postprocess_trajectory(batch)
    assert set(result) - set(batch) == {"advantages"} and len(batch) == 3


def test_updates_reduce_the_loss_on_a_fixed_batch(pi, policy):
    batch = batch_of(pi, ROWS)
    policy.load_batch_into_buffer(batch)
    first = policy.compute_gradients(batch)[1]["learner_stats"]["total_loss"]
    policy.learn_on_buffer(num_sgd_iter=30)
    assert policy.compute_gradients(batch)[1]["learner_stats"]["total_loss"] < first - 0.1
