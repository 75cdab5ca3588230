"""Files and folders that others see whole or not at all.

Everything is written under a hidden name beside its target, forced to disk and only then renamed,
so that a reader, a server that polls the folder, or a machine that loses power never meets half of
it. What is written gets the permissions of the process's umask (the 0600 of `tempfile` would lock
a server out).
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

# A process that is killed leaves its hidden files behind; the next success at the same target
# clears those that nobody can still be writing.
_ABANDONED_AFTER_S = 24 * 3600.0
_OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a hidden path beside `path`, which replaces `path` when the block succeeds.

    Missing parent folders are made. When the block or the publishing raises, `path` is as it was
    before and neither the hidden file nor a folder made for it is left. Only where the very last
    step fails, forcing the new name to disk, `path` is the new file.

    Args:
        path: The file to write or replace.

    Yields:
        The path to write to: in the folder of `path`, with its suffix, not yet existing.
    """
    path = Path(path)
    with _made_folder(path.parent):
        staged = _hidden_sibling(path)
        try:
            yield staged
            _sync(staged)
            os.replace(staged, path)
            _sync(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                staged.unlink(missing_ok=True)
            raise
    _remove_abandoned(path)


@contextlib.contextmanager
def staged_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a new hidden folder beside `path`, to be filled and then given to `publish_folder`.

    Missing parent folders are made. Unless it was published, the hidden folder is removed at the
    end of the block, and when the block raises so are the parents that were made for it.

    Args:
        path: Where the folder is meant to go; decides only the place and the hidden name.

    Yields:
        The hidden folder.
    """
    path = Path(path)
    with _made_folder(path.parent):
        staged = _hidden_sibling(path)
        try:
            staged.mkdir()
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    _remove_abandoned(path)


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


@contextlib.contextmanager
def _made_folder(folder: Path) -> Iterator[None]:
    """Makes `folder` and its parents; removes those that it made when the block raises."""
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


def _hidden_sibling(path: Path) -> Path:
    return path.with_name(f".tmp-{secrets.token_hex(4)}-{path.name}")


def _remove_abandoned(path: Path) -> None:
    """Removes hidden siblings of `path` that a killed process left behind long ago."""
    for leftover in path.parent.glob(f".tmp-????????-{glob.escape(path.name)}"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime < _ABANDONED_AFTER_S:
                continue
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()


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
