"""Policies whose observations say which actions are legal."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import Recurrent, small_policy

from tfpolicy.models import FullyConnected
from tfpolicy.served_policy import load_policy
from tfpolicy.spaces import flatten, leaf_spaces
from tfpolicy.view_requirement import ViewRequirement

S = gym.spaces
INNER = S.Box(-1, 1, (3,))
FIVE = S.Discrete(5, start=2)
OBS = S.Dict(action_mask=S.MultiBinary(5), observations=INNER)
NESTED = S.Dict(power=S.Box(0, 9, (2,)), then=S.Tuple([S.MultiDiscrete([2, 3])]), way=S.Discrete(4))
NESTED_OBS = S.Dict(
    action_mask=S.Dict(then=S.Tuple([S.Box(0, 1, (5,))]), way=S.MultiBinary(4)),
    observations=S.Dict(a=INNER, b=S.Discrete(3)),
)


def random_mask(rng, rows, n, dtype=np.int8):
    """At least one legal action a row, and often no more."""
    mask = rng.random((rows, n)) < rng.choice([0.0, 0.5], (rows, 1))
    mask[np.arange(rows), rng.integers(0, n, rows)] = True
    return mask.astype(dtype)


def observe(rows, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (rows, 3)).astype(np.float32)
    return {"action_mask": random_mask(rng, rows, 5), "observations": features}


def observe_nested(rows, seed=0):
    rng = np.random.default_rng(seed)
    choices = [random_mask(rng, rows, n, np.float32) for n in (2, 3)]
    return {
        "action_mask": {
            "then": (np.concatenate(choices, axis=1),),
            "way": random_mask(rng, rows, 4),
        },
        "observations": {
            "a": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
            "b": rng.integers(0, 3, rows),
        },
    }


def is_legal(obs, actions):
    return obs["action_mask"][np.arange(len(actions)), actions - 2] == 1


def is_legal_nested(obs, actions):
    rows, mask = np.arange(len(actions["way"])), obs["action_mask"]
    first, second = actions["then"][0].T
    choices = mask["then"][0]
    return (
        (choices[rows, first] == 1)
        & (choices[rows, 2 + second] == 1)
        & (mask["way"][rows, actions["way"]] == 1)
    )


def train_batch(policy, obs):
    actions, _, extras = policy.compute_actions(obs)
    rng = np.random.default_rng(0)
    rows = len(extras["action_logp"])
    targets = {
        name: rng.normal(0, 1, rows).astype(np.float32) for name in ("advantages", "value_targets")
    }
    return {"obs": obs, "actions": actions, **extras, **targets}


@pytest.fixture(scope="module")
def policy():
    with small_policy(obs_space=OBS, action_space=FIVE, entropy_coeff=0.01) as built:
        yield built


@pytest.fixture(scope="module")
def nested():
    with small_policy(obs_space=NESTED_OBS, action_space=NESTED) as built:
        yield built


def test_a_million_samples_never_take_a_masked_action(policy):
    for seed in range(10):
        obs = observe(100_000, seed)
        actions, _, extras = policy.compute_actions(obs)
        assert is_legal(obs, actions).all()
        assert np.isfinite(extras["action_logp"]).all()
    greedy, _, _ = policy.compute_actions(obs, explore=False)
    assert is_legal(obs, greedy).all()


def test_nested_samples_never_take_a_masked_action(nested):
    obs = observe_nested(100_000)
    for explore in (True, False):
        actions, _, extras = nested.compute_actions(obs, explore=explore)
        assert is_legal_nested(obs, actions).all()
        assert np.isfinite(extras["action_logp"]).all()


def test_every_legal_action_is_taken_as_often_as_its_logit_says(policy):
    obs = observe(1)
    obs["action_mask"][:] = [1, 0, 1, 0, 1]
    rows = {name: np.repeat(column, 20_000, axis=0) for name, column in obs.items()}
    actions, _, extras = policy.compute_actions(rows)
    shares = np.bincount(actions - 2, minlength=5) / 20_000
    logits = extras["action_dist_inputs"][0]
    np.testing.assert_allclose(logits[[1, 3]], -1e9)
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(shares, expected, atol=0.02)


def test_one_legal_action_leaves_everything_finite(policy):
    obs = observe(64)
    obs["action_mask"] = np.eye(5, dtype=np.int8)[np.arange(64) % 5]
    batch = train_batch(policy, obs)
    np.testing.assert_array_equal(batch["actions"], np.arange(64) % 5 + 2)
    np.testing.assert_array_equal(batch["action_logp"], np.zeros(64))
    gradients, result = policy.compute_gradients(batch)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    stats = result["learner_stats"]
    assert np.isfinite(list(stats.values())).all()
    assert stats["entropy"] == pytest.approx(0.0, abs=1e-6)
    assert stats["kl"] == pytest.approx(0.0, abs=1e-6)
    # Nothing is to be chosen, so only the values learn.
    named = dict(zip(policy.get_weights(), gradients, strict=True))
    assert np.abs(named["fc_out/kernel"]).max() == 0.0
    assert np.abs(named["value_out/kernel"]).max() > 0.0


@pytest.mark.parametrize(
    "algo, config",
    [
        ("ppo", {"kl_coeff": 1.0, "entropy_coeff": 0.01, "sgd_minibatch_size": 16}),
        ("ppo", {"kl_coeff": 1.0, "jit_compile": True, "sgd_minibatch_size": 16}),
        ("a2c", {"entropy_coeff": 0.5, "num_gpus": 2, "fake_gpus": True}),
        ("pg", {}),
    ],
    ids=["ppo", "compiled", "a2c on two towers", "pg"],
)
def test_learning_stays_finite_where_every_choice_has_one_legal_value(algo, config):
    obs, rows = observe_nested(64), np.arange(64)
    one_of = {n: np.eye(n)[rows % n] for n in (2, 3, 4)}
    obs["action_mask"]["then"] = (np.float32(np.concatenate([one_of[2], one_of[3]], axis=1)),)
    obs["action_mask"]["way"] = np.int8(one_of[4])
    config = {"lr": 0.1, "train_batch_size": 64, **config}
    with small_policy(algo, NESTED_OBS, NESTED, **config) as policy:
        batch = train_batch(policy, obs)
        policy.load_batch_into_buffer(batch)
        # Far from where the batch was sampled, so that no term is 0 but those of the choices.
        results = [policy.learn_on_buffer(num_sgd_iter=5), policy.learn_on_batch(batch)]
        gradients, result = policy.compute_gradients(batch)
        for stats in (r["learner_stats"] for r in (*results, result)):
            assert np.isfinite(list(stats.values())).all()
        assert all(np.isfinite(gradient).all() for gradient in gradients if gradient is not None)
        assert any(gradient.any() for gradient in gradients if gradient is not None)
        for explore in (True, False):
            actions, _, extras = policy.compute_actions(obs, explore=explore)
            np.testing.assert_array_equal(actions["way"], rows % 4)
            np.testing.assert_array_equal(actions["then"][0], np.stack([rows % 2, rows % 3], 1))
            # That of the two numbers alone: what must be chosen is chosen for certain.
            mean, log_std = np.split(extras["action_dist_inputs"][:, :4], 2, axis=1)
            z = (actions["power"] - mean) / np.exp(log_std)
            expected = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)
            np.testing.assert_allclose(extras["action_logp"], expected, rtol=1e-4, atol=1e-4)


def test_the_loss_sees_the_same_masked_logits_as_acting(policy):  # e16
    # An untouched policy's ratio is 1 and its KL is 0, and masked logits have no gradient.
    batch = train_batch(policy, observe(100))
    batch["advantages"][:] = 2.0
    stats = policy.compute_gradients(batch)[1]["learner_stats"]
    assert stats["kl"] == pytest.approx(0.0, abs=1e-9)
    again = policy.compute_log_likelihoods(batch["actions"], batch["obs"])
    np.testing.assert_allclose(again, batch["action_logp"], atol=1e-6)
    everything = {**batch["obs"], "action_mask": np.ones((100, 5), np.int8)}
    unmasked = policy.compute_log_likelihoods(batch["actions"], everything)
    assert (again >= unmasked).all() and (again > unmasked + 0.1).any()


def test_probabilities_of_masked_actions_are_zero_and_finite(policy):
    obs = observe(5)
    masked = obs["action_mask"].argmin(axis=1) + 2
    logp = policy.compute_log_likelihoods(masked, obs)
    np.testing.assert_allclose(logp, np.full(5, -1e9), rtol=1e-6)


def test_a_row_without_a_legal_action_is_named_before_anything_happens(policy):
    obs = observe(6)
    batch = train_batch(policy, obs)
    state = policy.get_state()
    obs["action_mask"][4] = 0
    message = "`obs_action_mask`: at least one of the 5 .* row 4"
    calls = [
        lambda: policy.compute_actions(obs),
        lambda: policy.compute_actions(obs, explore=False),
        lambda: policy.compute_actions_from_input_dict({"obs": obs}),
        lambda: policy.compute_log_likelihoods(batch["actions"], obs),
        lambda: policy.learn_on_batch(batch),
        lambda: policy.compute_gradients(batch),
        lambda: policy.load_batch_into_buffer(batch),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()
    single = {name: column[4] for name, column in obs.items()}
    with pytest.raises(ValueError, match="in row 0"):
        policy.compute_single_action(single)
    after = policy.get_state()
    assert after["random"] == state["random"]
    assert after["global_timestep"] == state["global_timestep"]
    for name, weight in after["weights"].items():
        np.testing.assert_array_equal(weight, state["weights"][name])
    # A state in which nothing can be done has a value all the same.
    assert np.isfinite(policy.compute_values({"obs": obs})).all()


def test_an_export_masks_too(nested, tmp_path):  # a18
    path = nested.export_model(tmp_path)
    obs = observe_nested(5000)
    with load_policy(path) as served:
        greedy, _, extras = served.compute_actions(obs)
        expected = nested.compute_actions(obs, explore=False)
        drawn, _, _ = served.compute_actions(obs, explore=True)
    assert is_legal_nested(obs, greedy).all() and is_legal_nested(obs, drawn).all()
    np.testing.assert_allclose(
        extras["action_dist_inputs"], expected[2]["action_dist_inputs"], atol=1e-6
    )
    np.testing.assert_array_equal(greedy["way"], expected[0]["way"])


def test_an_onnx_file_masks_too(nested, tmp_path):
    for package in ("tf2onnx", "onnx"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    path = nested.export_model(tmp_path, onnx=17) / "model.onnx"
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    obs = observe_nested(1000)
    names = leaf_spaces(NESTED_OBS, "obs")
    feeds = dict(zip(names, flatten(NESTED_OBS, obs), strict=True))
    outputs = [f"actions_{leaf}" for leaf in ("power", "then_0", "way")] + ["action_logp"]
    power, choices, way, logp = session.run(outputs, feeds)
    assert is_legal_nested(obs, {"then": (choices,), "way": way}).all()
    expected = nested.compute_actions(obs, explore=False)[2]["action_logp"]
    np.testing.assert_allclose(logp, expected, atol=1e-5)
    assert power.shape == (1000, 2)


def test_weights_go_to_h5_and_back(policy, tmp_path):
    before = policy.get_weights()
    policy.export_model_to_h5(tmp_path / "weights.h5")
    policy.set_weights({name: 0 * weight for name, weight in before.items()})
    policy.import_model_from_h5(tmp_path / "weights.h5")
    for name, weight in policy.get_weights().items():
        np.testing.assert_array_equal(weight, before[name])


class LookingBack(FullyConnected):
    """Reads the last two observations, and says what it was given."""

    def __init__(self, observation_space, *args):
        assert observation_space == INNER
        pair = S.Box(-1, 1, (6,))
        super().__init__(pair, *args)

    def view_requirements(self):
        return {"window": ViewRequirement("obs", INNER, "-1:0")}

    def __call__(self, columns):
        assert columns["obs"].shape[1:] == (3,)
        return super().__call__({"obs": tf.reshape(columns["window"], [-1, 6])})


def test_a_model_sees_past_observations_without_their_masks_under_any_names():
    model = {"fcnet_hiddens": [8], "custom_model": LookingBack}
    keys = {"action_mask_key": "legal", "observations_key": "board"}
    space = S.Dict(legal=S.MultiBinary(5), board=INNER)
    obs = observe(7)
    renamed = {"legal": obs["action_mask"], "board": obs["observations"]}
    window = {name: np.stack([column] * 2, axis=1) for name, column in renamed.items()}
    with small_policy("pg", space, FIVE, model={**model, **keys}) as policy:
        actions, _, extras = policy.compute_actions(renamed, window=window)
        assert is_legal(obs, actions).all()
        assert policy.view_requirements["window"].space == space
        other = {**window, "board": window["board"] + 0.5}
        changed = policy.compute_actions(renamed, window=other)[2]["action_dist_inputs"]
        legal = obs["action_mask"] == 1
        assert (changed != extras["action_dist_inputs"])[legal].all()


def test_padding_without_legal_actions_enters_nothing():
    # Sequences of 3 and 5 rows padded to 5: the mask of the padding is 0 everywhere, and its action
    # is 0, which the space does not have.
    space = S.Dict({**NESTED.spaces, "way": S.Discrete(4, start=2)})
    model = {"fcnet_hiddens": [4], "custom_model": Recurrent, "max_seq_len": 5}
    with small_policy(obs_space=NESTED_OBS, action_space=space, model=model) as policy:
        batch = train_batch(policy, observe_nested(8))
        batch["state_in_0"] = np.zeros((8, 4), np.float32)
        batch["seq_lens"] = np.array([3, 5], np.int32)
        gradients, result = policy.compute_gradients(batch)
        assert all(np.isfinite(gradient).all() for gradient in gradients)
        assert np.isfinite(list(result["learner_stats"].values())).all()
        batch["obs"]["action_mask"]["way"][6] = 0
        with pytest.raises(ValueError, match="`obs_action_mask_way`: .* row 6"):
            policy.learn_on_batch(batch)


def test_exploration_keeps_to_the_mask():  # e15
    obs = observe_nested(20_000)
    exploration = {"type": "EpsilonGreedy", "epsilon_schedule": 0.7}
    with small_policy("pg", NESTED_OBS, NESTED, exploration_config=exploration) as exploring:
        actions, _, extras = exploring.compute_actions(obs)
        assert is_legal_nested(obs, actions).all()
        assert np.isfinite(extras["action_logp"]).all()
