"""Publishes numbered versions of a model in one folder, as TensorFlow Serving polls it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tfpolicy.checkpoint import HEADER_FILE
from tfpolicy.files import check_folder, hidden_sibling, publish_folder, staged_folder

# TensorFlow Serving reads the names of versions as numbers of 64 bits, and passes over others.
MAX_VERSION = 2**63 - 1


def publish_version(
    export_dir: str | os.PathLike[str],
    write: Callable[[Path], None],
    version: int | None = None,
) -> Path:
    """Calls `write` on a hidden folder and publishes the result as `<export_dir>/<version>`.

    The version appears complete or not at all. When anything raises, `export_dir` holds what it
    held before (and is not made); only where the very last step fails, forcing the name of the
    finished version to disk, the version is there. Two publishers at once get two versions; given
    the same explicit version, one of them gets a `FileExistsError`.

    Args:
        export_dir: Folder of all versions; made if missing.
        write: Writes the files of this version into the existing, empty folder that it gets.
        version: The version's number, by default one above the highest there (1 in an empty
            folder).

    Returns:
        The path of the published version.

    Raises:
        FileExistsError: `version` is there already.
        ValueError: `version` is no integer of 0 to `MAX_VERSION`, or `write` wrote nothing.
    """
    export_dir = Path(export_dir)
    if version is not None:
        _check_version(export_dir, version)
    with staged_folder(export_dir / "version") as staged:
        write(staged)
        # An empty folder would publish nothing silently, and another publisher's rename could
        # replace it.
        if not any(staged.iterdir()):
            raise ValueError(
                f"The export to `{export_dir}` must write at least one file, it wrote none."
            )
        while True:
            target = export_dir / str(_next_version(export_dir) if version is None else version)
            try:
                publish_folder(staged, target)
            except FileExistsError:
                if version is not None:
                    raise
            else:
                return target


def remove_older_versions(published: Path, keep: int, marker: str) -> None:
    """Removes versions that are older than `published`, all but the newest `keep - 1` of them.

    A version vanishes as a whole: it is renamed to a hidden name and then removed. Where that
    fails, since somebody has it open or may not be disturbed, it is left for the next time.

    Args:
        published: A version; it stays, and so do newer ones, which do not count.
        keep: How many versions up to `published` may stay; see `check_keep`.
        marker: A file that a version has; what has none is not taken for one.
    """
    older: list[Path] = []
    with contextlib.suppress(OSError):
        older = [
            folder
            for folder in published.parent.iterdir()
            if is_version(folder.name)
            and int(folder.name) < int(published.name)
            and not folder.is_symlink()
            and (folder / marker).is_file()
        ]
    older.sort(key=lambda folder: int(folder.name), reverse=True)
    for folder in older[keep - 1 :]:
        with contextlib.suppress(OSError):
            removed = hidden_sibling(folder)
            folder.rename(removed)
            shutil.rmtree(removed)


def check_keep(keep: int) -> None:
    """Refuses a limit of versions that is none.

    Raises:
        ValueError: `keep` is no integer of at least 1.
    """
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ValueError(f"`keep` must be an integer of at least 1, got {keep!r}.")


def check_base(export_dir: str | os.PathLike[str], marker: str) -> None:
    """Refuses a version, or what a server would take for one, as the folder of all versions.

    Args:
        export_dir: May be missing.
        marker: A file that a version has.

    Raises:
        NotADirectoryError: It is a file, or lies below one.
        ValueError: It is a version, or has the name of one and lies beside others, or it is a
            checkpoint, which would be found in place of the versions.
    """
    check_folder(export_dir)
    base = Path(export_dir).resolve()
    if (base / HEADER_FILE).is_file():
        raise ValueError(f"`export_dir` must not be a checkpoint, but `{export_dir}` is one.")
    siblings = [base]
    if is_version(base.name) and base.parent.is_dir():
        siblings += [folder for folder in base.parent.iterdir() if is_version(folder.name)]
    if any((folder / marker).is_file() for folder in siblings):
        raise ValueError(
            f"`export_dir` must be the folder of all versions, but `{export_dir}` is the place of "
            f"one version: give `{base.parent}`, and `version` if its number matters."
        )


def is_version(name: str) -> bool:
    """Whether TensorFlow Serving takes a folder of this name for a version."""
    return name.isascii() and name.isdigit() and int(name) <= MAX_VERSION


def _check_version(export_dir: Path, version: int) -> None:
    is_integer = isinstance(version, int) and not isinstance(version, bool)
    if not is_integer or not 0 <= version <= MAX_VERSION:
        raise ValueError(f"`version` must be an integer of 0 to {MAX_VERSION}, got {version!r}.")
    if version in _versions(export_dir):
        raise FileExistsError(
            f"`version` must be new, but {version} is in `{export_dir}` already; "
            f"the next free one is {_next_version(export_dir)}."
        )


def _next_version(export_dir: Path) -> int:
    return max(_versions(export_dir), default=0) + 1


def _versions(export_dir: Path) -> set[int]:
    if not export_dir.exists():
        return set()
    return {int(entry.name) for entry in export_dir.iterdir() if is_version(entry.name)}
