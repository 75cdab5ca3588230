"""Files and folders that others see whole or not at all.

Everything is written in a hidden folder beside its target, forced to disk and only then renamed, so
that a reader, a server that polls the folder, or a machine that loses power never meets half of it.
What is written gets the permissions of the process's umask (the 0600 of `tempfile` would lock a
server out).

A process that is killed leaves its hidden folder behind, and the next success in the same place
removes it. That nobody is writing there any more is told by a lock, which ends with its process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from tfpolicy.locks import locked

# On some network file systems a lock is known to its own machine alone, and some have none: what
# was begun there is only removed when nobody can still be writing it.
_ABANDONED_AFTER_S = 24 * 3600.0
_MACHINE = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
_HIDDEN = re.compile(r"\.tmp-([0-9a-f]{8})-[0-9a-f]{8}-.+", re.DOTALL)
_OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a path in a hidden folder; the file there replaces `path` when the block succeeds.

    Missing parent folders are made. When the block or the publishing raises, `path` is as it was
    before and neither the hidden folder nor one made for it is left. Only where the very last step
    fails, forcing the new name to disk, `path` is the new file.

    Args:
        path: The file to write or replace.

    Yields:
        The path to write to: of the same name, not yet existing.
    """
    path = Path(path)
    with staged_folder(path) as folder:
        staged = folder / path.name
        yield staged
        _sync(staged)
        os.replace(staged, path)
        _sync(path.parent)


@contextlib.contextmanager
def staged_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a new hidden folder beside `path`, to be filled and then given to `publish_folder`.

    Missing parent folders are made. Unless it was published, the hidden folder is removed at the
    end of the block, and when the block raises so are the parents that were made for it.

    Args:
        path: Where the folder is meant to go; decides only the place and the hidden name.

    Yields:
        The hidden folder.

    Raises:
        NotADirectoryError: `path` lies below a file.
    """
    path = Path(path)
    with _made_folder(path.parent), contextlib.ExitStack() as locks:
        staged = _hidden_folder(path, locks)
        try:
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    _remove_abandoned(path.parent)


def publish_folder(staged: Path, path: Path) -> None:
    """Forces the folder `staged` to disk and renames it to `path`.

    Once renamed it stays, even where forcing the new name to disk fails.

    Args:
        staged: A folder on the same file system, as `staged_folder` gives it.
        path: The name under which everyone sees it; new, or an empty folder.

    Raises:
        FileExistsError: `path` is a file or a folder with content; `staged` is untouched.
    """
    for folder, _, names in os.walk(staged):
        for name in names:
            _sync(Path(folder, name))
        _sync(Path(folder))
    try:
        os.rename(staged, path)
    except OSError as error:
        if error.errno not in _OCCUPIED:
            raise
        raise FileExistsError(f"`{path}` must not exist yet, but it does.") from error
    _sync(path.parent)


def check_folder(path: str | os.PathLike[str]) -> None:
    """Refuses a place for a folder where there is a file, or that lies below one.

    Raises:
        NotADirectoryError: It is such a place.
    """
    for folder in (Path(path), *Path(path).parents):
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"`{path}` must be a folder, but `{folder}` is a file.")


def hidden_sibling(path: Path) -> Path:
    """A new hidden name beside `path`; what has one and no lock goes at the next success."""
    return path.with_name(f".tmp-{_MACHINE}-{secrets.token_hex(4)}-{path.name}")


@contextlib.contextmanager
def _made_folder(folder: Path) -> Iterator[None]:
    """Makes `folder` and its parents; removes those that it made when the block raises."""
    check_folder(folder)
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for made in missing:
            _sync(made.parent)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for made in missing:
                made.rmdir()
        raise


def _hidden_folder(path: Path, locks: contextlib.ExitStack) -> Path:
    """Makes a hidden folder beside `path` and holds its lock as long as `locks` is open."""
    while True:
        folder = hidden_sibling(path)
        folder.mkdir()
        # Until it is locked, someone else may take it for abandoned.
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            locks.enter_context(locked(folder))
            if folder.exists():
                return folder


def _remove_abandoned(parent: Path) -> None:
    """Removes hidden folders that nobody is writing any more; if it cannot now, then later."""
    with contextlib.suppress(OSError):
        for leftover in parent.iterdir():
            match = _HIDDEN.fullmatch(leftover.name)
            if match:
                _remove_if_abandoned(leftover, is_local=match[1] == _MACHINE)


def _remove_if_abandoned(folder: Path, is_local: bool) -> None:
    with contextlib.suppress(OSError), locked(folder) as is_locked:
        is_old = time.time() - folder.stat().st_mtime > _ABANDONED_AFTER_S
        if is_old or (is_local and is_locked):
            shutil.rmtree(folder)


def _sync(path: Path) -> None:
    """Forces a file's content or a folder's entries to disk."""
    # Windows opens no folder, and syncs a file only through a handle that writes.
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; what they hold is as safe as it gets.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)
