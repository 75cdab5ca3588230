"""Whatever goes wrong while something is written, the earlier version stays and nothing half shows.

Faults are injected below Python and TensorFlow, at every operation on a file in turn.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from faulty_disk import run_preloaded
from small_policies import OBS, small_policy

from tfpolicy import load_policy
from tfpolicy.checkpoint import read_checkpoint
from tfpolicy.export.h5 import read_h5

NOBODY = 65534


def interrupted(tmp_path, kind, mode, stride=1):
    """How many attempts there were, how many failed, and how many of these kept the old one."""
    output = run_preloaded(tmp_path, "interrupted_writes.py", kind, tmp_path / "root", mode, stride)
    return map(int, output.splitlines()[-1].split())


@pytest.mark.parametrize("mode", ["once", "forever", "kill"])
@pytest.mark.parametrize("kind", ["checkpoint", "h5"])
def test_an_interruption_anywhere_leaves_the_old_or_the_new(tmp_path, kind, mode):
    attempts, failures, kept = interrupted(tmp_path, kind, mode)
    # The last attempt met no fault; some only meet one while cleaning up.
    assert attempts > failures >= kept >= {"checkpoint": 15, "h5": 5}[kind]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["once", "forever"])
def test_an_export_that_is_interrupted_anywhere_leaves_whole_versions(tmp_path, mode):
    attempts, failures, kept = interrupted(tmp_path, "saved_model", mode)
    assert attempts > failures >= kept > 100


@pytest.mark.parametrize("kind", ["checkpoint", "h5", "saved_model"])
def test_a_disk_that_is_full_at_any_byte_leaves_the_old(tmp_path, kind):
    attempts, failures, kept = interrupted(tmp_path, kind, "full", 10)
    assert kept == failures >= 8 and attempts >= 10


# A real disk that is full, and a folder that cannot be written.


@pytest.fixture(scope="module")
def policy():
    with small_policy("pg") as built:
        yield built


WRITERS = {
    "saved_model": lambda policy, folder: policy.export_model(folder / "model"),
    "checkpoint": lambda policy, folder: policy.save(folder / "checkpoint"),
    "h5": lambda policy, folder: policy.export_model_to_h5(folder / "weights.h5"),
}


def everything(folder):
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def assert_loads(folder, kind):
    if kind == "saved_model":
        with load_policy(folder / "model") as served:
            served.compute_single_action(OBS.sample())
    elif kind == "checkpoint":
        read_checkpoint(folder / "checkpoint")
    else:
        read_h5(folder / "weights.h5")


@contextlib.contextmanager
def mounted(folder, kilobytes):
    """A file system of this size, for whoever may mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_file_system_leaves_what_was_there(policy, tmp_path, kind):
    with mounted(tmp_path / "disk", 1024) as disk:
        WRITERS[kind](policy, disk)
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        for free in (0, 8192):  # Not even a folder has room, or some of the files have.
            os.truncate(disk / "ballast", (disk / "ballast").stat().st_size - free)
            before = everything(disk)
            with pytest.raises(OSError, match="No space left"):
                WRITERS[kind](policy, disk)
            assert everything(disk) == before
            assert_loads(disk, kind)


@contextlib.contextmanager
def unwritable(folder):
    """Takes the right to write in it from this process, which may run as root."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for each in folders:
        each.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for each in folders:
            each.chmod(0o755)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_folder_that_cannot_be_written_stays_as_it_is(policy, kind):
    # The folders of pytest are for their owner alone.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with unwritable(folder), pytest.raises(PermissionError):
            WRITERS[kind](policy, folder)
        assert everything(folder) == {}
        WRITERS[kind](policy, folder)
        before = everything(folder)
        with unwritable(folder), pytest.raises(PermissionError):
            WRITERS[kind](policy, folder)
        assert everything(folder) == before
        assert_loads(folder, kind)
