"""A server that is away, slow, or answers nonsense; over both protocols."""

import http.server
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from grpc import StatusCode

from tfpolicy.export.inference import Signature
from tfpolicy.serving import (
    ModelNotFoundError,
    PolicyClient,
    ServerError,
    ServerUnavailableError,
    SignatureError,
)
from tfpolicy.serving.rest_transport import RestTransport
from tfpolicy.serving.transport import Endpoint

OBS = np.zeros(4, np.float32)


def connect(server, protocol, **kwargs):
    return PolicyClient(server.address(protocol), "model", protocol=protocol, **kwargs)


@pytest.fixture
def server(plain):
    yield plain[1]
    plain[1].models.faults.clear()


def test_a_server_that_is_unavailable_is_asked_again(plain, server, protocol, caplog):
    expected = plain[0].compute_single_action(OBS, explore=False)[0]
    server.models.faults.extend([StatusCode.UNAVAILABLE] * 3)
    with connect(server, protocol) as client:
        server.models.faults.extend([StatusCode.UNAVAILABLE] * 3)
        caplog.clear()
        assert client.compute_single_action(OBS)[0] == expected
        assert not server.models.faults
    (message,) = caplog.messages
    assert "is unavailable: planned" in message and "asking again for 30 s" in message


def test_waits_grow_and_end(server, protocol):
    with connect(server, protocol, retry_for=1.0) as client:
        server.models.faults.extend([StatusCode.UNAVAILABLE] * 1000)
        start = time.monotonic()
        with pytest.raises(ServerUnavailableError, match=r"is unavailable: planned.*tried for 1 s"):
            client.compute_single_action(OBS)
        assert 0.1 < time.monotonic() - start < 5
        # Without backoff there would be hundreds; the n-th wait is half of 0.1 * 2^n on average.
        assert 2 <= 1000 - len(server.models.faults) < 100


def test_who_does_not_retry_is_told_at_once(server, protocol):
    with connect(server, protocol, retry_for=0) as client:
        server.models.faults.append(StatusCode.UNAVAILABLE)
        with pytest.raises(ServerUnavailableError, match="tried for 0 s"):
            client.compute_single_action(OBS)
        assert client.compute_single_action(OBS)


def test_an_answer_that_takes_too_long_is_asked_for_again(server, protocol):
    with connect(server, protocol, timeout=0.5) as client:
        server.models.faults.append(2.0)
        start = time.monotonic()
        client.compute_single_action(OBS)
        assert 0.5 <= time.monotonic() - start < 2.0
    with connect(server, protocol, timeout=0.3, retry_for=0) as client:
        server.models.faults.append(2.0)
        with pytest.raises(ServerUnavailableError, match="(?i)deadline|timed out"):
            client.compute_single_action(OBS)


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (StatusCode.NOT_FOUND, ModelNotFoundError, "does not have model 'model': planned"),
        (StatusCode.INVALID_ARGUMENT, SignatureError, "refused what it was sent: planned"),
        (StatusCode.FAILED_PRECONDITION, SignatureError, "refused what it was sent: planned"),
        (StatusCode.INTERNAL, ServerError, "failed: planned"),
    ],
)
def test_what_asking_again_would_not_help_is_said_at_once(server, protocol, code, error, message):
    with connect(server, protocol) as client:
        server.models.faults.append(code)
        with pytest.raises(error, match=message):
            client.compute_single_action(OBS)
        assert not server.models.faults


def test_nobody_at_the_address_is_said_after_a_while(protocol):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ServerUnavailableError, match=rf"`{address}` is unavailable: .*0.2 s"):
            PolicyClient(address, "model", protocol=protocol, retry_for=0.2)


def test_closing_ends_the_waiting_of_other_threads(server, protocol):
    client = connect(server, protocol, retry_for=60)
    server.models.faults.extend([StatusCode.UNAVAILABLE] * 1000)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.compute_single_action, OBS)
        while len(server.models.faults) > 998:
            time.sleep(0.01)
        client.close()
        with pytest.raises(RuntimeError):
            waiting.result()


class Speaker(http.server.BaseHTTPRequestHandler):
    """Answers whatever it is told to."""

    status, body = 200, b""

    def do_GET(self):
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *args):
        pass


@pytest.fixture
def speaker():
    handler = type("Handler", (Speaker,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    handler.address = f"127.0.0.1:{server.server_port}"
    yield handler
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (200, b"<html>", ServerError, "no JSON"),
        (200, b"[1]", ServerError, r"no JSON object: \[1\]"),
        (200, b"{}", ServerError, "metadata that are none"),
        (200, b'{"model_spec": {"version": "x"}}', ServerError, "metadata that are none"),
        (404, b"<html>nothing here", ModelNotFoundError, "does not have .*nothing here.*404"),
        (403, b'{"error": "no entry"}', ServerError, r"failed: no entry \(403\)"),
        (500, b"[]", ServerError, r"failed: b'\[\]' \(500\)"),
        (503, b"", ServerUnavailableError, "503"),
        (429, b"slow down", ServerUnavailableError, "slow down"),
        (302, b"", ServerError, "302"),
    ],
)
def test_what_is_no_answer_of_such_a_server_is_said(speaker, status, body, error, message):
    speaker.status, speaker.body = status, body
    with pytest.raises(error, match=message):
        PolicyClient(speaker.address, "model", protocol="rest", retry_for=0)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (b"{}", ServerError, "no `outputs`"),
        (b'{"outputs": {"actions": [1]}}', SignatureError, "must answer action_dist_inputs as"),
        (b'{"outputs": {"actions": ["a"]}}', ServerError, "actions as no array of int64"),
        (b'{"outputs": {"actions": [1.5]}}', ServerError, "actions as no array of int64"),
        (b'{"outputs": {"vf_preds": [[1], 2]}}', ServerError, "vf_preds as no array of float32"),
        (
            b'{"outputs": {"action_dist_inputs": [[1, 2]]}}',
            SignatureError,
            r"action_dist_inputs as float32 \[1, 3\], got float32 \[1, 2\]",
        ),
    ],
)
def test_an_answer_of_another_form_is_refused(speaker, body, error, message):
    outputs = {
        "action_dist_inputs": tf.TensorSpec([None, 3], tf.float32),
        "actions": tf.TensorSpec([None], tf.int64),
        "vf_preds": tf.TensorSpec([None], tf.float32),
    }
    transport = RestTransport(speaker.address, "model", timeout=5.0)
    speaker.body = body
    with pytest.raises(error, match=message):
        transport.predict(Endpoint(None, "act", Signature({}, outputs)), {"obs": OBS[None]})
    transport.close()


def test_an_address_may_be_a_url_with_a_path(speaker):
    paths = []
    speaker.do_GET = lambda self: (paths.append(self.path), Speaker.do_GET(self))
    speaker.status = 404
    for version, end in ((None, ""), (3, "/versions/3"), ("new", "/labels/new")):
        with pytest.raises(ModelNotFoundError):
            url = f"http://{speaker.address}/base/"
            PolicyClient(url, "a b", version, "rest", retry_for=0)
        assert paths.pop() == f"/base/v1/models/a%20b{end}/metadata"
