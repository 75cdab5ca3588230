"""What the files around the package say about each other is true."""

import configparser
import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import tfpolicy

ROOT = Path(tfpolicy.__file__).parents[1]
TEST_COMMAND = (
    'python3 -m venv .venv && .venv/bin/pip install -e ".[test]" && .venv/bin/python -m pytest'
)


def text(name):
    return (ROOT / name).read_text()


def setup():
    parser = configparser.RawConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_readers_are_told_the_command_that_ci_runs(name):
    blocks = re.findall(r"```sh\n(.*?)```", text(name), re.DOTALL)
    assert TEST_COMMAND in [line for block in blocks for line in block.splitlines()]


def test_ci_runs_the_command_that_readers_are_told():
    script = text(".ci/run")
    assert f"readonly COMMAND='{TEST_COMMAND}'\n" in script
    assert script.splitlines()[-1].endswith('bash -c "$COMMAND"')
    subprocess.run(["bash", "-n", ROOT / ".ci/run"], check=True)


def test_ci_gives_up_before_it_is_given_up():
    (seconds,) = re.findall(r"SECONDS_AT_MOST=(\d+)", text(".ci/run"))
    assert int(seconds) < 60 * 60


def test_learning_runs_have_a_command_that_readme_names():
    assert "-m pytest -m slow" in " ".join(text("README.md").split())
    assert "\t$(PYTHON) -m pytest -m slow\n" in text("Makefile")
    assert "not slow" in setup()["tool:pytest"]["addopts"]


def test_check_is_format_lint_types_and_tests():
    makefile = text("Makefile")
    targets = dict(re.findall(r"^([a-z-]+):(.*)$", makefile, re.MULTILINE))
    assert targets["check"].split() == ["format-check", "lint", "types", "test"]
    assert set(targets) - {"check"} == {"format", "format-check", "lint", "types", "test", "slow"}
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(phony.split()) == set(targets)


def test_hooks_run_what_check_runs():
    (repo,) = YAML(typ="safe").load(text(".pre-commit-config.yaml"))["repos"]
    # Hooks of other repositories would be fetched at the first commit.
    assert repo["repo"] == "local"
    entries = [hook["entry"] for hook in repo["hooks"]]
    for command in ("ruff format --check", "ruff check", "mypy"):
        assert f"python -m {command}" in entries
        assert f"$(PYTHON) -m {command}" in text("Makefile")


def test_version_is_the_same_everywhere_and_changes_are_kept():
    assert setup()["metadata"]["version"] == tfpolicy.__version__
    heads = re.findall(r"^## (.*)$", text("CHANGELOG.md"), re.MULTILINE)
    assert heads[0] == "Unreleased"


def test_licence_is_the_one_that_is_declared():
    assert setup()["metadata"]["license"] == "Apache-2.0"
    assert "Apache License\n" in text("LICENSE") and "Version 2.0" in text("LICENSE")


def test_every_supported_python_is_declared():
    metadata = setup()
    declared = re.findall(r"Python :: 3\.(\d+)", metadata["metadata"]["classifiers"])
    low, high = re.findall(r"3\.(\d+)", metadata["options"]["python_requires"])
    assert [int(minor) for minor in declared] == list(range(int(low), int(high)))
