"""Policies that see stacked frames are sampled for, trained, evaluated and served, masks or not."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tfpolicy import load_policy
from tfpolicy.policies import policy_class
from tfpolicy.train.environments import Environments, make_vector_env
from tfpolicy.train.evaluation import evaluate
from tfpolicy.train.loop import Trainer
from tfpolicy.train.rollout import Rollout

FRAMES = 3


class Walk(gym.Env):
    """Five to eight steps, some of them truncated; an observation is (number of the step, noise).

    With a mask, exactly the legal actions are accepted, and at the end there are none.
    """

    action_space = gym.spaces.Discrete(3)

    def __init__(self, masked=False):
        self._masked = masked
        inner = gym.spaces.Box(0, 9, (2,))
        mask = gym.spaces.MultiBinary(3)
        masked_space = gym.spaces.Dict(action_mask=mask, observations=inner)
        self.observation_space = masked_space if masked else inner

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._length = int(self.np_random.integers(5, 9))
        self._step = 0
        return self._obs(), {}

    def step(self, action):
        assert not self._masked or self._mask[action]
        self._step += 1
        ended = self._step == self._length
        terminated = ended and self._length % 2 == 0
        return self._obs(), float(action), terminated, ended and not terminated, {}

    def _obs(self):
        obs = np.float32([self._step + 1, self.np_random.uniform()])
        if not self._masked:
            return obs
        self._mask = np.zeros(3, np.int8)
        if self._step < self._length:
            self._mask[self.np_random.permutation(3)[: self.np_random.integers(1, 4)]] = 1
        return {"action_mask": self._mask, "observations": obs}


gym.register("Walk-v0", entry_point=Walk)
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_action": True}
ATTENTION = {"use_attention": True, "attention_dim": 4, "attention_head_dim": 4}
# Whether actions are masked, and what else is set.
CASES = {
    "fully connected": (False, {"model": {}}),
    "masked": (True, {"model": {}}),
    "normalized, masked": (True, {"model": {}, "observation_filter": "MeanStdFilter"}),
    "lstm": (False, {"model": LSTM}),
    "lstm, masked": (True, {"model": LSTM}),
    "attention, masked": (True, {"model": ATTENTION}),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(scope="module")
def masked(case):
    return case[0]


@pytest.fixture(scope="module")
def policy(case, masked):
    env = Walk(masked)
    config = {"seed": 1, "gamma": 0.5, "train_batch_size": 48, "sgd_minibatch_size": 16}
    config.update(case[1])
    model = {"fcnet_hiddens": [8], "num_framestacks": FRAMES, "max_seq_len": 4}
    config["model"] = {**model, **config["model"]}
    with policy_class("ppo")(env.observation_space, env.action_space, config) as built:
        rng = np.random.default_rng(7)
        weights = built.get_weights()
        for name, weight in weights.items():
            is_count = name.endswith("/count")
            weights[name] = np.int64(9) if is_count else weight + rng.uniform(0, 1, weight.shape)
        built.set_weights(weights)
        yield built


def sampled(policy, masked, steps, blocks):
    env = make_vector_env("Walk-v0", 2, env_config={"masked": masked})
    try:
        rollout = Rollout(policy, Environments(env, seed=3))
        return [rollout.sample(steps) for _ in range(blocks)]
    finally:
        env.close()


def frames_of(batch, masked):
    """The observations and the windows over them, without masks."""
    obs, window = batch["obs"], batch["prev_n_obs"]
    return (obs["observations"], window["observations"]) if masked else (obs, window)


def test_the_window_holds_the_last_frames_of_the_episode_and_zeros_before(policy, masked):
    for batch in sampled(policy, masked, 7, 3):
        obs, window = frames_of(batch, masked)
        assert window.shape == (batch.count, FRAMES, 2)
        np.testing.assert_array_equal(window[:, -1], obs)
        expected = np.maximum(batch["t"][:, None] + [-1, 0, 1], 0)
        np.testing.assert_array_equal(window[:, :, 0], expected)
        if masked:
            rows = np.arange(batch.count)
            assert batch["obs"]["action_mask"][rows, batch["actions"]].all()


def test_the_loss_sees_what_acting_saw(policy, masked):
    batch = sampled(policy, masked, 11, 2)[1]
    views = {name: batch[name] for name in policy.acting_columns if name != "obs"}
    logp = policy.compute_log_likelihoods(batch["actions"], batch["obs"], **views)
    np.testing.assert_allclose(logp, batch["action_logp"], atol=1e-5)
    stats = policy.compute_gradients(batch)[1]["learner_stats"]
    # Before the first update the policy is still the one that acted.
    assert stats["kl"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("steps", [1, 3])
def test_beyond_a_fragment_the_value_is_that_of_the_next_window(policy, masked, steps):
    num_compared = 0
    batches = sampled(policy, masked, steps, 30 // steps)
    for batch, following in zip(batches, batches[1:], strict=False):
        for fragment in batch.split_by_episode():
            last, eps_id = fragment[-1:], fragment["eps_id"][0]
            same = (following["eps_id"] == eps_id) & (following["t"] == last["t"] + 1)
            if not last["dones"].any() and same.any():
                expected = last["rewards"] + 0.5 * following["vf_preds"][same]
                np.testing.assert_allclose(last["value_targets"], expected, rtol=1e-4, atol=1e-5)
                num_compared += 1
    assert num_compared > 5


def moved_on(window, row):
    return np.concatenate([window[:, 1:], row[:, None]], axis=1)


def test_the_end_of_a_time_limit_is_valued_by_its_own_last_frame(policy, masked):
    batch = sampled(policy, masked, 40, 1)[0]
    rows = np.flatnonzero(batch["truncateds"])
    assert len(rows)
    for row in rows:
        fragment = batch[row : row + 1]
        columns = {name: fragment[name] for name in policy.acting_columns}
        new_obs, window = fragment["new_obs"], fragment["prev_n_obs"]
        for name in [key for key in columns if key.startswith("state_in_")]:
            columns[name] = fragment[name.replace("_in_", "_out_")]
        if "prev_actions" in columns:
            columns["prev_actions"] = fragment["actions"]
        if masked:
            window = {name: moved_on(window[name], row) for name, row in new_obs.items()}
        else:
            window = moved_on(window, new_obs)
        value = policy.compute_values({**columns, "obs": new_obs, "prev_n_obs": window})
        expected = fragment["rewards"] + 0.5 * value
        np.testing.assert_allclose(fragment["value_targets"], expected, rtol=1e-4, atol=1e-5)


def test_exports_and_checkpoints_play_the_same_episodes(policy, masked, tmp_path):
    expected = evaluate(policy, Walk(masked), 4).returns
    version = policy.export_model(tmp_path / "saved")
    policy.save(tmp_path / "checkpoint")
    signature = tf.saved_model.load(str(version)).signatures["serving_default"]
    # Of what comes twice only that which something depends on (a9, a18).
    frames = {"obs_action_mask", "prev_n_obs_observations"} if masked else {"prev_n_obs"}
    others = {name for name in policy.acting_columns if name not in ("obs", "prev_n_obs")}
    assert set(signature.structured_input_signature[1]) == frames | others
    for path in (version, tmp_path / "checkpoint"):
        with load_policy(path) as served:
            np.testing.assert_array_equal(evaluate(served, Walk(masked), 4).returns, expected)


def test_training_goes_on_bit_for_bit_after_a_restart(tmp_path):
    def trainer():
        env = make_vector_env("Walk-v0", 2)
        model = {"fcnet_hiddens": [4], "num_framestacks": FRAMES}
        config = {"seed": 1, "model": model, "train_batch_size": 24, "sgd_minibatch_size": 8}
        spaces = env.single_observation_space, env.single_action_space
        return Trainer(policy_class("ppo")(*spaces, config), env, seed=5)

    going, resumed = trainer(), trainer()
    going.train_iteration()
    going.save(tmp_path / "checkpoint")
    assert resumed.restore(tmp_path / "checkpoint")
    for one in (going, resumed):
        one.train_iteration()
    for name, weights in going.policy.get_weights().items():
        np.testing.assert_array_equal(weights, resumed.policy.get_weights()[name])
    for one in (going, resumed):
        one.close()
