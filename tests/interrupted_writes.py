"""Writes artifacts while the disk fails at each operation in turn; run by test_interrupted_writes.

    interrupted_writes.py ARTIFACT FOLDER MODE STRIDE

Every attempt starts from a sound earlier version, and afterwards checks that the earlier or the new
one can be loaded, that nothing else can be seen, and that the next success leaves nothing hidden.
"""

import itertools
import os
import shutil
import sys
from pathlib import Path

import numpy as np
from faulty_disk import ERRORS, FaultyDisk


class SavedModels:
    """Versions of a SavedModel in a folder."""

    def __init__(self):
        from small_policies import small_policy

        from tfpolicy.checksums import check_folder
        from tfpolicy.export.inference import build_inference

        self.check = check_folder
        with small_policy("pg") as policy:
            spaces = policy.observation_space, policy.action_space
            self.graph = build_inference(*spaces, policy.config, policy.get_weights())
            self.parts = policy._description(), policy._example()

    def write(self, folder):
        from tfpolicy.export.saved_model import export_saved_model

        export_saved_model(folder / "model", self.graph, *self.parts)

    def write_quickly(self, folder):
        from tfpolicy.export.publish import publish_version

        publish_version(folder / "model", lambda staged: (staged / "x").write_text("x"))

    def check_whole(self, folder):
        found = {path.name for path in (folder / "model").iterdir()}
        versions = {name for name in found if not name.startswith(".tmp-")}
        assert versions in ({"1"}, {"1", "2"}), found
        for version in versions:
            self.check(folder / "model" / version)
        return len(versions) == 2


class Checkpoints:
    """One checkpoint, which is replaced."""

    count = 0

    def write(self, folder):
        from tfpolicy.checkpoint import write_checkpoint

        self.count += 1
        state = {"weights": np.arange(50.0) + self.count, "step": self.count}
        write_checkpoint(folder / "checkpoint", {"count": self.count}, state)

    write_quickly = write

    def check_whole(self, folder):
        from tfpolicy.checkpoint import read_checkpoint

        description, state = read_checkpoint(folder / "checkpoint")
        count = description["count"]
        np.testing.assert_array_equal(state["weights"], np.arange(50.0) + count)
        assert state["step"] == count
        return count > 1


class H5Files:
    """One h5 file, which is replaced."""

    count = 0

    def write(self, folder):
        from tfpolicy.export.h5 import write_h5

        self.count += 1
        own = {"description": "{}", "count": np.int64(self.count)}
        layers = [("fc", [("kernel", np.arange(500.0) + self.count)])]
        write_h5(folder / "weights.h5", layers, own=own)

    write_quickly = write

    def check_whole(self, folder):
        from tfpolicy.export.h5 import read_h5, read_own

        count = int(read_own(folder / "weights.h5")["count"])
        ((_, ((_, kernel),)),) = read_h5(folder / "weights.h5")
        np.testing.assert_array_equal(kernel, np.arange(500.0) + count)
        return count > 1


KINDS = {"saved_model": SavedModels, "checkpoint": Checkpoints, "h5": H5Files}


def write(artifact, folder, mode):
    """Whether it came to an end; a killed process is one of its own."""
    if mode != "kill":
        try:
            artifact.write(folder)
        except ERRORS as error:
            # Each kind is met once, so that one that says nothing is seen.
            print(f"{type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            return False
        return True
    child = os.fork()
    if not child:
        try:
            artifact.write(folder)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def hidden(folder):
    return [str(path) for path in folder.rglob("*") if path.name.startswith(".tmp-")]


def attempt(artifact, before, folder, context, mode):
    """One write with a fault; whether it failed and whether the new one can be seen."""
    shutil.copytree(before, folder)
    artifact.count = 1
    with context:
        done = write(artifact, folder, mode)
    is_new = artifact.check_whole(folder)
    assert is_new or not done
    artifact.write_quickly(folder)
    assert hidden(folder) == []
    if isinstance(artifact, Checkpoints):
        assert len(list((folder / "checkpoint").iterdir())) == 2
    shutil.rmtree(folder)
    return not done, is_new


def contexts(disk, mode, stride, size):
    """Faults of growing distance; those of operations until an attempt meets none."""
    if mode == "full":
        return (disk.full_after(n_bytes) for n_bytes in range(0, size, size // stride))
    return (disk.failing(nth, mode) for nth in itertools.count(1, stride))


def main(kind, root, mode, stride):
    """Prints how many attempts there were, how many failed, and how many of these kept the old."""
    root = Path(root)
    artifact = KINDS[kind]()
    artifact.write(root / "before")
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    disk = FaultyDisk(root / "work")
    results = []
    for context in contexts(disk, mode, int(stride), size):
        results.append(attempt(artifact, root / "before", root / "work", context, mode))
        if mode != "full" and not disk.failed and not results[-1][0]:
            break
    failures = [is_new for failed, is_new in results if failed]
    print(len(results), len(failures), failures.count(False))


if __name__ == "__main__":
    main(*sys.argv[1:])
