"""Locks of files and folders, which say whether whoever is writing them is still alive."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Holds the lock of a file or folder during the block; it ends with the process as well.

    It belongs to the file, not to its name: renaming takes it along.

    Args:
        path: What to lock; it must exist.

    Yields:
        Whether the lock is held: some file systems have none.

    Raises:
        BlockingIOError: Somebody else holds it.
        FileNotFoundError: There is nothing at `path`.
    """
    descriptor = _lock(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(path: str | os.PathLike[str]) -> int | None:
    if fcntl is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
