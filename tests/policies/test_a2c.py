"""A2C against the slow reference, through policies as they are used."""

import numpy as np
import pytest
from policy_reference import (
    MODEL,
    OBS,
    CategoricalPi,
    GaussianPi,
    a2c_terms,
    assert_gradients,
    batch_of,
    known_weights,
    network,
)

from tfpolicy.policies.a2c import A2CPolicy

ROWS = 7
CONFIG = {
    "seed": 0,
    "model": MODEL,
    "train_batch_size": ROWS,
    "grad_clip": None,
    "vf_loss_coeff": 0.7,
    "entropy_coeff": 0.3,
}


def build(pi, **config):
    policy = A2CPolicy(OBS, pi.action_space, {**CONFIG, **config})
    policy.set_weights(known_weights(policy))
    return policy


@pytest.fixture(scope="module")
def gaussian():
    """Continuous actions."""
    with build(GaussianPi) as policy:
        yield policy


@pytest.fixture(scope="module")
def clipped_and_scheduled():
    """Discrete actions, a tiny limit on the gradients, coefficients that change."""
    config = {"grad_clip": 1e-3, "lr_schedule": [[0, 0.1], [10, 0.2]]}
    schedule = {"type": "linear", "schedule_timesteps": 10, "initial_p": 1.0, "final_p": 0.0}
    with build(CategoricalPi, **config, entropy_coeff_schedule=schedule) as policy:
        yield policy


@pytest.fixture(autouse=True)
def fresh(request):
    """Every test finds the module's policies as they were built."""
    names = {"gaussian", "clipped_and_scheduled"} & {*request.fixturenames}
    policies = [request.getfixturevalue(name) for name in names]
    states = [(policy, policy.get_state()) for policy in policies]
    yield
    for policy, state in states:
        policy.set_state(state)


def assert_stats(stats, terms):
    for name in ("total_loss", "policy_loss", "vf_loss", "entropy", "vf_explained_var"):
        np.testing.assert_allclose(stats[name], vars(terms)[name], 2e-5, 2e-6, err_msg=name)


def test_every_term_equals_the_reference(gaussian):
    batch = batch_of(GaussianPi, ROWS)
    stats = gaussian.learn_on_batch(batch)["learner_stats"]
    assert_stats(stats, a2c_terms(GaussianPi, known_weights(gaussian), batch, 0.7, 0.3))


def test_gradients_equal_those_of_the_reference(gaussian):
    batch = batch_of(GaussianPi, ROWS)
    gradients, _ = gaussian.compute_gradients(batch)
    assert_gradients(
        gradients,
        lambda weights: a2c_terms(GaussianPi, weights, batch, 0.7, 0.3).total_loss,
        known_weights(gaussian),
    )


def test_log_probs_equal_the_reference(gaussian):
    batch = batch_of(GaussianPi, ROWS)
    inputs, _ = network(known_weights(gaussian), batch["obs"])
    expected = [GaussianPi(x).log_prob(a) for x, a in zip(inputs, batch["actions"], strict=True)]
    logp = gaussian.compute_log_likelihoods(batch["actions"], batch["obs"])
    np.testing.assert_allclose(logp, expected, 1e-5, 1e-5)


def test_gradients_are_clipped_on_one_device_too(clipped_and_scheduled):  # c7, j1
    batch = batch_of(CategoricalPi, ROWS)
    gradients, result = clipped_and_scheduled.compute_gradients(batch)
    norm = np.sqrt(sum((gradient.astype(np.float64) ** 2).sum() for gradient in gradients))
    assert norm == pytest.approx(1e-3, rel=1e-5)
    # What is reported is the norm before.
    assert result["learner_stats"]["grad_gnorm"] > 0.1


@pytest.mark.parametrize(("timestep", "lr", "entropy_coeff"), [(0, 0.1, 1.0), (5, 0.15, 0.5)])
def test_coefficients_follow_their_schedules(clipped_and_scheduled, timestep, lr, entropy_coeff):
    policy = clipped_and_scheduled
    batch = batch_of(CategoricalPi, ROWS)
    policy.on_global_var_update({"timestep": timestep})
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert (stats["lr"], stats["entropy_coeff"]) == pytest.approx((lr, entropy_coeff))
    weights = known_weights(policy)
    assert_stats(stats, a2c_terms(CategoricalPi, weights, batch, 0.7, entropy_coeff))


def test_learning_does_not_need_what_only_ppo_reads(gaussian):
    needed = ("obs", "actions", "advantages", "value_targets")
    batch = {name: column for name, column in batch_of(GaussianPi, ROWS).items() if name in needed}
    gaussian.learn_on_batch(batch)
    del batch["value_targets"]
    with pytest.raises(KeyError, match="lacks what learning reads: value_targets.*It has: obs"):
        gaussian.learn_on_batch(batch)


def test_updates_reduce_the_loss_on_a_fixed_batch(gaussian):
    batch = batch_of(GaussianPi, ROWS)
    gaussian.load_batch_into_buffer(batch)
    first = gaussian.compute_gradients(batch)[1]["learner_stats"]["total_loss"]
    gaussian.learn_on_buffer(num_sgd_iter=100)
    assert gaussian.compute_gradients(batch)[1]["learner_stats"]["total_loss"] < first - 0.1
