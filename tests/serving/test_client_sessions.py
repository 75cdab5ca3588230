"""A client keeps what a recurrent policy remembers, by session and by version."""

import concurrent.futures
import contextlib
import json
import shutil
import threading

import grpc
import gymnasium as gym
import numpy as np
import pytest
from serving_policies import LSTM, lively
from small_policies import OBS, THREE, small_policy
from stand_in_server import StandInServer

from tfpolicy import load_policy
from tfpolicy.serving import PolicyClient, ServerUnavailableError, SessionLostError, SignatureError

S = gym.spaces
GO_BY = S.Dict(go=THREE, by=S.Box(-2, 5, (2,), np.float64))


def connect(server, protocol, *arguments, **kwargs):
    return PolicyClient(server.address(protocol), "model", *arguments, protocol=protocol, **kwargs)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (*shape, 4)).astype(np.float32)


def episode(policy, observations, state=None):
    """What the policy does: actions, log-probabilities and the state at the end."""
    actions, logps = [], []
    for obs in observations:
        action, state, extras = policy.compute_single_action(obs, state, explore=False)
        actions.append(action)
        logps.append(extras["action_logp"])
    return actions, logps, state


def test_a_session_remembers_as_the_policy_does(recurrent, protocol):  # a25
    policy, server = recurrent
    observations = draw(10)
    actions, logps, final = episode(policy, observations)
    with connect(server, protocol) as client:
        assert client.is_recurrent()
        for obs, action, logp in zip(observations, actions, logps, strict=True):
            found, states, extras = client.compute_single_action(obs, session="a")
            assert (found, extras["action_logp"]) == (action, logp)
        np.testing.assert_array_equal(states, final)
        assert client.sessions == ["a"]


def test_a_session_that_ended_begins_anew(recurrent, protocol):
    policy, server = recurrent
    observations = draw(3)
    _, logps, _ = episode(policy, observations)
    with connect(server, protocol) as client:
        for _ in range(2):
            for obs, logp in zip(observations, logps, strict=True):
                assert client.compute_single_action(obs, session=1)[2]["action_logp"] == logp
            client.end_session(1)
            assert client.sessions == []
        client.end_session("never begun")


def test_a_batch_steps_the_sessions_of_its_rows(recurrent, protocol):
    """Rows come and go, and stand in another order at every step."""
    policy, server = recurrent
    observations = draw(5, 6)
    expected = [episode(policy, observations[i])[1] for i in range(5)]
    rng = np.random.default_rng(1)
    steps = [0] * 5
    with connect(server, protocol) as client:
        while min(steps) < 6:
            rows = [int(row) for row in rng.permutation(5)[: rng.integers(1, 6)] if steps[row] < 6]
            if not rows:
                continue
            batch = np.stack([observations[row, steps[row]] for row in rows])
            actions, states, extras = client.compute_actions(batch, sessions=rows)
            assert actions.shape == (len(rows),) and states[0].shape == (len(rows), 8)
            for row, logp in zip(rows, extras["action_logp"], strict=True):
                assert logp == pytest.approx(expected[row][steps[row]], abs=1e-5)
                steps[row] += 1
        assert sorted(client.sessions) == list(range(5))


def test_states_can_be_given_and_taken_instead(recurrent, protocol):
    policy, server = recurrent
    observations = draw(4)
    actions, logps, final = episode(policy, observations)
    with connect(server, protocol) as client:
        state = client.get_initial_state()
        np.testing.assert_array_equal(state, policy.get_initial_state())
        for obs, logp in zip(observations, logps, strict=True):
            _, state, extras = client.compute_single_action(obs, state)
            assert extras["action_logp"] == logp
        np.testing.assert_array_equal(state, final)
        missing = client.compute_actions(observations)[1]
        given = client.compute_actions(
            observations, [np.repeat(s[None], 4, 0) for s in client.get_initial_state()]
        )[1]
        np.testing.assert_array_equal(missing, given)
        assert client.sessions == []


@pytest.fixture(scope="module")
def reading_previous(tmp_path_factory):
    """What a policy exported that reads its previous actions, which are nested, and rewards."""
    base = tmp_path_factory.mktemp("reading_previous")
    model = {**LSTM, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
    with small_policy("pg", OBS, GO_BY, model=model) as policy:
        lively(policy).export_model(base)
    return base


def test_previous_actions_and_rewards_are_those_of_the_environment(reading_previous, protocol):
    server = StandInServer(reading_previous)
    action, reward, state = GO_BY.sample(), 0.0, None
    with (
        connect(server, protocol, action_space=GO_BY) as client,
        load_policy(reading_previous) as served,
    ):
        for step, obs in enumerate(draw(4)):
            prev = {"prev_action": action, "prev_reward": reward}
            expected, state, wanted = served.compute_single_action(obs, state, **prev)
            action, _, extras = client.compute_single_action(obs, session=0, **prev)
            assert extras["action_logp"] == wanted["action_logp"]
            assert action["go"] == expected["go"]
            np.testing.assert_array_equal(action["by"], expected["by"])
            reward = float(step)
        with pytest.raises(KeyError, match="needs the column 'prev_actions'"):
            client.compute_single_action(draw(1)[0], session=0)
    server.close()


@pytest.mark.parametrize("max_batch_size", [None, 8])
def test_sessions_in_threads_do_not_mix(recurrent, protocol, max_batch_size):
    policy, server = recurrent
    observations = draw(12, 10)
    with (
        connect(server, protocol, max_batch_size=max_batch_size) as client,
        concurrent.futures.ThreadPoolExecutor(12) as pool,
    ):

        def run(key):
            return [client.compute_single_action(obs, session=key) for obs in observations[key]]

        found = list(pool.map(run, range(12)))
    for key, steps in enumerate(found):
        actions, logps, final = episode(policy, observations[key])
        assert [action for action, _, _ in steps] == actions
        np.testing.assert_allclose([e["action_logp"] for _, _, e in steps], logps, atol=1e-5)
        np.testing.assert_allclose(steps[-1][1], final, atol=1e-5)


# What cannot be.


def test_a_step_that_fails_is_no_step(recurrent, protocol):
    policy, server = recurrent
    observations = draw(3)
    logps = episode(policy, observations)[1]
    with connect(server, protocol, retry_for=0) as client:
        client.compute_actions(observations[:1], sessions=["a"])
        with pytest.raises(ValueError, match=r"expected \(B, 4\)"):
            client.compute_actions(np.zeros((1, 3)), sessions=["a"])
        with pytest.raises(KeyError, match="no column"):
            client.compute_single_action(observations[1], session="a", nothing=1)
        server.models.faults.append(grpc.StatusCode.UNAVAILABLE)
        with pytest.raises(ServerUnavailableError):
            client.compute_actions(observations[1:2], sessions=["a"])
        for obs, logp in zip(observations[1:], logps[1:], strict=True):
            found = client.compute_single_action(obs, session="a")[2]["action_logp"]
            assert found == logp


def test_sessions_that_make_no_sense_are_refused(recurrent, protocol):
    _, server = recurrent
    with connect(server, protocol) as client:
        state = client.get_initial_state()
        for call in (
            lambda: client.compute_single_action(draw(1)[0], state, session=1),
            lambda: client.compute_actions(draw(1), [s[None] for s in state], sessions=[1]),
        ):
            with pytest.raises(ValueError, match="either a state or a session"):
                call()
        with pytest.raises(ValueError, match="each session once, got 'a' twice"):
            client.compute_actions(draw(3), sessions=["a", "b", "a"])
        with pytest.raises(ValueError, match="one for each of 3 rows, got 2"):
            client.compute_actions(draw(3), sessions=["a", "b"])
        assert client.sessions == []


def test_a_session_makes_one_step_at_a_time(recurrent, protocol):
    _, server = recurrent
    with connect(server, protocol) as client:
        client.compute_single_action(draw(1)[0], session="a")
        server.models.faults.append(1.0)  # Seconds.
        slow = threading.Thread(target=client.compute_single_action, args=(draw(1)[0],),
                                kwargs={"session": "a"})  # fmt: skip
        slow.start()
        while server.models.faults:
            pass
        with pytest.raises(RuntimeError, match="Session 'a' is in a step already"):
            client.compute_actions(draw(2), sessions=["b", "a"])
        slow.join()
        client.compute_actions(draw(2), sessions=["b", "a"])


# Versions.


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    """For each size of its cells a policy, and the folder of what it exported."""
    with contextlib.ExitStack() as stack:
        policies = {}
        for cell_size in (8, 5):
            model = {**LSTM, "lstm_cell_size": cell_size}
            policy = stack.enter_context(small_policy("pg", OBS, THREE, model=model))
            exported = lively(policy, 8).export_model(tmp_path_factory.mktemp("newer"))
            policies[cell_size] = policy, exported
        yield policies


@pytest.fixture
def versions(recurrent_base, newer, tmp_path):
    """A folder with one version, a server of it, and what adds a further one."""
    base = shutil.copytree(recurrent_base, tmp_path / "versions")
    server = StandInServer(base)

    def publish(number, cell_size=8):
        policy, exported = newer[cell_size]
        shutil.copytree(exported, base / str(number))
        return policy

    yield base, server, publish
    server.close()


@pytest.mark.parametrize("cell_size", [8, 5])
def test_a_session_stays_with_its_version(versions, recurrent_policy, protocol, cell_size):
    _, server, publish = versions
    observations = draw(6)
    old = episode(recurrent_policy, observations)[1]
    with connect(server, protocol) as client:
        for obs, logp in zip(observations[:3], old, strict=False):
            assert client.compute_single_action(obs, session="old")[2]["action_logp"] == logp
        new = episode(publish(2, cell_size), observations)[1]
        # A batch of both, which two versions answer.
        for step in range(3):
            rows = np.stack([observations[step], observations[3 + step]])
            actions, states, extras = client.compute_actions(rows, sessions=["new", "old"])
            found = extras["action_logp"]
            np.testing.assert_allclose(found, [new[step], old[3 + step]], atol=1e-6)
            # Of unequal sizes there is no array.
            assert len(states) == (4 if cell_size == 8 else 0) and actions.shape == (2,)


def test_a_session_whose_version_is_gone_says_so_once_and_begins_anew(
    versions, recurrent_policy, protocol
):
    base, server, publish = versions
    observations = draw(3)
    with connect(server, protocol) as client:
        client.compute_actions(observations, sessions=["a", "b", "c"])
        new = episode(publish(2), observations)[1]
        client.compute_single_action(observations[0], session="d")
        shutil.rmtree(base / "1")
        with pytest.raises(SessionLostError, match="version 1: .*state of 'b', 'a' was its own"):
            client.compute_actions(observations, sessions=["b", "d", "a"])
        assert client.sessions == ["c", "d"]
        for obs, logp in zip(observations, new, strict=True):
            assert client.compute_single_action(obs, session="a")[2]["action_logp"] == logp
        # What was in the same batch has made no step.
        found = client.compute_single_action(observations[1], session="d")[2]["action_logp"]
        assert found == new[1]


def test_new_sessions_go_where_a_label_points(versions, protocol):
    base, server, publish = versions
    publish(2)
    (base / "labels.json").write_text(json.dumps({"stable": 1}))
    obs = draw(1)[0]
    with connect(server, protocol, "stable") as client:
        first = client.compute_single_action(obs, session=1)[2]["action_logp"]
        (base / "labels.json").write_text(json.dumps({"stable": 2}))
        second = client.compute_single_action(obs, session=2)[2]["action_logp"]
        client.end_session(1)
        assert client.compute_single_action(obs, session=1)[2]["action_logp"] == second != first
        assert client.version == 2


def test_a_number_that_means_another_model_now_is_noticed(versions, protocol):
    base, server, publish = versions
    with connect(server, protocol) as client:
        client.compute_single_action(draw(1)[0], session="a")
        shutil.rmtree(base / "1")
        publish(1, cell_size=5)
        server.models._loaded.clear()
        with pytest.raises(SignatureError, match="refused what it was sent: .*state_in_"):
            client.compute_single_action(draw(1)[0], session="a")
        _, states, _ = client.compute_single_action(draw(1)[0], session="b")
        assert states[0].shape == (5,)
