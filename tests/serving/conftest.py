"""Policies, what they exported, and servers of it."""

import pytest
from serving_policies import LSTM, lively
from small_policies import OBS, THREE, small_policy
from stand_in_server import StandInServer


@pytest.fixture(params=["grpc", "rest"])
def protocol(request):
    return request.param


@pytest.fixture(scope="package")
def plain_policy():
    with small_policy("pg", OBS, THREE) as policy:
        yield lively(policy)


@pytest.fixture(scope="package")
def plain_base(plain_policy, tmp_path_factory):
    """The folder of versions of a policy without a state."""
    base = tmp_path_factory.mktemp("plain")
    plain_policy.export_model(base)
    return base


@pytest.fixture(scope="package")
def plain(plain_policy, plain_base):
    """A policy without a state, and a server of it."""
    server = StandInServer(plain_base)
    yield plain_policy, server
    server.close()


@pytest.fixture(scope="package")
def recurrent_policy():
    with small_policy("pg", OBS, THREE, model=LSTM) as policy:
        yield lively(policy)


@pytest.fixture(scope="package")
def recurrent_base(recurrent_policy, tmp_path_factory):
    base = tmp_path_factory.mktemp("recurrent")
    recurrent_policy.export_model(base)
    return base


@pytest.fixture
def recurrent(recurrent_policy, recurrent_base):
    """A recurrent policy, and a server of it."""
    server = StandInServer(recurrent_base)
    yield recurrent_policy, server
    server.close()
