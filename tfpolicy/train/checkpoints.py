"""Where the checkpoints of a run are, and what is in them."""

from __future__ import annotations

import re
from pathlib import Path

CHECKPOINTS_FOLDER = "checkpoints"
# Folders within one checkpoint: what acts and learns, and what training needs besides.
POLICY_FOLDER = "policy"
TRAINING_FOLDER = "training"


def checkpoint_folder(directory: Path, iteration: int) -> Path:
    """The folder for a run's checkpoint of one iteration."""
    return directory / CHECKPOINTS_FOLDER / f"{iteration:06d}"


def checkpoints(directory: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    folder = directory / CHECKPOINTS_FOLDER
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if re.fullmatch(r"\d{6,}", path.name)]
    return sorted(found, key=lambda path: int(path.name))


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is one checkpoint of a run."""
    return (path / TRAINING_FOLDER).is_dir()


def find_checkpoint(path: Path) -> Path:
    """The newest checkpoint of the run in `path`, or `path` if it is a checkpoint itself.

    Raises:
        FileNotFoundError: It is neither.
    """
    if is_checkpoint(path):
        return path
    found = checkpoints(path)
    if not found:
        raise FileNotFoundError(f"`{path}` is neither a run with checkpoints nor one of them.")
    return found[-1]


def find_policy(path: Path) -> Path:
    """The policy of a run's newest checkpoint or of a run's checkpoint; any other path as it is."""
    if is_checkpoint(path) or checkpoints(path):
        return find_checkpoint(path) / POLICY_FOLDER
    return path
