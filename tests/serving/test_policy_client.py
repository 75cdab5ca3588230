"""What a client does through a server is what the policy does."""

import concurrent.futures
import json
import shutil
import sys

import grpc
import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from serving_policies import lively
from small_policies import OBS, THREE, small_policy
from stand_in_server import StandInServer

from tfpolicy.graph.discovery import sample_rows
from tfpolicy.served_policy import load_policy
from tfpolicy.serving import ModelNotFoundError, PolicyClient, SignatureError
from tfpolicy.spaces import flatten, unflatten
from tfpolicy.view_requirement import History

S = gym.spaces
NESTED = S.Dict(pos=S.Box(-1, 1, (2,)), rest=S.Tuple([S.Discrete(3), S.MultiBinary(2)]))
# Every kind of observation and of action.
CASES = {
    "image": (S.Box(0, 255, (3, 3, 1), np.uint8), S.Box(np.float32([-2, 0]), np.float32([6, 1]))),
    "float64": (S.Box(-1, 1, (3,), np.float64), S.Box(-2, 5, (2,), np.int32)),
    "discrete": (S.Discrete(5, start=-2), S.MultiDiscrete([2, 3], start=[0, 4])),
    "nested": (NESTED, S.Dict(go=S.Discrete(3, start=2), by=S.Tuple([S.Box(-1, 3, (2,))]))),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A policy, and a server of it."""
    base = tmp_path_factory.mktemp(request.param)
    with small_policy("pg", *CASES[request.param]) as policy:
        lively(policy).export_model(base)
        server = StandInServer(base)
        yield policy, server
        server.close()


def connect(server, protocol, *arguments, **kwargs):
    return PolicyClient(server.address(protocol), "model", *arguments, protocol=protocol, **kwargs)


def single_rows(space, num_rows):
    leaves = flatten(space, sample_rows(space, num_rows, 0))
    return [unflatten(space, [leaf[row] for leaf in leaves]) for row in range(num_rows)]


# Acting.


def test_it_acts_as_the_policy_does(case, protocol):  # a4, a7, a16
    policy, server = case
    spaces = policy.observation_space, policy.action_space
    rows = single_rows(policy.observation_space, 6)
    with connect(server, protocol, observation_space=spaces[0], action_space=spaces[1]) as client:
        assert (client.observation_space, client.action_space) == spaces
        assert (client.version, client.is_recurrent(), client.get_initial_state()) == (1, False, [])
        for obs in rows:
            expected, _, expected_extras = policy.compute_single_action(obs, explore=False)
            action, states, extras = client.compute_single_action(obs)
            assert policy.action_space.contains(action) and states == []
            for found, wanted in zip(
                flatten(spaces[1], action), flatten(spaces[1], expected), strict=True
            ):
                assert np.asarray(found).dtype == np.asarray(wanted).dtype
                np.testing.assert_allclose(found, wanted, atol=1e-6)
            assert extras.keys() == expected_extras.keys()
            for key, value in expected_extras.items():
                np.testing.assert_allclose(extras[key], value, rtol=1e-6, atol=1e-6)


def test_a_batch_acts_as_its_rows(case, protocol):
    policy, server = case
    batch = sample_rows(policy.observation_space, 5, 1)
    with connect(
        server,
        protocol,
        observation_space=policy.observation_space,
        action_space=policy.action_space,
    ) as client:
        actions, _, extras = client.compute_actions(batch)
        rows = [
            unflatten(client.observation_space, [leaf[row] for leaf in flatten(NESTED, batch)])
            if policy.observation_space == NESTED
            else batch[row]
            for row in range(5)
        ]
        singles = [client.compute_single_action(row) for row in rows]
    space = policy.action_space
    for index, leaf in enumerate(flatten(space, actions)):
        found = [flatten(space, action)[index] for action, _, _ in singles]
        np.testing.assert_allclose(leaf, found, atol=1e-6)
    np.testing.assert_allclose(
        extras["vf_preds"], [e["vf_preds"] for _, _, e in singles], atol=1e-6
    )


def test_without_spaces_leaves_go_by_their_names(case, protocol):
    policy, server = case
    (row,) = single_rows(policy.observation_space, 1)
    expected = policy.compute_single_action(row, explore=False)[0]
    with connect(server, protocol) as client:
        if policy.observation_space != NESTED:
            found = client.compute_single_action(row)[0]
            np.testing.assert_allclose(found, expected, atol=1e-6)
        else:
            flat = {"pos": row["pos"], "rest_0": row["rest"][0], "rest_1": row["rest"][1]}
            assert list(client.observation_space) == ["pos", "rest_0", "rest_1"]
            found = client.compute_single_action(flat)[0]
            assert found["go"] == expected["go"]
            np.testing.assert_allclose(found["by_0"], expected["by"][0], atol=1e-6)


def test_observations_are_cast_where_that_is_safe(plain, protocol):  # a13
    policy, server = plain
    rows = np.random.default_rng(0).uniform(-1, 1, (3, 4))
    expected = policy.compute_actions(rows.astype(np.float32), explore=False)[0]
    with connect(server, protocol) as client:
        for batch in (rows, rows.tolist(), [list(row) for row in rows], tuple(rows)):
            np.testing.assert_array_equal(client.compute_actions(batch)[0], expected)


def test_any_number_of_rows_is_a_batch(plain, protocol):  # a15, a22
    policy, server = plain
    rows = np.random.default_rng(0).uniform(-1, 1, (100, 4)).astype(np.float32)
    expected = policy.compute_actions(rows, explore=False)[2]["action_logp"]
    with connect(server, protocol) as client:
        for num_rows in (1, 2, 100):
            found = client.compute_actions(rows[:num_rows])[2]["action_logp"]
            np.testing.assert_allclose(found, expected[:num_rows], atol=1e-6)


def test_exploring_draws(plain, protocol):
    _, server = plain
    rows = np.zeros((64, 4), np.float32)
    with connect(server, protocol) as client:
        first, second = (client.compute_actions(rows, explore=True)[0] for _ in range(2))
        assert (first != second).any() and set(first) <= {0, 1, 2}
        for explore in (False, None):
            assert len(set(client.compute_actions(rows, explore=explore)[0])) == 1


def test_threads_may_share_a_client(plain, protocol):  # f16, f17
    policy, server = plain
    rng = np.random.default_rng(0)
    batches = [rng.uniform(-1, 1, (size, 4)).astype(np.float32) for size in range(1, 41)]
    with connect(server, protocol) as client, concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda batch: client.compute_actions(batch)[0], batches))
    for batch, actions in zip(batches, found, strict=True):
        np.testing.assert_array_equal(actions, policy.compute_actions(batch, explore=False)[0])


def test_requests_of_mixed_sizes_that_are_joined_give_the_rows_of_single_ones(
    case, protocol
):  # a19, a21
    policy, server = case
    spaces = {"observation_space": policy.observation_space, "action_space": policy.action_space}
    batches = [sample_rows(policy.observation_space, size, size) for size in (1, 3, 9, 2, 1, 5)]
    with connect(server, protocol, **spaces) as client:
        expected = [client.compute_actions(batch) for batch in batches]
    server.models.requests.clear()
    with connect(server, protocol, max_batch_size=4, **spaces) as client:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            found = list(pool.map(client.compute_actions, batches * 4))
    sizes = [rows for _, rows in server.models.requests]
    assert sum(sizes) == 4 * 21 and max(sizes) == 4
    for index, (actions, _, extras) in enumerate(found):
        wanted, _, wanted_extras = expected[index % 6]
        for leaf, wanted_leaf in zip(
            flatten(policy.action_space, actions), flatten(policy.action_space, wanted), strict=True
        ):
            np.testing.assert_allclose(leaf, wanted_leaf, atol=1e-6)
        for key, value in extras.items():
            np.testing.assert_allclose(value, wanted_extras[key], rtol=1e-5, atol=1e-6)


def test_requests_carry_headers(plain, protocol):
    _, server = plain
    with connect(server, protocol, headers={"Authorization": "Bearer x"}) as client:
        client.compute_single_action(np.zeros(4))
    assert server.models.headers["authorization"] == "Bearer x"


def test_a_channel_can_have_credentials(plain):
    policy, server = plain
    obs = np.zeros(4, np.float32)
    with PolicyClient(
        f"127.0.0.1:{server.secure_port}", "model", credentials=grpc.local_channel_credentials()
    ) as client:
        found = client.compute_single_action(obs)[0]
    assert found == policy.compute_single_action(obs, explore=False)[0]


def test_rows_of_json_are_answered_by_rows(plain):
    """The form of README's `curl`, which the client does not use."""
    import urllib3

    policy, server = plain
    rows = np.random.default_rng(0).uniform(-1, 1, (3, 4)).astype(np.float32)
    url = f"http://{server.address('rest')}/v1/models/model:predict"
    for instances in (rows.tolist(), [{"obs": row} for row in rows.tolist()]):
        answer = urllib3.request("POST", url, json={"instances": instances}).json()
        found = [row["actions"] for row in answer["predictions"]]
        np.testing.assert_array_equal(found, policy.compute_actions(rows, explore=False)[0])


# What does not fit is refused before it is sent.


@pytest.mark.parametrize(
    ("obs", "kwargs", "error", "message"),
    [
        (np.zeros(4), {}, ValueError, r"`obs`: expected \(B, 4\), got \(4,\)"),
        (np.zeros((2, 5)), {}, ValueError, r"`obs`: expected \(B, 4\), got \(2, 5\)"),
        ([["a"] * 4], {}, ValueError, r"`obs`: expected float32, got <U1"),
        (np.zeros((1, 4)), {"observation": 1}, KeyError, "no column 'observation'"),
        (np.zeros((1, 4)), {"state_batches": [0]}, ValueError, "expected 0 arrays, got 1"),
    ],
    ids=["unbatched", "shape", "dtype", "unknown", "state"],
)
def test_what_does_not_fit_is_not_sent(plain, protocol, obs, kwargs, error, message):  # a12, e24
    _, server = plain
    with connect(server, protocol) as client:
        server.models.requests.clear()
        with pytest.raises(error, match=message):
            client.compute_actions(obs, **kwargs)
    assert server.models.requests == []


def test_values_outside_of_a_space_that_is_known_are_not_sent(tmp_path, protocol):
    with small_policy("pg", S.Discrete(3), THREE) as policy:
        policy.export_model(tmp_path)
    server = StandInServer(tmp_path)
    with connect(server, protocol, observation_space=S.Discrete(3)) as client:
        with pytest.raises(ValueError, match="row 1 is 3, outside of Discrete"):
            client.compute_actions([0, 3])
    server.close()
    assert server.models.requests == []


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        (
            {"observation_space": S.Box(-1, 1, (5,))},
            r"`observation_space` does not fit version 1 of model 'model': "
            r"expected {'obs': 'float32 \[5\]'}, it has {'obs': 'float32 \[4\]'}",
        ),
        ({"observation_space": S.Box(-1, 1, (4,), np.float64)}, "'obs': 'float64"),
        ({"observation_space": S.Dict(a=OBS)}, "'obs_a'"),
        ({"action_space": S.Box(-1, 1, (2,))}, "`action_space` does not fit"),
    ],
)
def test_spaces_that_are_not_those_of_the_policy_are_refused(plain, protocol, spaces, message):
    with pytest.raises(SignatureError, match=message):
        connect(plain[1], protocol, **spaces)


class Doubling(tf.Module):
    """No policy."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def __call__(self, x):
        return {"y": 2 * x}


def test_a_model_that_is_no_policy_is_refused(tmp_path, protocol):
    module = Doubling()
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.__call__)
    server = StandInServer(tmp_path)
    with pytest.raises(SignatureError, match="signatures serving_default and sample, but it has"):
        connect(server, protocol)
    signatures = {"serving_default": module.__call__, "sample": module.__call__}
    tf.saved_model.save(module, str(tmp_path / "2"), signatures=signatures)
    with pytest.raises(SignatureError, match="must act as a policy does"):
        connect(server, protocol)
    server.close()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"protocol": "soap"}, ValueError, "one of grpc, rest, got 'soap'"),
        ({"version": "3"}, ValueError, "a number as an int, or a label"),
        ({"version": "a/b"}, ValueError, "letters, digits"),
        ({"version": -1}, ValueError, "of 0 to 9223372036854775807, got -1"),
        ({"version": 2**63}, ValueError, "of 0 to 9223372036854775807, got 9223372036854775808"),
        ({"version": True}, TypeError, "number, a label or None, got True"),
        ({"timeout": 0}, ValueError, "`timeout` must be positive, got 0"),
        ({"retry_for": -1}, ValueError, "`retry_for` must be at least 0, got -1"),
        ({"max_batch_size": 0}, ValueError, "`max_batch_size` must be at least 1, got 0"),
        ({"observation_space": 4}, TypeError, "`observation_space`: expected a gymnasium space"),
        ({"protocol": "rest", "credentials": 1}, ValueError, "`credentials` are for gRPC"),
    ],
)
def test_arguments_are_checked_before_anybody_is_asked(arguments, error, message):
    with pytest.raises(error, match=message):
        PolicyClient("nobody.invalid:1", "model", **arguments)


@pytest.mark.parametrize(
    ("address", "protocol"),
    [("", "rest"), ("http://", "rest"), ("a:99999", "rest"), ("http://localhost:8501", "grpc")],
)
def test_an_address_must_be_one(address, protocol):
    with pytest.raises(ValueError, match="address|parse"):
        PolicyClient(address, "model", protocol=protocol)


@pytest.mark.parametrize(
    ("protocol", "package"), [("grpc", "grpc"), ("rest", "urllib3"), ("grpc", "tenacity")]
)
def test_a_missing_package_names_the_extra(monkeypatch, protocol, package):
    for module in ("grpc_transport", "rest_transport", "retries"):
        monkeypatch.delitem(sys.modules, f"tfpolicy.serving.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"package {package}: pip install tfpolicy\[serving\]"):
        PolicyClient("127.0.0.1:1", "model", protocol=protocol)


def test_after_closing_it_says_so(plain, protocol):
    client = connect(plain[1], protocol)
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.compute_single_action(np.zeros(4))


# Versions.


@pytest.fixture
def versions(plain_policy, plain_base, tmp_path):
    """A folder with one version, a server of it, and what makes further ones."""
    base = shutil.copytree(plain_base, tmp_path / "versions")
    server = StandInServer(base)

    def publish(obs_space=OBS, seed=8):
        with small_policy("pg", obs_space, THREE) as policy:
            lively(policy, seed).export_model(base)

    yield base, server, publish
    server.close()


def value(client, obs):
    return float(client.compute_single_action(obs)[2]["vf_preds"])


def test_a_version_is_the_newest_or_a_number_or_a_label(versions, plain_policy, protocol):
    base, server, publish = versions
    obs = np.ones(4, np.float32)
    first = float(plain_policy.compute_single_action(obs, explore=False)[2]["vf_preds"])
    publish()
    (base / "labels.json").write_text(json.dumps({"stable": 1, "canary": 2}))
    with (
        connect(server, protocol) as newest,
        connect(server, protocol, 1) as one,
        connect(server, protocol, "stable") as stable,
        connect(server, protocol, "canary") as canary,
    ):
        assert [c.version for c in (newest, one, stable, canary)] == [2, 1, 1, 2]
        assert value(one, obs) == value(stable, obs) == pytest.approx(first, abs=1e-6)
        second = value(newest, obs)
        assert value(canary, obs) == second != first
        # Promoted: the label moves, and who asks for it need not know.
        (base / "labels.json").write_text(json.dumps({"stable": 2, "canary": 2}))
        assert value(stable, obs) == second
        # And rolled back.
        (base / "labels.json").write_text(json.dumps({"stable": 1, "canary": 2}))
        assert value(stable, obs) == value(one, obs)


def test_what_the_server_does_not_have_is_named(versions, protocol):
    base, server, _ = versions
    for number in (7, 2**63 - 1):
        missing = f"does not have model 'model', version {number}: .*not fo"
        with pytest.raises(ModelNotFoundError, match=missing):
            connect(server, protocol, number)
    missing = "does not have model 'model', label 'nobody': .*label: nobody"
    with pytest.raises(ModelNotFoundError, match=missing):
        connect(server, protocol, "nobody")
    labels = base / "labels.json"
    labels.write_text(json.dumps({"stable": 1}))
    with connect(server, protocol, "stable") as client:
        labels.unlink()
        with pytest.raises(ModelNotFoundError, match="label 'stable'"):
            client.compute_single_action(np.zeros(4))
    with pytest.raises(ModelNotFoundError, match="does not have model 'other'"):
        PolicyClient(server.address(protocol), "other", protocol=protocol)


def test_a_newer_version_that_takes_something_else_is_noticed(versions, protocol):
    _, server, publish = versions
    with (
        connect(server, protocol) as client,
        connect(server, protocol, observation_space=OBS) as spaced,
    ):
        client.compute_single_action(np.zeros(4))
        publish(S.Box(-1, 1, (6,)))
        with pytest.raises(ValueError, match=r"expected \(B, 6\), got \(1, 4\)"):
            client.compute_single_action(np.zeros(4))
        assert client.version == 2
        assert client.compute_single_action(np.zeros(6))[0] in (0, 1, 2)
        with pytest.raises(SignatureError, match="`observation_space` does not fit version 2"):
            spaced.compute_single_action(np.zeros(4))


def test_a_newer_version_may_take_what_the_caller_gives_already(versions, protocol):
    _, server, publish = versions
    with connect(server, protocol) as client:
        publish(S.Box(-1, 1, (6,)))
        assert client.compute_single_action(np.zeros(6))[0] in (0, 1, 2)
        assert client.version == 2


# Views of earlier steps.

LOOKING_BACK = {
    "frames": (NESTED, THREE, {"num_framestacks": 3}),
    "windows": (
        OBS,
        S.Dict(go=THREE, by=S.Box(-2, 5, (2,))),
        {
            "use_attention": True,
            "attention_memory_inference": 3,
            "attention_use_n_prev_actions": 2,
            "attention_use_n_prev_rewards": 2,
        },
    ),
}


@pytest.fixture(scope="module", params=LOOKING_BACK)
def looking_back(request, tmp_path_factory):
    """What was exported of a policy that sees earlier steps, and a server of it."""
    base = tmp_path_factory.mktemp("looking_back")
    obs_space, action_space, model = LOOKING_BACK[request.param]
    model = {"fcnet_hiddens": [8], "max_seq_len": 4, **model}
    with small_policy("pg", obs_space, action_space, model=model) as policy:
        lively(policy).export_model(base)
    server = StandInServer(base)
    yield base, server
    server.close()


def test_what_is_seen_of_earlier_steps_is_given_from_a_history(looking_back, protocol):
    base, server = looking_back
    with load_policy(base) as served:
        spaces = served.observation_space, served.action_space
        with connect(
            server, protocol, observation_space=spaces[0], action_space=spaces[1]
        ) as client:
            history = History(served.view_requirements, num_envs=2, blanks=served.blanks)
            states = None
            for step in range(5):
                history.append({"obs": sample_rows(spaces[0], 2, step)})
                columns = {
                    name: value
                    for name, value in history.views().items()
                    if not name.startswith("state_in_")
                }
                given = {f"state_in_{index}": state for index, state in enumerate(states or [])}
                actions, states, extras = served.compute_actions_from_input_dict(
                    {**columns, **given}
                )
                found = client.compute_actions_from_input_dict(columns, sessions=["a", "b"])
                np.testing.assert_allclose(
                    found[2]["action_logp"], extras["action_logp"], rtol=1e-5, atol=1e-6
                )
                history.append({"actions": actions, "rewards": np.ones(2, np.float32)})
        with pytest.raises(KeyError, match="needs the column 'prev_n_.*History"):
            with connect(
                server, protocol, observation_space=spaces[0], action_space=spaces[1]
            ) as client:
                client.compute_actions(sample_rows(spaces[0], 2, 0))


def test_inputs_that_do_not_tell_the_observation_need_its_space(looking_back, protocol):
    base, server = looking_back
    with load_policy(base) as served:
        if "obs" in served._graph.signatures["serving_default"].inputs:
            return
    with pytest.raises(SignatureError, match="`observation_space` must be given, .*prev_n_obs"):
        connect(server, protocol)
