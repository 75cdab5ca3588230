"""A disk that fails at any operation of any library: `faulty_disk.c`, compiled and preloaded."""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")
MODES = {"once": 0, "forever": 1, "kill": 2}
# What a writer may raise when the disk fails; anything else ends the script.
ERRORS = (OSError, RuntimeError, ValueError)


def run_preloaded(folder, script, *arguments):
    """Runs a script of this folder in a process whose disk can be made to fail; its output."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler on Linux")
    library = folder / "faulty_disk.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    tests = Path(__file__).parent
    paths = [str(tests), str(tests.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, tests / script, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "LD_PRELOAD": str(library),
            "PYTHONPATH": os.pathsep.join(paths),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    return done.stdout


class FaultyDisk:
    """What the preloaded library does, below one folder; for use in the script.

    Args:
        root: The folder.
    """

    def __init__(self, root):
        self._root = os.fsencode(os.path.realpath(root))
        self._library = ctypes.CDLL(None)
        self.failed = 0

    @contextlib.contextmanager
    def failing(self, nth, mode):
        """Fails the nth operation inside the block; `failed` then says how many did."""
        self._library.faults_arm(self._root, ctypes.c_long(nth), MODES[mode])
        try:
            yield
        finally:
            self.failed = self._library.faults_disarm()

    @contextlib.contextmanager
    def full_after(self, n_bytes):
        """Fails every write inside the block that goes beyond `n_bytes` in all."""
        self._library.faults_arm_full(self._root, ctypes.c_long(n_bytes))
        try:
            yield
        finally:
            self.failed = self._library.faults_disarm()
