"""What README and the page about serving say can be done."""

import json
import re
from pathlib import Path

import gymnasium as gym
import pytest
from google.protobuf import text_format
from serving_policies import LSTM, lively
from small_policies import small_policy
from stand_in_server import StandInServer
from tensorflow_serving.config import model_server_config_pb2

import tfpolicy
from tfpolicy import serving

ROOT = Path(tfpolicy.__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs/serving.md").read_text()


def block(language, containing, page=README):
    blocks = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base = tmp_path_factory.mktemp("cartpole")
    env = gym.make("CartPole-v1")
    with small_policy("pg", env.observation_space, env.action_space, model=LSTM) as policy:
        lively(policy).export_model(base)
    server = StandInServer(base, "cartpole")
    yield server
    server.close()


def test_the_config_of_versions_and_labels_is_one():
    config = text_format.Parse(
        block("proto", "version_labels"), model_server_config_pb2.ModelServerConfig()
    )
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path) == ("cartpole", "/models/cartpole")
    assert list(model.model_version_policy.specific.versions) == [1, 2]
    assert dict(model.version_labels) == {"stable": 1, "canary": 2}
    rollback = re.search(r"`(model_version_policy \{.*?\})`", README)[1]
    text_format.Parse(rollback, model_server_config_pb2.ModelConfig())


def test_the_config_of_batching_has_the_names_of_its_message():
    lines = block("proto", "batch_timeout_micros").splitlines()
    names = [re.fullmatch(r"(\w+) \{ value: \d+ \}", line)[1] for line in lines]
    # Of `BatchingParameters`, which the published package does not have.
    assert names == [
        "max_batch_size",
        "batch_timeout_micros",
        "max_enqueued_batches",
        "num_batch_threads",
    ]


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_the_example_plays_an_episode(server, protocol):
    program = block("python", "PolicyClient", PAGE)
    if protocol == "rest":
        program = program.replace('"cartpole",', '"cartpole", protocol="rest",')
    program = program.replace("localhost:8500", server.address(protocol))
    server.models.requests.clear()
    names = {}
    exec(program, names)
    assert names["ended"] and names["client"].sessions == []
    assert len(server.models.requests) > 5


def test_the_line_for_curl_is_answered(server):
    import urllib3

    line = block("sh", "curl -d")
    body, url = re.search(r"curl -d '(.*)' http://localhost:8501(\S+)", line).groups()
    answer = urllib3.request("POST", f"http://{server.address('rest')}{url}", body=body)
    # This model is recurrent, and says what the line would have to give besides.
    assert "state_in_0" in answer.json()["error"]
    states = {f"state_in_{index}": [0.0] * 8 for index in range(4)}
    (row,) = json.loads(body)["instances"]
    body = json.dumps({"instances": [{"obs": row, **states}]})
    answer = urllib3.request("POST", f"http://{server.address('rest')}{url}", body=body)
    assert answer.json()["predictions"][0]["actions"] in (0, 1)


def test_the_page_names_every_error_of_the_client():
    named = set(re.findall(r"^\| `(\w+Error)` \|", PAGE, re.MULTILINE))
    assert named == {name for name in serving.__all__ if name.endswith("Error")}


def test_readme_leads_to_the_pages():
    for page in ("docs/serving.md", "docs/observation-filter.md"):
        assert page in README and (ROOT / page).exists()
