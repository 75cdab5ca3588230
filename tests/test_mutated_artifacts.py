"""A damaged artifact loads as exactly the right policy or is refused; nothing else can happen."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutated_artifacts import KINDS, run

ATTEMPTS = 1000


def needs(kind):
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_artifacts_are_refused_or_right(tmp_path, kind):
    needs(kind)
    counts = run(kind, tmp_path, count=60, seed=1)
    assert counts.total() == 60 * len(KINDS[kind][2])
    # A damage may be none, such as zeros in the place of zeros.
    assert counts["loaded"] < counts.total() / 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_damages_end_no_process_and_run_no_code(tmp_path, kind):
    needs(kind)
    tests = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, tests / "mutated_artifacts.py", kind, tmp_path, str(ATTEMPTS), "0"],
        capture_output=True,
        text=True,
        timeout=600,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1:]}: {done.stderr[-3000:]}"
    counts = ast.literal_eval(lines[-1])
    assert sum(counts.values()) == ATTEMPTS * len(KINDS[kind][2])
    assert counts.get("loaded", 0) < ATTEMPTS / 4
