"""Fixtures for every folder of tests: a disk that fails."""

import builtins
import contextlib
import errno
import io
import itertools
import os
import resource

import pytest
from hypothesis import HealthCheck, settings

# How fast examples are drawn says how busy the machine is, and decides no test.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# What the standard library looks up here at the moment of the call.
_OPERATIONS = [
    (builtins, "open"),
    (io, "open"),
    (os, "open"),
    (os, "mkdir"),
    (os, "fsync"),
    (os, "replace"),
    (os, "rename"),
    (os, "unlink"),
]


class FailingDisk:
    """Counts the operations on files below `root` and fails one, or that one and all after it."""

    def __init__(self, monkeypatch, root):
        self._monkeypatch = monkeypatch
        self._root = os.fspath(root)

    def each_failure(self, forever=False):
        """Yields contexts in which the 1st, 2nd, .. operation fails, until none is left."""
        for nth in itertools.count(1):
            context = self.failing_at(nth, forever)
            yield context
            if not self.failed:
                return

    @contextlib.contextmanager
    def failing_at(self, nth, forever=False):
        """Fails the nth operation inside the block; `failed` then lists all that did."""
        seen = []
        self.failed = failed = []

        def wrap(name, operation):
            def wrapped(target, *args, **kwargs):
                if isinstance(target, int) or os.fspath(target).startswith(self._root):
                    seen.append(name)
                    if len(seen) == nth or (forever and len(seen) > nth):
                        failed.append(name)
                        raise OSError(errno.EIO, "injected", os.fspath(self._root))
                return operation(target, *args, **kwargs)

            return wrapped

        with self._monkeypatch.context() as patch:
            for module, name in _OPERATIONS:
                patch.setattr(module, name, wrap(name, getattr(module, name)))
            yield


@pytest.fixture
def failing_disk(monkeypatch, tmp_path):
    return FailingDisk(monkeypatch, tmp_path)


@pytest.fixture
def file_size_limit():
    return _file_size_limit


@contextlib.contextmanager
def _file_size_limit(n_bytes):
    """Makes every write beyond `n_bytes` fail with EFBIG, as a full disk would with ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
