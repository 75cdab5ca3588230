"""The policy interface on every kind of space, and what bad input gets."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, THREE, TINY, Regression, ppo_batch, regression_batch, small_policy

from tfpolicy.graph.towers import LossOutput
from tfpolicy.models import Model, ModelOutput
from tfpolicy.ops.masking import mask_logits
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.spaces import flatten, leaf_spaces, map_leaves, normalized_space
from tfpolicy.view_requirement import ViewRequirement

S = gym.spaces
INF = np.inf
NESTED = S.Dict(
    {
        "velocity": S.Box(-INF, INF, (2,), np.float64),
        "position": S.Box(-1, 1, (3,)),
        "inner": S.Tuple((S.Discrete(3, start=5), S.MultiBinary(2))),
    }
)
# Every kind of observation is paired with a kind of action.
SPACES = {
    "float box, discrete": (OBS, S.Discrete(3, start=-1)),
    "image, finite box": (
        S.Box(0, 255, (4, 3, 2), np.uint8),
        S.Box(np.float32([-2, 0, 1]), np.float32([5, 0.1, 1001])),
    ),
    "float64 box, infinite box": (
        S.Box(-INF, INF, (2, 2), np.float64),
        S.Box(-INF, INF, (2,), np.float64),
    ),
    "discrete, half-infinite box": (
        S.Discrete(5, start=2),
        S.Box(np.float32([-INF, 0, -3]), np.float32([2, INF, 4])),
    ),
    "multi-discrete, integer box": (
        S.MultiDiscrete([3, 4], start=[1, -2]),
        S.Box(np.int8([-1, 2]), np.int8([1, 7]), dtype=np.int8),
    ),
    "multi-binary, multi-discrete": (S.MultiBinary(4), S.MultiDiscrete([2, 3], start=[4, 0])),
    "dict, multi-binary": (NESTED, S.MultiBinary(3)),
    "tuple, finite float64 box": (
        S.Tuple((S.Discrete(4), S.Box(0, 1, (2,)), S.Box(-9, 9, (), np.int32))),
        S.Box(-3, 4, (2, 2), np.float64),
    ),
}


def draw(space, rows, seed=0):
    """A batch of observations in the structure of the space."""
    space = copy.deepcopy(space)
    space.seed(seed)
    samples = [flatten(space, space.sample()) for _ in range(rows)]
    columns = iter([np.stack(column) for column in zip(*samples, strict=True)])
    return map_leaves(lambda leaf: next(columns).astype(leaf.dtype), space)


def rows_of(space, batch, index):
    return map_leaves(lambda _, column: column[index], space, batch)


def assert_equal(found, expected):
    tf.nest.assert_same_structure(found, expected)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


class Made:
    """A policy and its starting state."""

    def __init__(self, policy):
        self.policy = policy
        self.start = policy.get_state()

    def assert_unchanged(self):
        assert_equal(self.policy.get_state(), self.start)


@pytest.fixture(scope="module")
def policies():
    """One policy of each pair of spaces, built when first asked for."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = Made(small_policy("ppo", *SPACES[name]))
        made[name].policy.set_state(made[name].start)
        return made[name]

    yield get
    for each in made.values():
        each.policy.close()


@pytest.fixture(params=SPACES)
def policy(request, policies):
    return policies(request.param).policy


@pytest.fixture
def plain(policies):
    """The policy on a float Box of 4 and 3 discrete actions -1, 0, 1."""
    return policies("float box, discrete")


def trajectory(policy, rows, seed=0):
    """Random steps of one episode that goes on, acted by the policy."""
    obs = draw(policy.observation_space, rows + 1, seed)
    now = rows_of(policy.observation_space, obs, slice(0, rows))
    actions, _, extras = policy.compute_actions(now)
    return SampleBatch(
        {
            "obs": now,
            "new_obs": rows_of(policy.observation_space, obs, slice(1, rows + 1)),
            "actions": actions,
            "rewards": np.random.default_rng(seed).normal(size=rows),
            "terminateds": np.zeros(rows, bool),
            "truncateds": np.zeros(rows, bool),
            **extras,
        }
    )


# Acting, on every kind of space.


@pytest.mark.parametrize("rows", [1, 4, 0])
@pytest.mark.parametrize("explore", [True, False])
def test_actions_and_what_belongs_to_them_lead_with_the_batch(policy, rows, explore):
    obs = rows_of(policy.observation_space, draw(policy.observation_space, 4), slice(0, rows))
    actions, states, extras = policy.compute_actions(obs, explore=explore)
    own_space = normalized_space(policy.action_space)
    assert actions.shape == (rows, *own_space.shape)
    # Float actions are float32 inside the policy, whatever the environment takes.
    kind = np.dtype(np.float32) if own_space.dtype.kind == "f" else own_space.dtype
    assert actions.dtype == kind
    assert states == []
    assert {name: (value.shape, value.dtype) for name, value in extras.items()} == {
        "action_dist_inputs": ((rows, policy.dist_class.num_inputs), np.float32),
        "action_logp": ((rows,), np.float32),
        "action_prob": ((rows,), np.float32),
        "vf_preds": ((rows,), np.float32),
    }
    np.testing.assert_allclose(extras["action_prob"], np.exp(extras["action_logp"]), rtol=1e-6)


def test_without_exploration_the_mode_is_taken_bit_for_bit_with_its_true_log_prob(policy):  # j11
    obs = draw(policy.observation_space, 5)
    before = policy.get_state()
    first, second = (policy.compute_actions(obs, explore=False) for _ in range(2))
    assert_equal(first, second)
    actions, _, extras = first
    assert_equal(policy.compute_log_likelihoods(actions, obs), extras["action_logp"])
    # Evaluation moves neither seeds nor schedules.
    assert_equal(policy.get_state(), before)
    # No action that exploring draws is likelier.
    for _ in range(20):
        drawn, _, _ = policy.compute_actions(obs, explore=True)
        logp = policy.compute_log_likelihoods(drawn, obs)
        assert (logp <= extras["action_logp"] + 1e-5).all()


def test_exploring_tells_the_log_prob_of_the_action_it_returns(policy):  # e7
    obs = draw(policy.observation_space, 6)
    draws = [policy.compute_actions(obs) for _ in range(3)]
    for actions, _, extras in draws:
        found = policy.compute_log_likelihoods(actions, obs)
        np.testing.assert_allclose(found, extras["action_logp"], rtol=1e-4, atol=1e-5)
    assert any((draws[0][0] != actions).any() for actions, _, _ in draws[1:])
    assert policy.global_timestep == 18


def test_a_single_action_is_in_the_environments_space_and_dtype(policy):
    space = policy.observation_space
    obs = draw(space, 10)
    for explore in (True, False):
        for index in range(10):
            row = rows_of(space, obs, index)
            action, states, extras = policy.compute_single_action(row, explore=explore)
            assert policy.action_space.contains(action)
            assert np.asarray(action).dtype == policy.action_space.dtype
            assert states == [] and extras["action_dist_inputs"].ndim == 1
            assert extras["action_logp"].shape == extras["vf_preds"].shape == ()


def test_a_single_action_is_the_environments_form_of_a_batch_of_one(policy):
    obs = draw(policy.observation_space, 1)
    row = rows_of(policy.observation_space, obs, 0)
    single, _, extras = policy.compute_single_action(row, explore=False, unsquash_actions=True)
    own, _, batched = policy.compute_actions(obs, explore=False)
    assert_equal(extras, {name: value[0] for name, value in batched.items()})
    found = policy.compute_log_likelihoods(single[None], obs, actions_normalized=False)
    np.testing.assert_allclose(found, batched["action_logp"], rtol=1e-3, atol=1e-4)
    assert own.shape[1:] == np.shape(single)


def test_observations_are_taken_as_batches_and_as_lists_of_rows_alike(policy):  # j10
    space = policy.observation_space
    obs = draw(space, 3)
    expected, _, extras = policy.compute_actions(obs, explore=False)
    for given in (
        [rows_of(space, obs, index) for index in range(3)],
        map_leaves(lambda _, column: column.tolist(), space, obs),
        map_leaves(lambda _, column: tf.constant(column), space, obs),
    ):
        actions, _, found = policy.compute_actions(given, explore=False)
        assert_equal((actions, found), (expected, extras))
        assert_equal(policy.compute_log_likelihoods(actions, given), extras["action_logp"])
        assert_equal(policy.compute_values({"obs": given}), extras["vf_preds"])
    by_name = policy.compute_actions_from_input_dict({"obs": obs}, explore=False)
    assert_equal(by_name, (expected, [], extras))


def test_the_order_of_keys_in_an_observation_does_not_matter(policies):  # e21
    policy = policies("dict, multi-binary").policy
    obs = draw(NESTED, 3)
    turned = {name: obs[name] for name in reversed(obs)}
    assert list(turned) != list(obs)
    assert_equal(
        policy.compute_actions(turned, explore=False), policy.compute_actions(obs, explore=False)
    )


# Learning, on every kind of space.


def test_learning_sees_observations_and_actions_as_acting_did(policy):  # e22, e31
    # KL and the clipping would not be 0 before the first step if anything differed.
    batch = policy.postprocess_trajectory(trajectory(policy, 8))
    policy.load_batch_into_buffer(batch)
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert abs(stats["kl"]) < 1e-5
    # E[-A] of standardised advantages, since every ratio is 1.
    assert abs(stats["policy_loss"]) < 1e-4
    assert policy.learn_on_loaded_batch()["num_rows"] == 8


def test_learning_changes_every_weight_and_not_the_callers_batch(policy):
    batch = dict(policy.postprocess_trajectory(trajectory(policy, 9)))
    kept = copy.deepcopy(batch)
    before = policy.get_weights()
    result = policy.learn_on_batch(batch)
    policy.load_batch_into_buffer(batch)
    policy.learn_on_buffer(2)
    assert_equal(batch, kept)
    assert result["num_rows"] == 9 and result["learner_stats"]["grad_gnorm"] > 0
    assert all((before[name] != value).any() for name, value in policy.get_weights().items())


def test_columns_are_learned_from_also_as_lists_and_wider_floats(policy):
    batch = dict(policy.postprocess_trajectory(trajectory(policy, 5)))
    expected, _ = policy.compute_gradients(batch)
    batch["obs"] = map_leaves(
        lambda _, column: column.tolist(), policy.observation_space, batch["obs"]
    )
    batch.update(
        {name: np.float64(batch[name]) for name in ("advantages", "value_targets", "action_logp")}
    )
    found, _ = policy.compute_gradients(batch)
    for first, second in zip(found, expected, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


def test_a_restored_policy_goes_on_bit_for_bit(policy):
    batch = policy.postprocess_trajectory(trajectory(policy, 8))
    policy.learn_on_batch(batch)
    state = policy.get_state()

    def go_on():
        policy.load_batch_into_buffer(batch)
        return [policy.compute_actions(batch["obs"]), policy.learn_on_buffer(2), policy.get_state()]

    expected = go_on()
    policy.set_state(state)
    assert_equal(go_on(), expected)


def test_only_what_is_read_is_asked_for_beside_what_is_always_kept(policy):  # d6
    views = policy.view_requirements
    kept = {
        "obs", "actions", "rewards", "terminateds", "truncateds", "infos", "eps_id", "unroll_id",
        "agent_index", "t",
    }  # fmt: skip
    read = {"new_obs", "action_dist_inputs", "action_logp", "vf_preds"}
    assert set(views) == kept | read
    assert [name for name, view in views.items() if view.used_for_compute_actions] == ["obs"]
    trained = {name for name, view in views.items() if view.used_for_training}
    assert trained == read | {"obs", "actions", "rewards", "terminateds", "truncateds"}
    assert policy.acting_columns == ("obs",)


# Between the policy's actions and the environment's.


def test_dimensions_without_two_finite_bounds_stay_as_they_are(policies):  # e1
    for name, scaled in (
        ("float64 box, infinite box", [False, False]),
        ("discrete, half-infinite box", [False, False, True]),
    ):
        policy = policies(name).policy
        space = policy.action_space
        for index in range(10):
            obs = rows_of(policy.observation_space, draw(policy.observation_space, 10), index)
            seeds = policy.get_state()
            action, _, _ = policy.compute_single_action(obs)
            policy.set_state(seeds)
            own, _, _ = policy.compute_single_action(obs, unsquash_actions=False)
            expected = np.clip(own, space.low, space.high)
            np.testing.assert_array_equal(action[~np.array(scaled)], expected[~np.array(scaled)])


def test_arguments_overrule_the_config_about_unsquashing_and_clipping(policies):  # e4
    made = policies("image, finite box")
    policy, low, high = made.policy, *(made.policy.action_space.low, made.policy.action_space.high)
    obs = draw(policy.observation_space, 1)
    row = obs[0]
    own = policy.compute_actions(obs, explore=False)[0][0]

    def act(**options):
        return policy.compute_single_action(row, explore=False, **options)[0]

    unsquashed = np.clip(low + (own + 1) / 2 * (high - low), low, high)
    np.testing.assert_allclose(act(), unsquashed, rtol=1e-5)
    np.testing.assert_allclose(act(clip_actions=True), unsquashed, rtol=1e-5)
    np.testing.assert_array_equal(act(unsquash_actions=False), own)
    clipped = np.clip(own, low, high)
    np.testing.assert_array_equal(act(unsquash_actions=False, clip_actions=True), clipped)


@pytest.fixture(scope="module")
def unscaled():
    """Acts in the environment's own space, and does not explore by default."""
    config = {"normalize_actions": False, "clip_actions": True, "explore": False}
    with small_policy("pg", OBS, S.Box(-2, 5, (2,)), **config) as policy:
        yield policy


def test_without_normalizing_actions_are_the_environments_own(unscaled):
    obs, space = ppo_batch(1)["obs"], unscaled.action_space
    assert unscaled.dist_class.space == space
    own, _, extras = unscaled.compute_actions(obs, explore=True)
    found = unscaled.compute_log_likelihoods(own, obs, actions_normalized=False)
    np.testing.assert_allclose(found, extras["action_logp"], rtol=1e-4, atol=1e-5)

    def draws(**options):
        return [
            unscaled.compute_single_action(obs[0], explore=True, **options)[0] for _ in range(100)
        ]

    assert all(space.contains(action) for action in draws())
    assert any(not space.contains(action) for action in draws(clip_actions=False))


def test_a_policy_may_act_without_exploring_by_default(unscaled):
    obs, timestep = ppo_batch(30)["obs"], unscaled.global_timestep
    found = unscaled.compute_actions(obs)
    assert_equal(found, unscaled.compute_actions(obs, explore=False))
    assert unscaled.global_timestep == timestep
    assert (unscaled.compute_actions(obs, explore=True)[0] != found[0]).any()


# Seeds.


@pytest.mark.parametrize(
    "other",
    [
        {},
        {
            "num_gpus": 2,
            "fake_gpus": True,
            "num_multi_gpu_tower_stacks": 3,
            "grad_clip": None,
            "lr_schedule": [[0, 1e-3], [9, 0]],
        },
    ],
    ids=["the same", "more towers, buffers and operations"],
)
def test_a_seed_decides_weights_and_actions_whatever_else_is_in_the_graph(plain, other):
    # e27, e28, j12
    with small_policy("ppo", OBS, S.Discrete(3, start=-1), **other) as policy:
        assert_equal(policy.get_weights(), plain.policy.get_weights())
        obs = ppo_batch(20)["obs"]
        for _ in range(2):
            actions, _, extras = policy.compute_actions(obs)
            expected, _, expected_extras = plain.policy.compute_actions(obs)
            np.testing.assert_array_equal(actions, expected)
            np.testing.assert_array_equal(extras["action_logp"], expected_extras["action_logp"])


def test_other_losses_have_the_same_weights_and_actions_at_first(plain):  # e28
    with Regression(OBS, S.Discrete(3, start=-1), {"model": TINY, "seed": 1}) as policy:
        assert_equal(policy.get_weights(), plain.policy.get_weights())
        obs = ppo_batch(20)["obs"]
        np.testing.assert_array_equal(
            policy.compute_actions(obs)[0], plain.policy.compute_actions(obs)[0]
        )


def test_another_seed_gives_other_weights_and_no_global_seed_is_touched(plain):
    np.random.seed(3)
    tf.random.set_seed(3)
    expected = np.random.random(), tf.random.uniform([]).numpy()
    np.random.seed(3)
    tf.random.set_seed(3)
    with Regression(OBS, S.Discrete(3, start=-1), {"model": TINY, "seed": 2}) as policy:
        policy.learn_on_batch(regression_batch(4))
        policy.compute_actions(OBS3)
        assert (np.random.random(), tf.random.uniform([]).numpy()) == expected
        weights = plain.policy.get_weights()
        kernels = {name for name in weights if "kernel" in name}
        assert all((weights[name] != policy.get_weights()[name]).any() for name in kernels)


def test_policies_without_a_seed_differ_can_be_continued_and_say_to_load_before_learning():
    config = {"model": TINY}
    first, second = (Regression(OBS, THREE, config) for _ in range(2))
    with first, second:
        assert (first.get_weights()["fc_1/kernel"] != second.get_weights()["fc_1/kernel"]).any()
        second.set_state(first.get_state())
        obs = ppo_batch(50)["obs"]
        assert_equal(second.compute_actions(obs), first.compute_actions(obs))
        # Neither was ever loaded.
        assert second.get_num_samples_loaded_into_buffer() == 0
        for learn in (second.learn_on_loaded_batch, second.learn_on_buffer):  # j6
            with pytest.raises(ValueError, match="Buffer 0 is empty: call `load_batch_into_buf"):
                learn()


def test_the_sampled_actions_of_two_calls_differ_and_rows_are_independent(plain):
    obs = np.zeros((400, 4), np.float32)
    first, second = (plain.policy.compute_actions(obs)[0] for _ in range(2))
    assert (first != second).mean() > 0.5
    for actions in (first, second):
        counts = np.unique(actions, return_counts=True)[1]
        # Nearly uniform at first: 133 each, five standard deviations are 47.
        assert len(counts) == 3 and (np.abs(counts - 400 / 3) < 47).all()


# Timesteps and coefficients.


def test_exploring_counts_timesteps_and_the_trainer_may_set_them(plain):
    policy = plain.policy
    obs = ppo_batch(7)["obs"]
    policy.compute_actions(obs)
    policy.compute_actions(obs, explore=False)
    assert policy.global_timestep == 7
    policy.on_global_var_update({"timestep": 500})
    policy.compute_actions(obs)
    assert policy.global_timestep == 507
    assert policy.get_exploration_state() == {"timestep": 507}


def test_exploration_follows_the_timestep_that_is_given_or_counted():
    exploration = {"type": "EpsilonGreedy", "epsilon_schedule": [[0, 1.0], [1000, 0.0]]}
    with small_policy("pg", exploration_config=exploration) as policy:
        obs = ppo_batch(600)["obs"]
        greedy, _, _ = policy.compute_actions(obs, explore=False)
        share = {}
        for timestep in (0, 500, 1000):
            actions, _, extras = policy.compute_actions(obs, timestep=timestep)
            share[timestep] = (actions == greedy).mean()
            epsilon = 1 - timestep / 1000
            # The greedy action also comes up among the random ones.
            probability = np.where(actions == greedy, 1 - epsilon * 2 / 3, epsilon / 3)
            np.testing.assert_allclose(extras["action_prob"], probability, rtol=1e-4)
        # Expected 1/3, 2/3, 1; five standard deviations are 0.1.
        assert abs(share[0] - 1 / 3) < 0.1 and abs(share[500] - 2 / 3) < 0.1
        assert share[1000] == 1.0
        assert policy.global_timestep == 1800
        assert policy.get_exploration_state()["epsilon"] == 0.0
        assert (policy.compute_actions(obs)[0] == greedy).all()


def test_learning_uses_the_rate_of_the_schedule_and_says_so():  # j13
    schedule = [[0, 0.1], [100, 0.3]]
    with Regression(OBS, THREE, {"model": TINY, "seed": 1, "lr_schedule": schedule}) as policy:
        batch = regression_batch(6)
        name = "value_out/bias"
        for timestep, rate in ((0, 0.1), (50, 0.2), (1000, 0.3)):
            policy.on_global_var_update({"timestep": timestep})
            gradients, _ = policy.compute_gradients(batch)
            before = policy.get_weights()[name]
            result = policy.learn_on_batch(batch)
            assert result["learner_stats"]["lr"] == pytest.approx(rate)
            step = before - policy.get_weights()[name]
            np.testing.assert_allclose(step, rate * gradients[-1], rtol=1e-4)
        # All ways to learn read the same rate.
        policy.on_global_var_update({"timestep": 50})
        policy.load_batch_into_buffer(batch)
        assert policy.learn_on_loaded_batch()["learner_stats"]["lr"] == pytest.approx(0.2)
        policy.on_global_var_update({"timestep": 0})
        assert policy.learn_on_buffer()["learner_stats"]["lr"] == pytest.approx(0.1)
        state = policy.get_state()
        assert state["coefficients"] == pytest.approx({"lr": 0.1})


def test_state_holds_the_optimizer_the_coefficients_and_the_steps(plain):  # j13, g18
    policy = plain.policy
    batch = ppo_batch(8)
    batch["actions"] = batch["actions"] - 1
    policy.on_global_var_update({"timestep": 123})
    policy.update_kl(1.0)
    policy.learn_on_batch(batch)
    state = policy.get_state()
    assert state["global_timestep"] == 123
    assert state["coefficients"]["kl_coeff"] == pytest.approx(0.3)
    slots = state["optimizer_variables"]
    # Two slots a variable, and the powers of both betas after one step.
    assert len(slots) == 2 * len(state["weights"]) + 2
    powers = sorted(float(value) for value in slots.values() if np.ndim(value) == 0)
    assert powers == pytest.approx([0.9**2, 0.999**2])
    plain_types = (np.ndarray, np.generic, int, float, str, bool)
    assert all(isinstance(value, plain_types) for value in tf.nest.flatten(state))


# Bad input leaves the policy as it was.

OBS3 = np.zeros((3, 4), np.float32)


def good_batch():
    batch = ppo_batch(6)
    return {**batch, "actions": batch["actions"] - 1}


def batch_with(**columns):
    return {**good_batch(), **columns}


def batch_without(name):
    return {key: column for key, column in good_batch().items() if key != name}


def state_with(policy, *path, value):
    state = copy.deepcopy(policy.get_state())
    # Whatever is assigned before the fault is found would show.
    state["weights"] = {name: weight + 1 for name, weight in state["weights"].items()}
    part = state
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return state


def weights_with(policy, **changes):
    weights = {name: weight + 1 for name, weight in policy.get_weights().items()}
    weights.update({name.replace("__", "/"): value for name, value in changes.items()})
    return {name: value for name, value in weights.items() if value is not None}


def gradients_with(policy, position, value):
    gradients, _ = policy.compute_gradients(good_batch())
    gradients[position] = value
    return gradients


BAD_INPUT = {
    # Acting.
    "an unbatched observation": (  # e24
        lambda p: p.compute_actions(np.zeros(4, np.float32)),
        ValueError,
        r"`obs`: expected \(B, 4\), got \(4,\)",
    ),
    "an unbatched list": (
        lambda p: p.compute_actions([0.0, 0.0, 0.0, 0.0]),
        ValueError,
        r"`obs`: expected \(B, 4\), got \(4,\)",
    ),
    "a wider observation": (
        lambda p: p.compute_actions(np.zeros((3, 5), np.float32)),
        ValueError,
        r"`obs`: expected \(B, 4\), got \(3, 5\)",
    ),
    "a batch as a single observation": (
        lambda p: p.compute_single_action(OBS3),
        ValueError,
        r"`obs`: expected \(B, 4\), got \(1, 3, 4\)",
    ),
    "a ragged observation": (
        lambda p: p.compute_actions([[0.0] * 4, [0.0] * 3]),
        ValueError,
        "rows of unequal shapes",
    ),
    "text": (lambda p: p.compute_actions(np.full((3, 4), "a")), ValueError, "expected float32"),
    "no observation": (lambda p: p.compute_actions(None), ValueError, r"got \(\)"),
    "floats out of range": (  # e18
        lambda p: p.compute_actions(np.full((3, 4), 1e300)),
        ValueError,
        "float64 values that it cannot hold",
    ),
    "an unknown column": (
        lambda p: p.compute_actions(OBS3, prev_reward=np.zeros(3)),
        KeyError,
        "no column 'prev_reward'. Did you mean 'prev_rewards'",
    ),
    "an unknown column by name": (
        lambda p: p.compute_actions_from_input_dict({"obs": OBS3, "states": 1}),
        KeyError,
        "no column 'states'",
    ),
    "a missing column": (
        lambda p: p.compute_actions_from_input_dict({}),
        KeyError,
        "needs the column 'obs'",
    ),
    "states of a policy without": (
        lambda p: p.compute_actions(OBS3, [np.zeros((3, 4))]),
        ValueError,
        "`state_batches`: expected 0 arrays, got 1",
    ),
    "values of a wrong shape": (
        lambda p: p.compute_values({"obs": np.zeros(4)}),
        ValueError,
        r"`obs`: expected \(B, 4\)",
    ),
    "fewer actions than observations": (
        lambda p: p.compute_log_likelihoods([0, 1], OBS3),
        ValueError,
        "`actions`: expected 3 rows as in `obs_batch`, got 2",
    ),
    "one action for all observations": (
        lambda p: p.compute_log_likelihoods([0], OBS3),
        ValueError,
        "`actions`: expected 3 rows",
    ),
    "floats as discrete actions": (
        lambda p: p.compute_log_likelihoods([0.5, 0.0, 1.0], OBS3),
        ValueError,
        "`actions`: expected int64, got float64",
    ),
    "actions of a wrong shape": (
        lambda p: p.compute_log_likelihoods(np.zeros((3, 1), int), OBS3),
        ValueError,
        r"`actions`: expected \(B,\), got \(3, 1\)",
    ),
    # Learning.
    "a batch without a column": (
        lambda p: p.learn_on_batch(batch_without("advantages")),
        KeyError,
        "lacks what learning reads: advantages. It has: obs, actions",
    ),
    "an empty dict": (lambda p: p.learn_on_batch({}), KeyError, "lacks what learning reads"),
    "no rows": (
        lambda p: p.learn_on_batch({k: v[:0] for k, v in good_batch().items()}),
        ValueError,
        "no rows",
    ),
    "no rows for gradients": (
        lambda p: p.compute_gradients({k: v[:0] for k, v in good_batch().items()}),
        ValueError,
        "no rows",
    ),
    "columns of unequal length": (
        lambda p: p.learn_on_batch(batch_with(advantages=np.zeros(5, np.float32))),
        ValueError,
        "`advantages`: expected 6 rows",
    ),
    "an unbatched column": (
        lambda p: p.learn_on_batch(batch_with(advantages=1.0)),
        ValueError,
        "`advantages`: expected an array",
    ),
    "a column of a wrong shape": (
        lambda p: p.learn_on_batch(batch_with(advantages=np.zeros((6, 1), np.float32))),
        ValueError,
        r"`advantages`: expected shape \(B\), got \(6, 1\)",
    ),
    "observations of a wrong shape": (
        lambda p: p.learn_on_batch(batch_with(obs=np.zeros((6, 3), np.float32))),
        ValueError,
        r"`obs`: expected shape \(B, 4\), got \(6, 3\)",
    ),
    "floats as actions": (
        lambda p: p.learn_on_batch(batch_with(actions=np.zeros(6))),
        ValueError,
        "`actions`: expected int64, got float64",
    ),
    "a column of objects": (
        lambda p: p.learn_on_batch(batch_with(advantages=np.array([{}] * 6))),
        ValueError,
        "`advantages`: expected an array of numbers",
    ),
    "an action outside the space": (
        lambda p: p.learn_on_batch(batch_with(actions=np.full(6, 7))),
        ValueError,
        r"`actions`: row 0 is 7, outside of Discrete\(3, start=-1\)",
    ),
    "loading without a column": (
        lambda p: p.load_batch_into_buffer(batch_without("obs")),
        KeyError,
        "lacks what learning reads: obs",
    ),
    "loading no rows": (
        lambda p: p.load_batch_into_buffer({k: v[:0] for k, v in good_batch().items()}),
        ValueError,
        "no rows",
    ),
    "a buffer that does not exist": (
        lambda p: p.load_batch_into_buffer(good_batch(), buffer_index=1),
        ValueError,
        "`buffer_index` must be in 0 to 0, got 1",
    ),
    "counting a buffer that does not exist": (
        lambda p: p.get_num_samples_loaded_into_buffer(-1),
        ValueError,
        "`buffer_index` must be in 0 to 0, got -1",
    ),
    "no epochs": (
        lambda p: (p.load_batch_into_buffer(good_batch()), p.learn_on_buffer(0)),
        ValueError,
        "`num_sgd_iter` must be a positive integer, got 0",
    ),
    "half an epoch": (
        lambda p: (p.load_batch_into_buffer(good_batch()), p.learn_on_buffer(1.5)),
        ValueError,
        "`num_sgd_iter` must be a positive integer, got 1.5",
    ),
    "too few gradients": (
        lambda p: p.apply_gradients([]),
        ValueError,
        "Expected 8 gradients, got 0",
    ),
    "a gradient of a wrong shape": (
        lambda p: p.apply_gradients(gradients_with(p, 0, np.zeros((8, 4)))),
        ValueError,
        r"Gradient of fc_1/kernel: expected shape \(4, 8\), got \(8, 4\)",
    ),
    "a gradient that is missing": (
        lambda p: p.apply_gradients(gradients_with(p, 1, None)),
        ValueError,
        "Gradient of fc_1/bias: expected an array",
    ),
    # State.
    "weights of which one is missing": (
        lambda p: p.set_weights(weights_with(p, fc_1__kernel=None)),
        ValueError,
        "nothing was assigned. missing: fc_1/kernel",
    ),
    "a weight of unknown name": (  # j14
        lambda p: p.set_weights(weights_with(p, fc_1__kernel=None, fc_9__kernel=np.zeros((4, 8)))),
        ValueError,
        "missing: fc_1/kernel; unexpected: fc_9/kernel",
    ),
    "weights of wrong shapes": (
        lambda p: p.set_weights(weights_with(p, fc_1__bias=np.zeros(9), fc_out__bias=0.0)),
        ValueError,
        r"fc_1/bias: expected shape \(8,\), got \(9,\); fc_out/bias: .* got \(\)",
    ),
    "no weights": (lambda p: p.set_weights({}), ValueError, "missing: fc_1/kernel, fc_1/bias"),
    "a state of a later version": (  # g6
        lambda p: p.set_state(state_with(p, "format_version", value=99)),
        ValueError,
        "has format version 99, this tfpolicy reads 1",
    ),
    "no state": (lambda p: p.set_state({}), ValueError, "has format version None"),
    "a state with an unknown part": (
        lambda p: p.set_state(state_with(p, "more", value=1)),
        ValueError,
        "it has, unexpected: more",
    ),
    "a state without a part": (
        lambda p: p.set_state({k: v for k, v in p.get_state().items() if k != "random"}),
        ValueError,
        "The state lacks: random",
    ),
    "a state without a weight": (
        lambda p: p.set_state(state_with(p, "weights", value={})),
        ValueError,
        "The weights do not fit",
    ),
    "a state without slots": (
        lambda p: p.set_state(state_with(p, "optimizer_variables", value={})),
        ValueError,
        "The optimizer variables do not fit",
    ),
    "a state of other coefficients": (
        lambda p: p.set_state(state_with(p, "coefficients", value={"lr": 0.1})),
        ValueError,
        "The state's coefficients are lr; this policy's are lr, entropy_coeff, kl_coeff",
    ),
    "a state with a coefficient that is not finite": (
        lambda p: p.set_state(state_with(p, "coefficients", "kl_coeff", value=np.nan)),
        ValueError,
        "'kl_coeff' must be a finite number, got nan",
    ),
    "a state with a coefficient that is no number": (
        lambda p: p.set_state(state_with(p, "coefficients", "lr", value="fast")),
        ValueError,
        "'lr' must be a finite number, got 'fast'",
    ),
    "a state with a timestep that is no number": (
        lambda p: p.set_state(state_with(p, "global_timestep", value="late")),
        ValueError,
        "`global_timestep` must be >= 0, got 'late'",
    ),
    "a state with a truth value for a timestep": (
        lambda p: p.set_state(state_with(p, "global_timestep", value=True)),
        ValueError,
        "`global_timestep` must be >= 0, got True",
    ),
    "a state without that of the exploration": (
        lambda p: p.set_state(state_with(p, "exploration_state", value=None)),
        ValueError,
        "`exploration_state` must be what `get_exploration_state` gives, got None",
    ),
    "a state with a truth value for a coefficient": (
        lambda p: p.set_state(state_with(p, "coefficients", "lr", value=True)),
        ValueError,
        "'lr' must be a finite number, got True",
    ),
    "a state with a truth value for a seed": (
        lambda p: p.set_state(state_with(p, "random", "acting", value={"base": 1, "count": True})),
        ValueError,
        "`count` must be in 0 to 2..31 - 1, got True",
    ),
    "a state without random streams": (
        lambda p: p.set_state(state_with(p, "random", value={})),
        ValueError,
        "random state must be that of acting, shuffling",
    ),
    "a state with half a random stream": (
        lambda p: p.set_state(state_with(p, "random", "shuffling", value={"base": 1})),
        ValueError,
        "random state of shuffling: expected base and count",
    ),
    "an unknown coefficient": (
        lambda p: p.set_coefficient("kl", 1.0),
        KeyError,
        "No coefficient 'kl'; there are lr, entropy_coeff, kl_coeff",
    ),
    "a coefficient that follows a schedule": (
        lambda p: p.set_coefficient("lr", 1.0),
        ValueError,
        "'lr' follows a schedule; adaptive are: kl_coeff",
    ),
    "a coefficient that is not finite": (
        lambda p: p.set_coefficient("kl_coeff", np.inf),
        ValueError,
        "'kl_coeff' must be a finite number, got inf",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_named_and_leaves_the_policy_as_it_was(plain, case):
    use, error, text = BAD_INPUT[case]
    with pytest.raises(error, match=text):
        use(plain.policy)
    plain.assert_unchanged()


@pytest.mark.parametrize("offset", [6, -1], ids=["past the end", "negative"])
def test_an_offset_outside_of_the_buffer_is_named(plain, offset):  # j5
    rows = 6 // max(plain.policy.config.num_gpus, 1)
    assert plain.policy.load_batch_into_buffer(good_batch()) == rows
    with pytest.raises(ValueError, match=f"`offset` must be in 0 to {rows - 1}, got {offset}"):
        plain.policy.learn_on_loaded_batch(offset)
    plain.assert_unchanged()


@pytest.mark.parametrize(
    ("name", "obs", "text"),
    [
        ("image, finite box", np.zeros((1, 4, 3, 2)), "expected uint8, got float64"),
        ("image, finite box", np.full((1, 4, 3, 2), 256), "expected uint8, got int64 values"),
        ("image, finite box", np.zeros((4, 3, 2), np.uint8), r"\(B, 4, 3, 2\), got \(4, 3, 2\)"),
        ("discrete, half-infinite box", 3, r"`obs`: expected \(B,\), got \(\)"),
        ("discrete, half-infinite box", [3.0], "expected int64, got float64"),
        ("multi-discrete, integer box", [1, 2], r"expected \(B, 2\), got \(2,\)"),
        ("multi-binary, multi-discrete", [0, 1, 0, 1], r"expected \(B, 4\), got \(4,\)"),
        ("dict, multi-binary", np.zeros((1, 4)), "expected a mapping of batches or a list"),
        ("dict, multi-binary", {"position": np.zeros((1, 3))}, "'velocity'.* are missing"),
        (
            "dict, multi-binary",
            {**draw(NESTED, 2), "position": np.zeros((2, 4))},
            r"`obs_position`: expected \(B, 3\), got \(2, 4\)",
        ),
        (
            "dict, multi-binary",
            {**draw(NESTED, 2), "position": np.zeros((1, 3))},
            "as many rows in every leaf, got .*'obs_position': 1",
        ),
        ("dict, multi-binary", {**draw(NESTED, 2), "more": [1, 2]}, r"got \['more'\] too"),
        ("tuple, finite float64 box", (np.zeros(2, int),), "expected 3 items, got 1"),
    ],
)
def test_observations_that_do_not_fit_their_space_are_named(policies, name, obs, text):
    made = policies(name)
    with pytest.raises((ValueError, KeyError), match=text):
        made.policy.compute_actions(obs)
    made.assert_unchanged()


def test_columns_of_nested_observations_are_named_when_learning(policies):
    made = policies("dict, multi-binary")
    policy = made.policy
    batch = dict(policy.postprocess_trajectory(trajectory(policy, 4)))
    policy.set_state(made.start)
    for obs, text in (
        (np.zeros((4, 8)), "Column `obs`: expected the structure"),
        ({**batch["obs"], "position": np.zeros((4, 2))}, r"expected shape \(B, 3\), got \(4, 2\)"),
        ({**batch["obs"], "position": np.zeros((3, 3))}, "`obs`: expected arrays of equal length"),
    ):
        with pytest.raises(ValueError, match=text):
            policy.learn_on_batch({**batch, "obs": obs})
    made.assert_unchanged()


@pytest.mark.parametrize(
    ("spaces", "config", "error", "text"),
    [
        ((S.Text(3), THREE), {}, ValueError, "`observation_space`: .*got Text; encode it"),
        ((OBS, S.Sequence(THREE)), {}, ValueError, "`action_space`: .*got Sequence; pad it"),
        ((S.Dict({"a": S.Text(3)}), THREE), {}, ValueError, r"`observation_space\['a'\]`"),
        ((4, THREE), {}, TypeError, "`observation_space`: expected a gymnasium space, got int"),
        ((OBS, THREE), {"learning_rate": 1}, KeyError, "'learning_rate'"),
        ((OBS, THREE), {"lr": -1}, ValueError, "`lr` must be at least 0"),
        ((OBS, THREE), {"lr": "fast"}, TypeError, "`lr` must be float, got 'fast'"),
        ((OBS, THREE), {"model": {"custom_model": dict}}, TypeError, "a subclass of `Model`"),
        ((OBS, THREE), {"model": {"free_log_std": True}}, ValueError, "`free_log_std` needs Gauss"),
        (
            (OBS, S.Box(-INF, INF, (2,))),
            {"model": {"custom_action_dist": "beta"}},
            ValueError,
            "finite bounds",
        ),
        (
            (OBS, S.Box(-1, 1, (2,))),
            {"model": {"custom_action_dist": "deterministic"}},
            ValueError,
            "The loss depends on no trainable variable; there are: fc_1/kernel",
        ),
        (
            (OBS, S.Box(-1, 1, (2,))),
            {
                "model": {"custom_action_dist": "deterministic"},
                "num_gpus": 2,
                "fake_gpus": True,
            },
            ValueError,
            "The loss depends on no trainable variable; there are: fc_1/kernel",
        ),
        (
            (OBS, THREE),
            {"exploration_config": {"type": "EpsilonGredy"}},
            ValueError,
            "EpsilonGreedy",
        ),
        (
            (OBS, THREE),
            {"sgd_minibatch_size": 99, "train_batch_size": 9},
            ValueError,
            "at most",
        ),  # c5
    ],
)
def test_what_no_policy_can_be_built_of_is_refused_with_the_reason(spaces, config, error, text):
    with pytest.raises(error, match=text):
        small_policy("pg", *spaces, **config)


def test_a_failed_build_leaves_nothing_behind():
    class Broken(Regression):
        def loss(self, model, dist_class, train_batch):
            return train_batch["no_such_column"]

    default = tf.compat.v1.get_default_graph()
    with pytest.raises(KeyError, match="no column 'no_such_column'.*: rewards, .*new_obs"):
        Broken(OBS, THREE, {"model": TINY})
    assert tf.compat.v1.get_default_graph() is default and tf.executing_eagerly()


# What a policy reads.


class Masked(Model):
    """Forbids what the observation's mask forbids."""

    def __init__(self, *args):
        super().__init__(*args)
        shape = (2, self.num_outputs + 1)
        self.kernel = tf.compat.v1.get_variable("kernel", shape, use_resource=True)

    def __call__(self, columns):
        outputs = columns["obs"]["x"] @ self.kernel
        logits = mask_logits(outputs[:, :-1], columns["obs"]["mask"])
        return ModelOutput(logits, outputs[:, -1])


def test_masked_actions_are_never_taken_and_learned_from_with_finite_terms():  # a18, e15, e16
    space = S.Dict({"x": S.Box(-1, 1, (2,)), "mask": S.MultiBinary(4)})
    model = {"custom_model": Masked}
    with small_policy("ppo", space, S.Discrete(4), model=model, entropy_coeff=0.01) as policy:
        obs = draw(space, 200)
        obs["mask"][:, 1] = 1
        for explore in (True, False):
            actions, _, extras = policy.compute_actions(obs, explore=explore)
            assert obs["mask"][np.arange(200), actions].all()
            assert np.isfinite(extras["action_logp"]).all()
        rewards = np.random.default_rng(0).normal(size=200).astype(np.float32)
        batch = {"obs": obs, "actions": actions, **extras}
        batch.update({"advantages": rewards, "value_targets": rewards})
        for _ in range(3):
            stats = policy.learn_on_batch(batch)["learner_stats"]
            assert np.isfinite(list(stats.values())).all()
        assert stats["entropy"] > 0


class Windowed(Model):
    """Reads the last three observations and the previous action and reward."""

    def __init__(self, *args):
        super().__init__(*args)
        shape = (14, self.num_outputs + 1)
        self.kernel = tf.compat.v1.get_variable("kernel", shape, use_resource=True)

    def view_requirements(self):
        return {"obs_window": ViewRequirement("obs", self.observation_space, "-2:0")}

    def __call__(self, columns):
        window = tf.reshape(columns["obs_window"], [-1, 12])
        extra = [tf.cast(columns["prev_actions"], tf.float32), columns["prev_rewards"]]
        outputs = tf.concat([window, tf.stack(extra, axis=1)], axis=1) @ self.kernel
        return ModelOutput(outputs[:, :-1], outputs[:, -1])


@pytest.fixture(scope="module")
def windowed():
    with small_policy("ppo", model={"custom_model": Windowed}) as policy:
        yield policy


def windows(rows):
    rng = np.random.default_rng(0)
    return {
        "obs_window": rng.normal(size=(rows, 3, 4)).astype(np.float32),
        "prev_actions": rng.integers(0, 3, rows),
        "prev_rewards": rng.normal(size=rows).astype(np.float32),
    }


def test_a_model_acts_on_the_views_it_reads(windowed):
    assert set(windowed.acting_columns) == {"obs", *windows(1)}
    for name in windows(1):
        view = windowed.view_requirements[name]
        assert view.used_for_compute_actions and view.used_for_training
    columns = windows(5)
    features = np.concatenate(
        [
            columns["obs_window"].reshape(5, 12),
            columns["prev_actions"][:, None],
            columns["prev_rewards"][:, None],
        ],
        axis=1,
    )
    expected = features @ windowed.get_weights()["kernel"]
    obs = np.zeros((5, 4), np.float32)
    _, _, extras = windowed.compute_actions(
        obs,
        prev_action_batch=columns["prev_actions"],
        prev_reward_batch=columns["prev_rewards"].tolist(),
        obs_window=columns["obs_window"],
        explore=False,
    )
    np.testing.assert_allclose(extras["action_dist_inputs"], expected[:, :3], rtol=1e-4, atol=1e-5)
    found = windowed.compute_actions_from_input_dict({"obs": obs, **columns}, explore=False)
    assert_equal(found[2], extras)
    row = {name: column[0] for name, column in columns.items()}
    single = windowed.compute_single_action(
        obs[0],
        prev_action=row["prev_actions"],
        prev_reward=row["prev_rewards"],
        obs_window=row["obs_window"],
        explore=False,
    )
    np.testing.assert_allclose(
        single[2]["action_dist_inputs"], extras["action_dist_inputs"][0], rtol=1e-5, atol=1e-6
    )


def test_a_view_that_is_missing_or_misshapen_is_named(windowed):
    obs, columns = np.zeros((5, 4), np.float32), windows(5)
    for name in columns:
        part = {key: column for key, column in columns.items() if key != name}
        with pytest.raises(KeyError, match=f"needs the column '{name}', got: obs"):
            windowed.compute_actions_from_input_dict({"obs": obs, **part})
    with pytest.raises(ValueError, match=r"`obs_window`: expected shape \(B, 3, 4\), got \(5, 4\)"):
        windowed.compute_actions_from_input_dict({"obs": obs, **columns, "obs_window": obs})
    with pytest.raises(ValueError, match="`prev_rewards`: expected 5 rows, got 4"):
        windowed.compute_actions_from_input_dict(
            {"obs": obs, **columns, "prev_rewards": np.zeros(4)}
        )


class Reading(Regression):
    """Reads nested observations, the next ones, ends, and a column made by postprocessing."""

    def loss(self, model, dist_class, train_batch):
        values = model(train_batch).vf_preds
        position = train_batch["obs"]["position"]
        change = train_batch["new_obs"]["position"] - position
        going_on = 1.0 - tf.cast(train_batch["dones"], tf.float32)
        target = tf.reduce_sum(change, axis=1) * going_on + train_batch["bonus"]
        loss = train_batch.mean(tf.square(values - target))
        return LossOutput(loss, {"target": train_batch.mean(target)})

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        batch = SampleBatch(sample_batch)
        previous = batch["prev_rewards"]
        batch["bonus"] = previous + np.float64(len(batch["infos"]))
        return batch


def test_a_loss_reads_nested_columns_ends_and_what_postprocessing_adds():  # d15
    with Reading(NESTED, THREE, {"model": TINY, "seed": 1}) as policy:
        views = policy.view_requirements
        assert {"new_obs", "prev_rewards", "infos"} <= set(views)
        trained = {name for name, view in views.items() if view.used_for_training}
        assert trained >= {"obs", "new_obs", "terminateds", "truncateds", "prev_rewards", "infos"}
        assert "vf_preds" not in views and "actions" in views
        batch = {
            "obs": draw(NESTED, 4),
            "new_obs": draw(NESTED, 4, seed=1),
            "terminateds": np.array([False, True, False, False]),
            "truncateds": np.array([False, False, False, True]),
            "prev_rewards": np.float32([0, 1, 2, 3]),
            "infos": [{}] * 4,
        }
        batch = policy.postprocess_trajectory(SampleBatch(batch))
        change = batch["new_obs"]["position"] - batch["obs"]["position"]
        expected = change.sum(axis=1) * [1, 0, 1, 0] + [4, 5, 6, 7]
        stats = policy.learn_on_batch(batch)["learner_stats"]
        assert stats["target"] == pytest.approx(expected.mean(), rel=1e-5)
        del batch["new_obs"]
        with pytest.raises(KeyError, match="lacks what learning reads: new_obs"):
            policy.learn_on_batch(batch)


# Moving a policy about.


def test_a_pickled_policy_goes_on_as_if_it_had_never_been_away(policies):
    made = policies("dict, multi-binary")
    policy = made.policy
    batch = policy.postprocess_trajectory(trajectory(policy, 8))
    policy.learn_on_batch(batch)
    with pickle.loads(pickle.dumps(policy)) as copied:
        assert type(copied) is type(policy) and copied.config == policy.config
        assert copied.observation_space == policy.observation_space
        assert_equal(copied.get_state(), policy.get_state())
        for each in (copied, policy):
            each.load_batch_into_buffer(batch)
        results = [
            [p.compute_actions(batch["obs"]), p.learn_on_buffer(2)] for p in (copied, policy)
        ]
        assert_equal(*results)
        assert_equal(copied.get_state(), policy.get_state())


def test_names_of_leaves_do_not_matter_to_states_of_equal_policies(policies):
    assert list(leaf_spaces(NESTED, "obs"))[:1] == ["obs_inner_0"]
    weights = policies("dict, multi-binary").policy.get_weights()
    assert list(weights) == [
        "fc_1/kernel", "fc_1/bias", "fc_out/kernel", "fc_out/bias", "fc_value_1/kernel",
        "fc_value_1/bias", "value_out/kernel", "value_out/bias",
    ]  # fmt: skip


def test_only_the_extras_that_are_asked_for_are_computed():
    with small_policy() as policy:
        obs = ppo_batch(3)["obs"]
        actions, states, every = policy.compute_actions(obs, explore=False)
        assert set(every) == {"action_dist_inputs", "action_logp", "action_prob", "vf_preds"}
        for names in [(), ("vf_preds",), ["action_prob", "action_logp"], ("action_dist_inputs",)]:
            found, _, extras = policy.compute_actions(obs, explore=False, extra_fetches=names)
            np.testing.assert_array_equal(found, actions)
            assert set(extras) == set(names)
            for name in names:
                np.testing.assert_array_equal(extras[name], every[name])
        action, _, extras = policy.compute_single_action(obs[1], explore=False, extra_fetches=())
        assert (action, extras) == (actions[1], {})


def test_an_extra_that_acting_does_not_give_is_named_and_no_seed_is_lost():
    with small_policy() as policy:
        before = policy.get_state()
        with pytest.raises(KeyError, match="expected some of action_dist_inputs, .* got 'logits'"):
            policy.compute_actions(ppo_batch(3)["obs"], extra_fetches=("vf_preds", "logits"))
        assert policy.get_state()["random"] == before["random"]
