"""Families of distributions on demand, from the config to the environment's action."""

import gymnasium as gym
import numpy as np
import pytest
from small_policies import small_policy

from tfpolicy.served_policy import load_policy

S = gym.spaces
SHARES = S.Box(0, 1, (4,))


def model(**settings):
    return {"fcnet_hiddens": [8], **settings}


def observe(rows):
    return np.random.default_rng(0).uniform(-1, 1, (rows, 4)).astype(np.float32)


def learned_from(policy, rows=40):
    actions, _, extras = policy.compute_actions(observe(rows))
    logp = policy.compute_log_likelihoods(actions, observe(rows))
    np.testing.assert_allclose(logp, extras["action_logp"], rtol=1e-4, atol=1e-4)
    batch = {"obs": observe(rows), "actions": actions, **extras}
    for name in ("advantages", "value_targets"):
        batch[name] = np.linspace(-1, 1, rows, dtype=np.float32)
    return policy.learn_on_batch(batch)["learner_stats"]


@pytest.mark.parametrize(
    "settings",
    [
        {"custom_action_dist": "dirichlet"},
        {
            "custom_action_dist": "gumbel_softmax",
            "custom_action_dist_config": {"temperature": 0.7},
        },
    ],
    ids=["dirichlet", "gumbel_softmax"],
)
def test_shares_sum_to_one_in_acting_and_in_the_export(settings, tmp_path):
    with small_policy(action_space=SHARES, model=model(**settings)) as policy:
        assert np.isfinite(list(learned_from(policy).values())).all()
        for explore in (False, True):
            action, _, _ = policy.compute_single_action(observe(1)[0], explore=explore)
            assert SHARES.contains(action)
            assert action.sum() == pytest.approx(1.0, abs=1e-5)
        greedy = policy.compute_single_action(observe(1)[0], explore=False)[0]
        with load_policy(policy.export_model(tmp_path)) as served:
            assert served.compute_single_action(observe(1)[0])[0] == pytest.approx(greedy, abs=1e-6)
            drawn = served.compute_actions(observe(100), explore=True)[0]
    np.testing.assert_allclose(drawn.sum(axis=1), 1.0, atol=1e-5)
    assert (drawn >= 0).all() and drawn.std() > 0.05


def test_the_temperature_of_the_config_is_that_of_acting_and_learning():
    policies = [
        small_policy("pg", action_space=S.Discrete(3), model=model(custom_action_dist_config=each))
        for each in ({}, {"temperature": 0.25})
    ]
    plain, cold = policies
    weights = plain.get_weights()
    weights["fc_out/bias"] = np.array([0.0, 0.5, 1.0], np.float32)
    for policy in policies:
        policy.set_weights(weights)
    logits = plain.compute_actions(observe(1), explore=False)[2]["action_dist_inputs"][0]
    for policy, temperature in zip(policies, (1.0, 0.25), strict=True):
        found = [policy.compute_log_likelihoods([a], observe(1))[0] for a in range(3)]
        scaled = logits / temperature
        np.testing.assert_allclose(found, scaled - np.log(np.exp(scaled).sum()), rtol=1e-5)
        policy.close()


@pytest.mark.parametrize("family", ["diag_gaussian", "squashed_gaussian"])
def test_free_log_std_fits_gaussians(family):
    settings = model(custom_action_dist=family, free_log_std=True)
    with small_policy(action_space=S.Box(-1, 1, (2,)), model=settings) as policy:
        assert np.isfinite(list(learned_from(policy).values())).all()
        inputs = policy.compute_actions(observe(5))[2]["action_dist_inputs"]
        # Whatever the observation.
        assert (inputs[:, 2:] == inputs[0, 2:]).all() and (inputs[1:, :2] != inputs[0, :2]).all()


@pytest.mark.parametrize(
    "space, settings, message",
    [
        (S.Discrete(2), {"free_log_std": True}, "`free_log_std` needs .* these are Categorical"),
        (
            S.Dict(a=S.Box(-1, 1, (2,)), b=S.Box(-1, 1, (1,))),
            {"free_log_std": True},
            "Gaussian actions of one Box, but these are DiagGaussian, DiagGaussian over Dict",
        ),
        (
            S.Box(-1, 1, (2,)),
            {"free_log_std": True, "custom_action_dist": "beta"},
            "these are Beta over Box",
        ),
        (
            S.Discrete(2),
            {"custom_action_dist_config": {"temprature": 2}},
            "Unknown option 'temprature' of Categorical; known: temperature",
        ),
        (S.Box(0, 1, (4, 2)), {"custom_action_dist": "dirichlet"}, r"Dirichlet expects .* \(n,\)"),
    ],
)
def test_what_does_not_fit_is_refused(space, settings, message):
    with pytest.raises(ValueError, match=message):
        small_policy(action_space=space, model=model(**settings))
