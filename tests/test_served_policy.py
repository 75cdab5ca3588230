"""What a policy left behind acts as it did, in the argument forms of a policy."""

import concurrent.futures
import shutil

import gymnasium as gym
import numpy as np
import pytest
from small_policies import Recurrent, recurrent_policy, small_policy

from tfpolicy import load_policy
from tfpolicy.checkpoint import write_checkpoint
from tfpolicy.export.saved_model import load_saved_model

S = gym.spaces
NESTED = S.Dict(
    pos=S.Box(-1, 1, (2,)), rest=S.Tuple([S.Discrete(3), S.Box(0, 255, (2,), np.uint8)])
)
SKEWED = S.Box(np.float32([-2, 0]), np.float32([6, 1]))
KINDS = ["saved_model", "checkpoint"]


def drawn_weights(policy):
    rng = np.random.default_rng(7)
    return {name: rng.normal(0, 0.6, w.shape) for name, w in policy.get_weights().items()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What a policy left behind, and the policy."""
    root = tmp_path_factory.mktemp("left_behind")
    with small_policy("pg", NESTED, SKEWED) as policy:
        policy.set_weights(drawn_weights(policy))
        policy.export_model(root / "saved_model")
        policy.save(root / "checkpoint")
        yield {"saved_model": root / "saved_model", "checkpoint": root / "checkpoint"}, policy


@pytest.fixture(scope="module", params=KINDS)
def pair(request, folders):
    """What was loaded, and the policy that it was."""
    paths, policy = folders
    with load_policy(paths[request.param]) as served:
        yield served, policy


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    root = tmp_path_factory.mktemp("recurrent")
    with recurrent_policy("pg") as policy:
        policy.export_model(root / "saved_model")
        policy.save(root / "checkpoint")
        yield root, policy


def nested_rows(rows, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            "pos": rng.uniform(-1, 1, 2).astype(np.float32),
            "rest": (int(rng.integers(3)), rng.integers(0, 256, 2, np.uint8)),
        }
        for _ in range(rows)
    ]


def nested_batch(rows):
    return {
        "pos": np.stack([row["pos"] for row in rows]),
        "rest": (
            np.array([row["rest"][0] for row in rows]),
            np.stack([row["rest"][1] for row in rows]),
        ),
    }


# Acting.


def test_it_acts_as_the_policy_does_on_single_observations(pair):  # g24
    served, policy = pair
    for obs in nested_rows(10):
        expected, _, expected_extras = policy.compute_single_action(obs, explore=False)
        action, states, extras = served.compute_single_action(obs)
        assert SKEWED.contains(action) and states == []
        np.testing.assert_allclose(action, expected, atol=1e-6)
        assert extras.keys() == expected_extras.keys()
        for key, value in expected_extras.items():
            np.testing.assert_allclose(extras[key], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "form",
    [
        nested_batch,
        lambda rows: rows,
        lambda rows: [{"rest": list(row["rest"]), "pos": row["pos"].tolist()} for row in rows],
        lambda rows: {**nested_batch(rows), "pos": nested_batch(rows)["pos"].astype(np.float64)},
    ],
    ids=["batches", "rows", "lists_in_another_order", "float64"],
)
def test_observations_come_in_every_form_that_a_policy_takes(pair, form):  # a13, e21, j10
    served, policy = pair
    rows = nested_rows(3)
    expected = [policy.compute_single_action(row, explore=False)[0] for row in rows]
    np.testing.assert_allclose(served.compute_actions(form(rows))[0], expected, atol=1e-6)


def test_drawing_differs_from_call_to_call_and_keeps_to_the_space(pair):
    served, policy = pair
    batch = nested_batch(nested_rows(50))
    first, _, extras = served.compute_actions(batch, explore=True)
    second, _, _ = served.compute_actions(batch, explore=True)
    assert (first != second).any()
    assert all(SKEWED.contains(action) for action in first)
    assert (extras["action_logp"] != served.compute_actions(batch)[2]["action_logp"]).any()
    np.testing.assert_allclose(extras["action_prob"], np.exp(extras["action_logp"]))
    for explore in (False, None):
        again = served.compute_actions(batch, explore=explore)[0]
        np.testing.assert_array_equal(again, served.compute_actions(batch)[0])


def test_spaces_are_those_of_the_environment(pair):
    served, _ = pair
    assert (served.observation_space, served.action_space) == (NESTED, SKEWED)
    assert (served.get_initial_state(), served.is_recurrent()) == ([], False)


def test_threads_may_act_at_once(pair):  # f16, f17
    served, _ = pair
    batches = [nested_batch(nested_rows(size, size)) for size in range(1, 21)]
    expected = [served.compute_actions(batch)[0] for batch in batches]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda batch: served.compute_actions(batch)[0], batches * 10))
    for index, actions in enumerate(found):
        np.testing.assert_allclose(actions, expected[index % 20], atol=1e-6)


@pytest.mark.parametrize(
    ("obs", "error", "message"),
    [
        (nested_rows(1)[0], ValueError, r"`obs_pos`: expected \(B, 2\), got \(2,\)"),
        ({"pos": np.zeros((1, 2))}, KeyError, "rest.*missing"),
        ({**nested_batch(nested_rows(1)), "x": 0}, ValueError, "'x'"),
        (
            {**nested_batch(nested_rows(1)), "pos": np.zeros((1, 3), np.float32)},
            ValueError,
            r"expected \(B, 2\), got \(1, 3\)",
        ),
        (np.zeros((1, 4)), ValueError, "expected a mapping"),
    ],
    ids=["unbatched", "missing", "unexpected", "shape", "structure"],
)
def test_observations_that_do_not_fit_are_named(pair, obs, error, message):  # a12, e24
    with pytest.raises(error, match=message):
        pair[0].compute_actions(obs)


def test_columns_that_nothing_reads_are_refused(pair):
    with pytest.raises(KeyError, match="no column 'observation'"):
        pair[0].compute_actions(nested_rows(1), observation=np.zeros(1))
    with pytest.raises(ValueError, match="`state_batches`: expected 0 arrays, got 1"):
        pair[0].compute_actions(nested_rows(1), [np.zeros((1, 4))])


@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_policy_carries_its_state(recurrent, kind):
    root, policy = recurrent
    config = {"model": {"custom_model": Recurrent}} if kind == "checkpoint" else None
    rng = np.random.default_rng(3)
    with load_policy(root / kind, config) as served:
        assert served.is_recurrent()
        state = expected_state = None
        for _ in range(5):
            obs = rng.uniform(-1, 1, 4).astype(np.float32)
            action, state, extras = served.compute_single_action(obs, state)
            expected, expected_state, expected_extras = policy.compute_single_action(
                obs, expected_state, explore=False
            )
            assert action == expected and type(action) is type(expected)
            np.testing.assert_allclose(state, expected_state, atol=1e-6)
            np.testing.assert_allclose(
                extras["action_logp"], expected_extras["action_logp"], atol=1e-6
            )
        states = [np.stack([part] * 2) for part in served.get_initial_state()]
        given = served.compute_actions(np.zeros((2, 4), np.float32), states)
        missing = served.compute_actions(np.zeros((2, 4), np.float32))
        np.testing.assert_array_equal(given[1], missing[1])


# Loading.


def test_a_version_can_be_loaded_and_else_it_is_the_newest(folders, tmp_path):
    paths, policy = folders
    base = shutil.copytree(paths["saved_model"], tmp_path / "model")
    weights = policy.get_weights()
    try:
        policy.set_weights({name: -w for name, w in weights.items()})
        policy.export_model(base)
        negated = policy.compute_actions(nested_rows(1), explore=False)[2]
    finally:
        policy.set_weights(weights)
    original = policy.compute_actions(nested_rows(1), explore=False)[2]
    for path, extras in ((base, negated), (base / "2", negated), (str(base / "1"), original)):
        with load_policy(path) as served:
            found = served.compute_actions(nested_rows(1))[2]
        np.testing.assert_allclose(found["vf_preds"], extras["vf_preds"], rtol=1e-5)


def test_a_newest_version_that_vanishes_gives_way_to_a_newer_one(folders, tmp_path, monkeypatch):
    paths, _ = folders
    base = shutil.copytree(paths["saved_model"], tmp_path / "model")

    def load_slowly(folder):
        if folder.name == "1":  # Meanwhile somebody publishes another and keeps only that.
            folder.rename(base / "2")
        return load_saved_model(folder)

    monkeypatch.setattr("tfpolicy.served_policy.load_saved_model", load_slowly)
    with load_policy(base) as served:
        served.compute_single_action(nested_rows(1)[0])
    with pytest.raises(ValueError, match="must be written by tfpolicy"):
        (base / "2").rename(base / "1")
        load_policy(base / "1")


def test_a_custom_model_is_never_loaded_from_a_file(recurrent):  # g15
    root, _ = recurrent
    with pytest.raises(ValueError, match=r"pass `model.custom_model` \(was .*Recurrent\)"):
        load_policy(root / "checkpoint")
    with pytest.raises(ValueError, match="`config` is for checkpoints"):
        load_policy(root / "saved_model", {"model": {"custom_model": Recurrent}})


def test_after_closing_it_says_so(folders):
    served = load_policy(folders[0]["saved_model"])
    served.close()
    with pytest.raises(RuntimeError, match="closed"):
        served.compute_single_action(nested_rows(1)[0])


def test_what_holds_no_model_says_what_was_expected(folders, tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_policy(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="must be a SavedModel, a folder of versions or a check"):
        load_policy(tmp_path)
    copy = shutil.copytree(folders[0]["saved_model"], tmp_path / "model")
    (copy / "1" / "assets.extra" / "tfpolicy.json").unlink()
    with pytest.raises(ValueError, match="must be written by tfpolicy"):
        load_policy(copy)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    write_checkpoint(tmp_path / "other", {"anything": 1}, {"x": np.zeros(2)})
    with pytest.raises(ValueError, match="must describe a policy, but it has no policy_class"):
        load_policy(tmp_path / "other")
