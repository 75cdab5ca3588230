"""A policy that normalizes observations and one that does not, and what NumPy makes of them."""

import gymnasium as gym
import numpy as np
from small_policies import small_policy

S = gym.spaces
FILTER = {"observation_filter": "MeanStdFilter"}
MOMENTS = "observation_filter/"
HEAD = {"fc_out/kernel": np.random.default_rng(0).normal(0, 1, (8, 3)).astype(np.float32)}
# Of float32; with statistics from after the batch it would be 0.01 and more.
NO_KL = 1e-6
OBS_OF_ANY_SIZE = S.Box(-np.inf, np.inf, (4,))


def observe(rows, seed=0):
    """Observations of four very different scales, the last a constant."""
    rng = np.random.default_rng(seed)
    obs = rng.normal([1000, 0, -3, 0], [100, 1e-3, 2, 0], (rows, 4))
    return (obs + [0, 0, 0, 0.1]).astype(np.float32)


def normalize(obs, seen, clip=10.0):
    seen = np.asarray(seen, np.float64)
    std = seen.std(axis=0)
    std[std < 1e-8] = 1.0
    return np.clip((obs - seen.mean(axis=0)) / std, -clip, clip).astype(np.float32)


def act(policy, obs, seed=0):
    """What PPO learns from, as the policy itself collects it."""
    rng = np.random.default_rng(seed)
    actions, _, extras = policy.compute_actions(obs)
    targets = rng.normal(0, 1, (2, len(actions))).astype(np.float32)
    return {
        "obs": obs,
        "actions": actions,
        **extras,
        "advantages": targets[0],
        "value_targets": targets[1],
    }


def moments(policy):
    weights = policy.get_weights()
    return {name: value for name, value in weights.items() if name.startswith(MOMENTS)}


def assert_moments(policy, *batches):
    rows = np.concatenate(batches).astype(np.float64)
    found = moments(policy)
    assert list(found) == [f"{MOMENTS}count", f"{MOMENTS}obs/mean", f"{MOMENTS}obs/variance"]
    assert found[f"{MOMENTS}count"] == len(rows)
    np.testing.assert_allclose(found[f"{MOMENTS}obs/mean"], rows.mean(axis=0), 1e-12, 1e-12)
    np.testing.assert_allclose(found[f"{MOMENTS}obs/variance"], rows.var(axis=0), 1e-12, 1e-12)


def assert_same(found, expected, rtol=0.0, atol=0.0):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol, atol, err_msg=name)


class Pair:
    """A policy with a filter and one without, which share their other weights."""

    def __init__(self, **config):
        self.filtered = small_policy(sgd_minibatch_size=32, **FILTER, **config)
        self.plain = small_policy(sgd_minibatch_size=32, **config)
        for policy in (self.filtered, self.plain):
            # From the start what it does depends on what it sees.
            policy.set_weights({**policy.get_weights(), **HEAD})
        self._start, self._plain_start = self.filtered.get_state(), self.plain.get_state()

    def close(self):
        self.filtered.close()
        self.plain.close()

    def reset(self, *seen):
        self.filtered.set_state(self._start)
        self.plain.set_state(self._plain_start)
        for rows in seen:
            self.filtered.update_observation_filter({"obs": rows})
        return self
