"""Checkpoints: a state and its description to a folder and back, bit for bit and without pickle.

A checkpoint is a folder of two files. `policy.json` holds the format version, the package version,
the description, the plain part of the state, and the checksums; it names the second file,
`state-<id>.npz`, which holds the arrays of the state under readable names. Loading parses JSON and
NumPy arrays and runs no code.

A new checkpoint is written into a hidden folder beside the target and renamed. POSIX cannot rename
a folder over another one with content, so an existing checkpoint is replaced from within: the new
arrays are written under a new name, then `policy.json` is replaced, which is one atomic rename and
the moment at which the old checkpoint becomes the new one, and only then the old arrays are
removed. At every moment `policy.json` names arrays that are complete, on every file system, and
other files in the folder are never touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tfpolicy.checksums import digest
from tfpolicy.exact_json import decode, encode
from tfpolicy.files import atomic_file, check_folder, publish_folder, staged_folder
from tfpolicy.locks import locked
from tfpolicy.npz import read_npz, write_npz

FORMAT = "tfpolicy-checkpoint"
FORMAT_VERSION = 1
HEADER_FILE = "policy.json"
_ARRAYS_FILE = re.compile(r"state-[0-9a-f]{8}\.npz")
# Arrays that no `policy.json` names come from a writer that was killed, or that lost a race, or
# that is just about to name them, which then holds their lock. Where the file system has no locks,
# they are cleared away only when they are this much older than a new checkpoint.
_ABANDONED_AFTER_S = 3600.0


class CheckpointError(ValueError):
    """A folder holds no checkpoint, a damaged one, or a newer format; names the file."""


def write_checkpoint(
    folder: str | os.PathLike[str], description: dict[str, Any], state: dict[str, Any]
) -> None:
    """Writes a checkpoint, which replaces the one that `folder` may hold already.

    When it raises, `folder` is as it was before: absent, or still the old checkpoint. Only where
    the very last step failed, forcing the finished replacement to disk, it is the new one. Several
    writers at once are safe: one of them wins, whole.

    Args:
        folder: The checkpoint's folder; made, with its parents, if missing.
        description: What is needed to build the policy again (class, config, spaces), of the same
            kinds of values as `state`.
        state: Nested dicts (with string keys), lists and tuples of NumPy arrays, NumPy scalars,
            and plain values (str, int, float, bool, None).

    Raises:
        NotADirectoryError: `folder` is a file, or lies below one.
        TypeError: A value of another kind, named by its path in `state` or `description`.
        ValueError: The folder holds versions of a SavedModel, which the checkpoint would hide.
    """
    folder = Path(folder)
    check_folder(folder)
    if folder.is_dir() and any(folder.glob("[0-9]*/saved_model.pb")):
        raise ValueError(
            f"A checkpoint needs a folder of its own, but `{folder}` holds versions of a "
            f"SavedModel."
        )
    arrays: dict[str, np.ndarray] = {}
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "tfpolicy_version": _package_version(),
        "description": encode(description, "description", arrays),
        "state": encode(state, "state", arrays),
    }
    if not folder.exists():
        try:
            with staged_folder(folder) as staged:
                _write_files(staged, content, arrays)
                publish_folder(staged, folder)
        except FileExistsError:
            pass  # Another writer was first: replace what it wrote.
        else:
            return
    _write_files(folder, content, arrays)


def read_checkpoint(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads what `write_checkpoint` wrote; every value has the type and the bits that it had.

    Args:
        folder: The checkpoint's folder.

    Returns:
        The description and the state.

    Raises:
        FileNotFoundError: `folder` does not exist.
        CheckpointError: `folder` holds no checkpoint, a damaged one (a file missing or truncated,
            a checksum that does not fit), or one written by a newer format than this version
            reads.
    """
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(
            f"`{folder}` must be the folder of a checkpoint, but it does not exist."
        )
    while True:
        raw = _read_header(folder)
        header = _parse_header(raw, folder / HEADER_FILE)
        path = folder / header["arrays"]["file"]
        try:
            with path.open("rb") as file:
                arrays = _read_arrays(file, path, header["arrays"]["sha256"])
            break
        except FileNotFoundError as error:
            # Has a writer replaced the checkpoint since its header was read? Then read the new one.
            if _read_header(folder) == raw:
                raise CheckpointError(
                    f"`{path}` is missing: the checkpoint was copied or removed in part."
                ) from error
    return decode(header["description"], arrays), decode(header["state"], arrays)


def _write_files(folder: Path, content: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Writes the arrays, then the header that names them, then removes what it named before."""
    previous = _named_arrays(folder)
    path = folder / f"state-{secrets.token_hex(4)}.npz"
    with contextlib.ExitStack() as locks:
        try:
            with atomic_file(path) as staged:
                write_npz(staged, arrays)
                with staged.open("rb") as file:
                    sha256 = digest(file)
                locks.enter_context(locked(staged))
            header = {**content, "arrays": {"file": path.name, "sha256": sha256}}
            header["checksum"] = _checksum(header)
            with atomic_file(folder / HEADER_FILE) as staged:
                staged.write_text(json.dumps(header, indent=2, allow_nan=False), encoding="utf-8")
        except BaseException:
            # Where only the sync after the rename failed, the new header stands and needs them.
            with contextlib.suppress(OSError):
                if _named_arrays(folder) != path.name:
                    path.unlink(missing_ok=True)
            raise
    _remove_stale(folder, path, previous)


def _remove_stale(folder: Path, current: Path, previous: str | None) -> None:
    """Removes arrays that no header names and that no writer is about to name."""
    with contextlib.suppress(OSError):
        written = current.stat().st_mtime
        for path in folder.iterdir():
            if path == current or not _ARRAYS_FILE.fullmatch(path.name):
                continue
            with contextlib.suppress(OSError), locked(path) as is_locked:
                old = written - path.stat().st_mtime > _ABANDONED_AFTER_S
                # Their writer lets go of the lock only when the header names them.
                finished = is_locked or old or path.name == previous
                if finished and _named_arrays(folder) != path.name:
                    path.unlink()


def _named_arrays(folder: Path) -> str | None:
    """The file of arrays that the header in `folder` names, None if there is no sound header."""
    try:
        return str(_parse_header(_read_header(folder), folder / HEADER_FILE)["arrays"]["file"])
    except CheckpointError:
        return None


def _read_header(folder: Path) -> bytes:
    try:
        return (folder / HEADER_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"`{folder}` must be the folder of a checkpoint, but it has no `{HEADER_FILE}`."
        ) from error


def _parse_header(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(raw.decode("utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"`{path}` is damaged or truncated, it is not JSON: {error}."
        ) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CheckpointError(
            f'`{path}` is not the header of a checkpoint: no `format` "{FORMAT}".'
        )
    version = header.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise CheckpointError(
            f"`{path}` has checkpoint format {version}, written by tfpolicy "
            f"{header.get('tfpolicy_version')}; this is tfpolicy {_package_version()}, which reads "
            f"formats up to {FORMAT_VERSION}."
        )
    if header.pop("checksum", None) != _checksum(header):
        raise CheckpointError(f"`{path}` is damaged: its content does not fit its checksum.")
    # A name from outside must not lead out of the folder.
    if not _ARRAYS_FILE.fullmatch(header["arrays"]["file"]):
        raise CheckpointError(
            f"`{path}` names `{header['arrays']['file']}`, which is no file of arrays."
        )
    return header


def _read_arrays(file: BinaryIO, path: Path, sha256: str) -> dict[str, np.ndarray]:
    if digest(file) != sha256:
        raise CheckpointError(
            f"`{path}` is damaged or truncated: its content does not fit the checksum in "
            f"`{HEADER_FILE}`."
        )
    file.seek(0)
    try:
        return read_npz(file)
    except ValueError as error:
        raise CheckpointError(f"`{path}` is damaged: {error}") from error


def _checksum(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header).encode("ascii")).hexdigest()


def _package_version() -> str:
    try:
        return importlib.metadata.version("tfpolicy")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"  # Run from a source tree that was never installed.
