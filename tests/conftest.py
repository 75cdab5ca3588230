"""For every folder of tests: options for how policies learn, and a disk that fails."""

import builtins
import contextlib
import dataclasses
import errno
import io
import itertools
import os
import resource

import pytest
from hypothesis import HealthCheck, settings

from tfpolicy.config import PolicyConfig

# How fast examples are drawn says how busy the machine is, and decides no test.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


_PACKAGE_DEFAULTS = pytest.StashKey[dict]()


def pytest_addoption(parser):
    group = parser.getgroup("how policies learn where a test does not say")
    group.addoption("--jit-compile", action="store_true", help="compiled")
    group.addoption("--towers", type=int, default=0, help="on so many fake GPUs")


def pytest_configure(config):
    """Changes the defaults of every policy config, in each process of pytest-xdist.

    What a test says and what is read from a file stands; children that a test starts keep the
    defaults of the package.
    """
    defaults = _learning_defaults(config)
    config.stash[_PACKAGE_DEFAULTS] = {name: getattr(PolicyConfig, name) for name in defaults}
    for name, value in defaults.items():
        setattr(PolicyConfig, name, value)
        # Shared with subclasses, those to come too.
        PolicyConfig.__dataclass_fields__[name].default = value
    for config_class in _with_subclasses(PolicyConfig) if defaults else ():
        init = config_class.__init__
        names = [field.name for field in dataclasses.fields(config_class)]
        known = dict(zip(names, init.__defaults__, strict=True))
        init.__defaults__ = tuple({**known, **defaults}.values())


def pytest_report_header(config):
    changed = [f"{name}={value}" for name, value in _learning_defaults(config).items()]
    return ["defaults of policy configs: " + ", ".join(changed)] if changed else []


@pytest.fixture(scope="session")
def package_defaults(pytestconfig):
    """What the package itself has where the options of this run changed a default."""
    return pytestconfig.stash[_PACKAGE_DEFAULTS]


def _with_subclasses(config_class):
    """The class and those below that a conftest of a folder has imported by now."""
    yield config_class
    for subclass in config_class.__subclasses__():
        yield from _with_subclasses(subclass)


def _learning_defaults(config):
    compiled, towers = config.getoption("--jit-compile"), config.getoption("--towers")
    defaults = {"jit_compile": True} if compiled else {}
    return {**defaults, "num_gpus": towers, "fake_gpus": True} if towers else defaults


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
