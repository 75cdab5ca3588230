"""A server that is killed and started again costs time and nothing else."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tfpolicy.serving import PolicyClient

PROGRAM = Path(__file__).with_name("stand_in_server.py")
SESSIONS, STEPS = 64, 200
REST_SESSIONS = 64


def free_ports():
    """Two ports below those of outgoing connections, none of which takes them during a restart."""
    ports = iter(range(20000 + os.getpid() % 10000, 32768))
    with contextlib.ExitStack() as probes:
        found = []
        while len(found) < 2:
            port = next(ports)
            probe = probes.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(str(port))
    return found


class ServerProcess:
    """The stand-in in a process of its own."""

    def __init__(self, base):
        self._base = base
        self.ports = free_ports()
        self._process = None

    def start(self):
        """Returns once it can be asked."""
        self._process = subprocess.Popen(
            [sys.executable, PROGRAM, self._base, *self.ports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        assert self._process.stdout.readline().split() == self.ports

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def server(recurrent_base):
    process = ServerProcess(recurrent_base)
    process.start()
    yield process
    process.kill()


def acted(act, observations, state):
    """Actions and log-probabilities of an episode, and the states after it."""
    actions, logps = [], []
    for obs in observations:
        action, state, extras = act(obs, state)
        actions.append(action)
        logps.append(extras["action_logp"])
    return np.array(actions), np.array(logps), state


def test_64_sessions_act_as_64_policies_while_the_server_is_killed_and_restarted(
    recurrent_policy, server
):
    observations = np.random.default_rng(0).uniform(-1, 1, (SESSIONS, STEPS, 4)).astype(np.float32)
    keys = [("grpc", number) for number in range(SESSIONS)]
    keys += [("rest", number) for number in range(REST_SESSIONS)]
    everybody_is_half_way = threading.Barrier(len(keys) + 1)
    clients = {
        protocol: PolicyClient(
            f"127.0.0.1:{port}", "model", protocol=protocol, retry_for=600, timeout=60
        )
        for protocol, port in zip(("grpc", "rest"), server.ports, strict=True)
    }

    def run(key):
        protocol, number = key
        steps = itertools.count()

        def act(obs, _):
            if next(steps) == STEPS // 2:
                everybody_is_half_way.wait()
            return clients[protocol].compute_single_action(obs, session=number)

        return acted(act, observations[number], None)

    with ThreadPoolExecutor(len(keys)) as pool, contextlib.ExitStack() as closing:
        for client in clients.values():
            closing.enter_context(client)
        runs = [pool.submit(run, key) for key in keys]
        everybody_is_half_way.wait()
        server.kill()
        assert not any(future.done() for future in runs)
        server.start()
        found = [future.result() for future in runs]

    def local(obs, state):
        return recurrent_policy.compute_single_action(obs, state, explore=False)

    expected = [acted(local, episode, None) for episode in observations]
    assert len({tuple(actions) for actions, _, _ in expected}) == SESSIONS
    for (_, number), (actions, logps, state) in zip(keys, found, strict=True):
        np.testing.assert_array_equal(actions, expected[number][0])
        np.testing.assert_array_equal(logps, expected[number][1])
        np.testing.assert_array_equal(state, expected[number][2])
