"""PPO against the slow reference, through policies as they are used."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from policy_reference import (
    MODEL,
    OBS,
    CategoricalPi,
    GaussianPi,
    assert_gradients,
    batch_of,
    explained_variance,
    known_weights,
    network,
    ppo_terms,
    standardized,
)

from tfpolicy.graph.towers import TrainBatch
from tfpolicy.models import model_for
from tfpolicy.policies.ppo import PPOPolicy

ROWS = 8
CONFIG = {
    "seed": 0,
    "model": MODEL,
    "train_batch_size": ROWS,
    "sgd_minibatch_size": 4,
    "grad_clip": None,
    "vf_loss_coeff": 0.7,
    "kl_coeff": 0.5,
    "entropy_coeff": 0.3,
    "kl_target": 0.1,
}
PLAIN = {"epsilon": 0.2, "c_v": 0.7, "beta": 0.5, "c_e": 0.3}
CLIPPED = {**PLAIN, "vf_clip": 0.5, "dual_clip": 1.5}
STATS = ("total_loss", "policy_loss", "vf_loss", "kl", "entropy", "vf_explained_var")


@dataclasses.dataclass
class Built:
    """A policy with known weights, and what the reference needs to know about it."""

    policy: PPOPolicy
    pi: type
    settings: dict
    weights: dict

    def terms(self, batch, advantages, weights=None, **changes):
        settings = {**self.settings, **changes}
        weights = self.weights if weights is None else weights
        return ppo_terms(self.pi, weights, batch, advantages=advantages, **settings)


def build(pi, settings=PLAIN, **config):
    policy = PPOPolicy(OBS, pi.action_space, {**CONFIG, **config})
    weights = known_weights(policy)
    policy.set_weights(weights)
    return Built(policy, pi, settings, weights)


@pytest.fixture(scope="module")
def discrete():
    """The plain loss on discrete actions."""
    made = build(CategoricalPi)
    with made.policy:
        yield made


@pytest.fixture(scope="module")
def one_device():
    """The same on one device, whose offsets are rows of the batch."""
    made = build(CategoricalPi, num_gpus=1, fake_gpus=True)
    with made.policy:
        yield made


@pytest.fixture(scope="module")
def clipped():
    """The loss with all that may be clipped clipped, on Gaussian actions."""
    made = build(GaussianPi, CLIPPED, vf_clip_param=0.5, dual_clip=1.5)
    with made.policy:
        yield made


@pytest.fixture(params=["discrete", "clipped"])
def built(request):
    """Each of the two above."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def untouched():
    """Without a KL penalty, and with advantages taken as they are."""
    made = build(CategoricalPi, {**PLAIN, "beta": 0.0}, kl_coeff=0.0, standardize_advantages=False)
    with made.policy:
        yield made


@pytest.fixture(scope="module")
def two_towers():
    """The plain loss on two devices."""
    made = build(CategoricalPi, num_gpus=2, fake_gpus=True)
    with made.policy:
        yield made


@pytest.fixture(autouse=True)
def fresh(request):
    """Every test finds the module's policies as they were built."""
    names = {"built", "discrete", "clipped", "untouched", "scheduled", "one_device", "two_towers"}
    policies = [request.getfixturevalue(name).policy for name in names & {*request.fixturenames}]
    states = [(policy, policy.get_state()) for policy in policies]
    yield
    for policy, state in states:
        policy.set_state(state)


def assert_stats(stats, terms, rtol=2e-5):
    for name in STATS:
        expected = vars(terms)[name]
        np.testing.assert_allclose(stats[name], expected, rtol, 2e-6, err_msg=name)


def stats_of(policy, batch):
    """The loss's statistics on a batch, without learning from it."""
    return policy.compute_gradients(batch)[1]["learner_stats"]


def test_every_term_equals_the_reference(built):
    batch = batch_of(built.pi, ROWS)
    assert_stats(
        stats_of(built.policy, batch), built.terms(batch, standardized(batch["advantages"]))
    )


def test_learning_reports_the_loss_before_the_update(built):
    batch = batch_of(built.pi, ROWS)
    before = stats_of(built.policy, batch)
    learned = built.policy.learn_on_batch(batch)["learner_stats"]
    assert {**learned} == pytest.approx(before, rel=1e-6)
    assert stats_of(built.policy, batch)["total_loss"] != learned["total_loss"]


def test_gradients_equal_those_of_the_reference(built):
    batch = batch_of(built.pi, ROWS)
    advantages = standardized(batch["advantages"])
    gradients, result = built.policy.compute_gradients(batch)
    assert_gradients(
        gradients,
        lambda weights: built.terms(batch, advantages, weights).total_loss,
        built.weights,
    )
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
    assert result["learner_stats"]["grad_gnorm"] == pytest.approx(norm, rel=1e-5)


def test_log_probs_and_values_equal_the_reference(built):
    batch = batch_of(built.pi, ROWS)
    inputs, values = network(built.weights, batch["obs"])
    actions, _, extras = built.policy.compute_actions(batch["obs"], explore=True)
    np.testing.assert_allclose(extras["action_dist_inputs"], inputs, 1e-5, 1e-6)
    np.testing.assert_allclose(extras["vf_preds"], values, 1e-5, 1e-6)

    def log_probs(actions):
        return [built.pi(row).log_prob(a) for row, a in zip(inputs, actions, strict=True)]

    np.testing.assert_allclose(extras["action_logp"], log_probs(actions), 1e-5, 1e-5)
    given = built.policy.compute_log_likelihoods(batch["actions"], batch["obs"])
    np.testing.assert_allclose(given, log_probs(batch["actions"]), 1e-5, 1e-5)


def test_batch_of_the_reference_reaches_every_clip(clipped):
    batch = batch_of(clipped.pi, ROWS)
    advantages = standardized(batch["advantages"])
    terms = clipped.terms(batch, advantages)
    assert clipped.terms(batch, advantages, epsilon=1e9).policy_loss != terms.policy_loss
    assert clipped.terms(batch, advantages, dual_clip=None).policy_loss > terms.policy_loss  # i22
    assert clipped.terms(batch, advantages, vf_clip=None).vf_loss < terms.vf_loss  # i19


def test_no_gradient_flows_into_advantages_targets_and_what_the_old_policy_did(built):
    policy = built.policy
    batch = {**batch_of(built.pi, ROWS)}
    with tf.Graph().as_default(), tf.compat.v1.Session().as_default():
        model = model_for(
            OBS, policy.action_space, policy.dist_class.num_inputs, policy.config.model, 0
        )
        columns = {name: tf.compat.v1.placeholder(v.dtype, v.shape) for name, v in batch.items()}
        coefficients = {name: tf.constant(1.0) for name in ("entropy_coeff", "kl_coeff")}
        train_batch = TrainBatch(columns, coefficients)
        loss = policy.loss(model, policy.dist_class, train_batch).loss
        for name in ("advantages", "action_logp", "value_targets", "vf_preds"):
            assert tf.gradients(loss, columns[name]) == [None], name
        trainable = tf.compat.v1.trainable_variables()
        assert None not in tf.gradients(loss, trainable)


def test_on_policy_batch_has_ratio_one_and_no_divergence(untouched):
    batch = batch_of(untouched.pi, ROWS)
    actions, _, extras = untouched.policy.compute_actions(batch["obs"])
    stats = stats_of(untouched.policy, {**batch, **extras, "actions": actions})
    # r = 1 for every row, so the surrogate is the mean advantage.
    assert stats["policy_loss"] == pytest.approx(-batch["advantages"].mean(), rel=1e-6)
    assert stats["kl"] == pytest.approx(0.0, abs=1e-7)


def test_explained_variance_is_that_of_all_rows_for_any_number_of_towers(discrete, two_towers):
    batch = batch_of(CategoricalPi, ROWS)
    _, values = network(discrete.weights, batch["obs"])
    expected = explained_variance(batch["value_targets"], values)
    for made in (discrete, two_towers):
        unexplained = 1.0 - stats_of(made.policy, batch)["vf_explained_var"]
        # What is rounded is the quotient of two variances, here close to 1.
        assert unexplained == pytest.approx(1.0 - expected, rel=1e-6)


def test_perfect_critic_explains_everything_and_a_constant_one_nothing(discrete):
    batch = batch_of(CategoricalPi, ROWS)
    _, values = network(discrete.weights, batch["obs"])
    stats = stats_of(discrete.policy, {**batch, "value_targets": values.astype(np.float32)})
    assert stats["vf_explained_var"] == pytest.approx(1.0, abs=1e-6)
    blind = {name: np.zeros_like(weight) for name, weight in discrete.weights.items()}
    discrete.policy.set_weights(blind)
    assert stats_of(discrete.policy, batch)["vf_explained_var"] == pytest.approx(0.0, abs=1e-6)


# Advantages.


def test_advantages_are_standardized_over_the_whole_batch_before_the_split(one_device):
    batch = batch_of(CategoricalPi, ROWS)
    advantages = standardized(batch["advantages"])
    policy = one_device.policy
    policy.load_batch_into_buffer(batch)
    for offset in (0, 4):
        policy.set_weights(one_device.weights)
        minibatch = {name: column[offset : offset + 4] for name, column in batch.items()}
        stats = policy.learn_on_loaded_batch(offset)["learner_stats"]
        assert_stats(stats, one_device.terms(minibatch, advantages[offset : offset + 4]))


def test_advantages_are_standardized_over_all_towers_together(two_towers):
    batch = batch_of(CategoricalPi, ROWS)
    advantages = standardized(batch["advantages"])
    policy = two_towers.policy
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert_stats(stats, two_towers.terms(batch, advantages))
    policy.set_weights(two_towers.weights)
    policy.load_batch_into_buffer(batch)
    # Two rows on each device are rows 0 to 3 of the batch, as with one device.
    minibatch = {name: column[:4] for name, column in batch.items()}
    stats = policy.learn_on_loaded_batch(0)["learner_stats"]
    assert_stats(stats, two_towers.terms(minibatch, advantages[:4]))


def test_single_row_keeps_its_advantage(discrete):  # i4
    batch = batch_of(CategoricalPi, 1)
    stats = discrete.policy.learn_on_batch(batch)["learner_stats"]
    assert_stats(stats, discrete.terms(batch, batch["advantages"]))


def test_minibatch_of_a_single_row_is_finite(one_device):  # i4
    batch = batch_of(CategoricalPi, 5)
    policy = one_device.policy
    assert policy.load_batch_into_buffer(batch) == 5
    advantages = standardized(batch["advantages"])
    row = {name: column[4:] for name, column in batch.items()}
    stats = policy.learn_on_loaded_batch(offset=4)["learner_stats"]
    assert_stats(stats, one_device.terms(row, advantages[4:]))


def test_equal_advantages_are_no_reason_to_move(discrete):  # i4
    batch = {**batch_of(CategoricalPi, ROWS), "advantages": np.full(ROWS, 3.0, np.float32)}
    stats = stats_of(discrete.policy, batch)
    assert stats["policy_loss"] == pytest.approx(0.0, abs=1e-6)


def test_advantages_can_be_taken_as_they_are(untouched):
    batch = batch_of(CategoricalPi, ROWS)
    assert_stats(stats_of(untouched.policy, batch), untouched.terms(batch, batch["advantages"]))


def test_learning_changes_no_column_of_the_caller(discrete):
    batch = batch_of(CategoricalPi, ROWS)
    before = {name: column.copy() for name, column in batch.items()}
    discrete.policy.learn_on_batch(batch)
    discrete.policy.load_batch_into_buffer(batch)
    discrete.policy.compute_gradients(batch)
    assert list(batch) == list(before)
    for name, column in before.items():
        np.testing.assert_array_equal(batch[name], column)


# The KL penalty.


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (0.201, 1.5),  # more than twice the target of 0.1
        (0.2, 1.0),
        (0.1, 1.0),
        (0.05, 1.0),
        (0.049, 0.5),  # less than half of it
        (0.0, 0.5),
    ],
)
def test_kl_coefficient_follows_the_divergence(discrete, kl, factor):
    assert discrete.policy.update_kl(kl) == pytest.approx(0.5 * factor)
    batch = batch_of(CategoricalPi, ROWS)
    stats = stats_of(discrete.policy, batch)
    # The next loss is penalised by it, and reports it.
    assert stats["kl_coeff"] == pytest.approx(0.5 * factor)
    advantages = standardized(batch["advantages"])
    assert_stats(stats, discrete.terms(batch, advantages, beta=0.5 * factor))


def test_kl_coefficient_is_adapted_once_a_train_batch(discrete):
    policy = discrete.policy
    policy.load_batch_into_buffer(batch_of(CategoricalPi, ROWS))
    stats = policy.learn_on_buffer(num_sgd_iter=2)["learner_stats"]
    assert policy.coefficients.current["kl_coeff"] == 0.5
    policy.on_train_batch_end({**stats, "kl": 1.0})
    assert policy.coefficients.current["kl_coeff"] == 0.75


def test_kl_coefficient_can_always_come_back(discrete):
    for _ in range(200):
        discrete.policy.update_kl(0.0)
    low = discrete.policy.coefficients.current["kl_coeff"]
    assert low == pytest.approx(1e-4)
    assert discrete.policy.update_kl(1.0) == pytest.approx(1.5e-4)
    for _ in range(200):
        discrete.policy.update_kl(1.0)
    assert discrete.policy.coefficients.current["kl_coeff"] == pytest.approx(1e4)


def test_penalty_that_is_off_stays_off_but_the_divergence_is_reported(untouched):  # i21
    policy = untouched.policy
    batch = batch_of(CategoricalPi, ROWS)
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert stats["kl"] > 0.1 and stats["kl_coeff"] == 0.0
    expected = stats["policy_loss"] + 0.7 * stats["vf_loss"] - 0.3 * stats["entropy"]
    assert stats["total_loss"] == pytest.approx(expected, rel=1e-6)
    policy.on_train_batch_end({**stats, "kl": 100.0})
    policy.on_train_batch_end({**stats, "kl": 0.0})
    assert policy.coefficients.current["kl_coeff"] == 0.0


# Schedules.


@pytest.fixture(scope="module")
def scheduled():
    """Learning rate and entropy bonus that change with the timestep."""
    made = build(
        CategoricalPi,
        lr_schedule=[[0, 0.1], [100, 0.01], [200, 0.0]],
        entropy_coeff_schedule=[[50, 0.4], [150, 0.0]],
    )
    with made.policy:
        yield made


@pytest.mark.parametrize(
    ("timestep", "lr", "entropy_coeff"),
    [(0, 0.1, 0.4), (50, 0.055, 0.4), (100, 0.01, 0.2), (150, 0.005, 0.0), (1000, 0.0, 0.0)],
)
def test_learning_takes_the_coefficients_of_its_timestep(scheduled, timestep, lr, entropy_coeff):
    policy = scheduled.policy
    batch = batch_of(CategoricalPi, ROWS)
    policy.on_global_var_update({"timestep": timestep})
    before = policy.get_weights()
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert stats["lr"] == pytest.approx(lr, abs=1e-9)
    assert stats["entropy_coeff"] == pytest.approx(entropy_coeff, abs=1e-9)
    advantages = standardized(batch["advantages"])
    assert_stats(stats, scheduled.terms(batch, advantages, c_e=entropy_coeff))
    # The first step of Adam is as long as the learning rate for every weight that has a gradient.
    after = policy.get_weights()
    step = max(np.abs(after[name] - before[name]).max() for name in before)
    assert step == pytest.approx(lr, rel=1e-3, abs=1e-9)


def test_schedules_go_by_the_steps_that_were_explored(scheduled):
    policy = scheduled.policy
    obs = np.zeros((60, 3), np.float32)
    policy.compute_actions(obs, explore=True)
    policy.compute_actions(obs, explore=False)
    assert policy.global_timestep == 60
    stats = policy.learn_on_batch(batch_of(CategoricalPi, ROWS))["learner_stats"]
    # 0.4 falls by 0.004 a step from 50 on.
    assert stats["entropy_coeff"] == pytest.approx(0.36)


@pytest.mark.parametrize("way", ["loaded", "buffer", "gradients"])
def test_every_way_to_learn_follows_the_schedules(scheduled, way):
    policy = scheduled.policy
    batch = batch_of(CategoricalPi, ROWS)
    policy.load_batch_into_buffer(batch)
    policy.on_global_var_update({"timestep": 100})
    learn = {
        "loaded": policy.learn_on_loaded_batch,
        "buffer": policy.learn_on_buffer,
        "gradients": lambda: policy.compute_gradients(batch)[1],
    }
    stats = learn[way]()["learner_stats"]
    assert (stats["lr"], stats["entropy_coeff"]) == pytest.approx((0.01, 0.2))


def test_updates_reduce_the_loss_on_a_fixed_batch(discrete):
    batch = batch_of(CategoricalPi, ROWS)
    discrete.policy.load_batch_into_buffer(batch)
    first = stats_of(discrete.policy, batch)["total_loss"]
    discrete.policy.learn_on_buffer(num_sgd_iter=100)
    last = stats_of(discrete.policy, batch)
    assert last["total_loss"] < first - 0.05
