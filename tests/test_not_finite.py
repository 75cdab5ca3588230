"""NaN and infinity are refused before anything is applied, and the loss terms are named."""

import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, THREE, TINY, Regression, ppo_batch, regression_batch, small_policy

from tfpolicy.graph.towers import LossOutput

MINIBATCH = 8
NAN, INF = np.nan, np.inf


def ppo(**config):
    config = {"sgd_minibatch_size": MINIBATCH, "standardize_advantages": False, **config}
    return small_policy("ppo", **config)


@pytest.fixture(scope="module", params=[1, 2], ids=["one tower", "two towers"])
def policy(request):
    with ppo(num_gpus=request.param, fake_gpus=True) as made:
        made.number = request.param
        made.start = made.get_state()
        yield made


@pytest.fixture(autouse=True)
def _start_again(request):
    if "policy" in request.fixturenames:
        policy = request.getfixturevalue("policy")
        policy.set_state(policy.start)


def spoiled(rows, column, row, value=NAN):
    batch = ppo_batch(rows)
    batch[column][row] = value
    return batch


def assert_equal_states(found, expected):
    tf.nest.assert_same_structure(found, expected)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
    ("column", "value", "terms"),
    [
        ("advantages", NAN, ["total_loss=nan", "policy_loss=nan"]),
        ("advantages", INF, ["total_loss=", "policy_loss="]),
        ("value_targets", NAN, ["total_loss=nan", "vf_loss=nan"]),
        ("value_targets", -INF, ["total_loss=inf", "vf_loss=inf"]),
        # Finite, and still its square is not.
        ("value_targets", 1e30, ["total_loss=inf", "vf_loss=inf"]),
        ("action_dist_inputs", NAN, ["total_loss=nan", "kl=nan"]),
        ("obs", NAN, ["total_loss=nan", "policy_loss=nan", "vf_loss=nan", "entropy=nan"]),
        ("action_logp", NAN, ["total_loss=nan", "policy_loss=nan"]),
    ],
)
def test_a_batch_that_is_not_finite_names_the_loss_terms_and_changes_nothing(
    policy, column, value, terms
):  # j3
    batch = spoiled(11, column, 4, value)
    with pytest.raises(FloatingPointError, match="the update was not applied") as caught:
        policy.learn_on_batch(batch)
    for term in [*terms, "grad_gnorm="]:
        assert term in str(caught.value)
    # Terms that were finite are told as well, but as numbers.
    assert ("vf_loss=nan" in str(caught.value)) == ("vf_loss=nan" in terms)
    with pytest.raises(FloatingPointError):
        policy.compute_gradients(batch)
    assert_equal_states(policy.get_state(), policy.start)


def test_after_a_refused_batch_learning_goes_on_as_if_it_had_not_been_there(policy):
    expected = policy.learn_on_batch(ppo_batch(9))
    weights = policy.get_weights()
    policy.set_state(policy.start)
    with pytest.raises(FloatingPointError):
        policy.learn_on_batch(spoiled(9, "advantages", 0))
    assert policy.learn_on_batch(ppo_batch(9)) == expected
    assert_equal_states(policy.get_weights(), weights)


def test_an_only_row_that_is_not_finite_is_refused_on_idle_towers_too(policy):
    with pytest.raises(FloatingPointError):
        policy.learn_on_batch(spoiled(1, "advantages", 0))
    assert_equal_states(policy.get_state(), policy.start)


def test_only_the_loaded_minibatch_that_is_not_finite_is_refused(policy):
    # Row 19 is in the third minibatch of 8.
    size = MINIBATCH // policy.number
    policy.load_batch_into_buffer(spoiled(32, "advantages", 19))
    policy.learn_on_loaded_batch(0)
    before = policy.get_state()
    with pytest.raises(FloatingPointError, match="policy_loss=nan"):
        policy.learn_on_loaded_batch(2 * size)
    assert_equal_states(policy.get_state(), before)
    policy.learn_on_loaded_batch(3 * size)


@pytest.mark.parametrize("bad_row", [0, 19, 31])
def test_learning_on_the_buffer_applies_what_came_before_a_bad_minibatch_and_nothing_after(
    policy, bad_row
):
    size = MINIBATCH // policy.number
    policy.load_batch_into_buffer(spoiled(32, "advantages", bad_row))
    with pytest.raises(FloatingPointError, match="policy_loss=nan") as caught:
        policy.learn_on_buffer(num_sgd_iter=3, shuffle=False)
    # The terms are those of the bad minibatch, not sums with others.
    entropy = float(str(caught.value).split("entropy=")[1].split(",")[0])
    assert entropy == pytest.approx(np.log(3), abs=0.01)
    found = policy.get_weights()
    policy.set_state(policy.start)
    for minibatch in range(bad_row // MINIBATCH):
        policy.learn_on_loaded_batch(minibatch * size)
    for name, weight in policy.get_weights().items():
        np.testing.assert_allclose(found[name], weight, rtol=0, atol=1e-7, err_msg=name)
    if bad_row < MINIBATCH:
        assert_equal_states(found, policy.start["weights"])


def test_the_buffer_can_be_learned_from_again_once_it_holds_a_good_batch(policy):
    policy.load_batch_into_buffer(spoiled(16, "advantages", 3))
    with pytest.raises(FloatingPointError):
        policy.learn_on_buffer(1)
    policy.load_batch_into_buffer(ppo_batch(16))
    policy.set_state(policy.start)
    found = policy.learn_on_buffer(1)
    weights = policy.get_weights()
    policy.set_state(policy.start)
    assert policy.learn_on_buffer(1) == found
    assert_equal_states(policy.get_weights(), weights)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_gradients_from_outside_are_checked_before_any_is_applied(policy, value):
    gradients, _ = policy.compute_gradients(ppo_batch(8))
    gradients[-1] = np.full_like(gradients[-1], value)
    with pytest.raises(FloatingPointError, match="Gradient of value_out/bias is not finite"):
        policy.apply_gradients(gradients)
    assert_equal_states(policy.get_state(), policy.start)


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("value", [NAN])
def test_acting_on_nan_names_the_rows_and_takes_no_seed_and_no_timestep(policy, explore, value):
    obs = np.zeros((4, 4), np.float32)
    obs[[1, 3], 2] = value
    with pytest.raises(FloatingPointError, match=r"rows \[1, 3\]; input 0 holds NaN"):
        policy.compute_actions(obs, explore=explore)
    with pytest.raises(FloatingPointError, match=r"rows \[0\]"):
        policy.compute_single_action(obs[1], explore=explore)
    assert_equal_states(policy.get_state(), policy.start)


@pytest.mark.parametrize("explore", [True, False])
def test_weights_that_are_not_finite_are_found_when_acting(policy, explore):
    # A state is taken as it is: one may want to look into what has gone wrong.
    state = policy.get_state()
    state["weights"]["fc_out/bias"][1] = NAN
    policy.set_state(state)
    with pytest.raises(FloatingPointError, match=r"rows \[0, 1\]; the inputs hold no NaN"):
        policy.compute_actions(np.zeros((2, 4), np.float32), explore=explore)


class Rooted(Regression):
    """A loss that is finite where its gradient, 0.5 / sqrt(0) · 0, is NaN."""

    def loss(self, model, dist_class, train_batch):
        zero = model(train_batch).vf_preds * train_batch["rewards"]
        loss = train_batch.mean(tf.sqrt(zero))
        return LossOutput(loss, {"root": loss})


def test_a_gradient_that_is_not_finite_is_refused_though_the_loss_is():
    with Rooted(OBS, THREE, {"model": TINY, "seed": 1}) as policy:
        start = policy.get_state()
        batch = {**regression_batch(4), "rewards": np.zeros(4)}
        with pytest.raises(FloatingPointError, match="root=0, grad_gnorm=nan"):
            policy.learn_on_batch(batch)
        policy.load_batch_into_buffer(batch)
        with pytest.raises(FloatingPointError, match="root=0, grad_gnorm=nan"):
            policy.learn_on_buffer()
        found = policy.get_state()
        assert_equal_states({**found, "random": 0}, {**start, "random": 0})


@pytest.mark.parametrize("value", [NAN, INF, 1e300])  # Float32 has no 1e300.
def test_weights_that_are_not_finite_are_refused_and_none_is_assigned(policy, value):
    weights = policy.get_weights()
    spoiled = {name: np.float64(array) + 1.0 for name, array in weights.items()}
    spoiled["value_out/kernel"][3] = value
    message = "value_out/kernel: 1 of 8 values are not finite .`check_numerics`"
    with pytest.raises(ValueError, match=message):
        policy.set_weights(spoiled)
    with pytest.raises(ValueError, match=message):
        policy.import_rllib_weights({f"default_policy/{k}": v for k, v in spoiled.items()})
    assert_equal_states(policy.get_weights(), weights)


def test_the_check_can_be_turned_off():
    config = {"model": TINY, "seed": 1, "check_numerics": False}
    with Regression(OBS, THREE, config) as policy:
        batch = regression_batch(4)
        batch["rewards"][2] = NAN
        gradients, _ = policy.compute_gradients(batch)
        policy.apply_gradients(gradients)
        weights = policy.get_weights()
        assert np.isnan(weights["value_out/kernel"]).all()
        policy.set_weights(weights)
        assert np.isnan(policy.learn_on_batch(batch)["learner_stats"]["vf_loss"])
        obs = np.full((1, 4), NAN, np.float32)
        _, _, extras = policy.compute_actions(obs, explore=False)
        assert np.isnan(extras["action_logp"]).all()
