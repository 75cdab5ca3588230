"""One private graph with its session: callables, weights in and out, closing."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import pywrap_tf_session

from tfpolicy.graph.keras_classes import building_in

_CLOSED = "This policy was closed; build or restore a new one."
_FORKED = (
    "This policy's TensorFlow session belongs to the process that built it, and this is a fork of "
    'that process. Build the policy after forking, or start processes with the "spawn" method: a '
    "policy can be pickled."
)


class GraphSession:
    """Owns a `tf.Graph` and the `tf.compat.v1.Session` that runs it.

    Nothing global is entered: eager execution outside stays as it is, and several of these live in
    one process, and in several threads, without knowing of each other. Callables may be called from
    any thread; building is for one thread at a time.

    Args:
        num_cpu_devices: How many `/CPU:i` devices the session has.
        intra_op_threads: Threads within one operation; 0 lets TensorFlow decide.
        inter_op_threads: Threads between operations; 0 lets TensorFlow decide.
    """

    def __init__(
        self,
        num_cpu_devices: int = 1,
        intra_op_threads: int = 0,
        inter_op_threads: int = 0,
    ):
        self.graph = tf.Graph()
        options = tf.compat.v1.ConfigProto(
            device_count={"CPU": num_cpu_devices},
            intra_op_parallelism_threads=intra_op_threads,
            inter_op_parallelism_threads=inter_op_threads,
            # Some integer and string operations have no kernel on a GPU.
            allow_soft_placement=True,
        )
        # Without this the first session takes all memory of every GPU.
        options.gpu_options.allow_growth = True
        self._session = tf.compat.v1.Session(graph=self.graph, config=options)
        # Why nothing can be run any more, if so.
        self._refusal: str | None = None
        _SESSIONS.add(self)
        self._lock = threading.Lock()
        # What `callable` has made so far; each keeps the session alive.
        self._runs: list[SessionCallable | None] = []
        self._access: dict[str, _Access] = {}
        self._readers: dict[tuple[str, ...], Callable] = {}
        self._writers: dict[tuple[str, ...], Callable] = {}

    @property
    def session(self) -> tf.compat.v1.Session:
        """The session."""
        self.check_usable()
        return self._session

    @property
    def usable(self) -> bool:
        """Whether it is neither closed nor that of another process."""
        return self._refusal is None

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Makes this graph and session the default ones; Keras needs both."""
        self.check_usable()
        with building_in(self.graph), self.session.as_default():
            yield

    def check_usable(self) -> None:
        """Raises a `RuntimeError` after `close` and in a forked child."""
        if self._refusal is not None:
            raise RuntimeError(self._refusal)

    def callable(
        self,
        feeds: Sequence[tf.Tensor],
        fetches: Sequence[tf.Tensor],
        targets: Sequence[tf.Operation] = (),
        *,
        on_calling_thread: bool = False,
    ) -> Callable[..., list[Any]]:
        """A function of arrays, one for each of `feeds`, that returns the values of `fetches`.

        Far cheaper to call than `Session.run`, since feeds and fetches are resolved only once.

        Args:
            feeds: Placeholders, in the order of the function's arguments.
            fetches: What to return.
            targets: Operations to run without returning anything.
            on_calling_thread: Whether the graph runs on the thread that calls, which saves waking
                another one; worth it for small graphs. Not for graphs over several devices.
        """
        runs = self._runs
        with self._lock:
            position = len(runs)
            runs.append(None)

        def call(*values: Any) -> list[Any]:
            if self._refusal is not None:
                raise RuntimeError(self._refusal)
            run = runs[position]
            if run is None:
                # Optimizing a graph takes long, and few policies use every callable.
                run = make_callable(self.session, feeds, fetches, targets, on_calling_thread)
                runs[position] = run
            try:
                return run.function(run.session, run.handle, values, None)
            except tf.errors.CancelledError:
                # Whoever closes does not wait for what is still running on other threads.
                self.check_usable()
                raise

        return call

    def initialize(self, variables: Sequence[tf.Variable]) -> None:
        """Runs the initializers of `variables`."""
        with self.building():
            self.session.run([variable.initializer for variable in variables])

    def prepare_access(self, variables: Sequence[tf.Variable]) -> None:
        """Makes the operations that `read` and `write` need for this group of variables.

        Both move a whole group in one session call, and neither can add to a finalized graph.
        """
        key = variable_names(variables)
        with self.building():
            for name, variable in zip(key, variables, strict=True):
                if name not in self._access:
                    self._access[name] = _Access.to(variable)
        access = [self._access[name] for name in key]
        self._readers[key] = self.callable([], [one.value for one in access])
        self._writers[key] = self.callable(
            [one.fed for one in access], [], [one.assigned for one in access]
        )

    def read(self, variables: Sequence[tf.Variable]) -> dict[str, np.ndarray]:
        """The values of a group of variables by name."""
        key = variable_names(variables)
        return dict(zip(key, self._readers[key](), strict=True))

    def write(self, variables: Sequence[tf.Variable], values: Mapping[str, np.ndarray]) -> None:
        """Assigns a group of variables; `values` must have passed `check_values`."""
        key = variable_names(variables)
        # Copies: TensorFlow may keep the memory of what it is fed as that of the variable.
        arrays = [
            np.array(values[name], variable.dtype.as_numpy_dtype)
            for name, variable in zip(key, variables, strict=True)
        ]
        self._writers[key](*arrays)

    def finalize(self) -> None:
        """Closes the graph: from here on no method can add an operation."""
        self.graph.finalize()

    def close(self) -> None:
        """Frees the session and everything on its devices; later calls raise."""
        refusal, self._refusal = self._refusal, _CLOSED
        # The memory of a session is freed with the last reference to it. A fork keeps it: what it
        # shares with its parent is not for it to end.
        if refusal is None:
            self._session.close()
            self._runs[:] = [None] * len(self._runs)
            del self._session


class _Access(NamedTuple):
    """The operations that read a variable and assign what is fed."""

    value: tf.Tensor
    fed: tf.Tensor
    assigned: tf.Operation

    @classmethod
    def to(cls, variable: tf.Variable) -> _Access:
        fed = tf.compat.v1.placeholder(variable.dtype.base_dtype, variable.shape)
        return cls(variable.read_value(), fed, variable.assign(fed).op)


# Asking for the process at every call would take as long as a small operation of the graph.
_SESSIONS: weakref.WeakSet[GraphSession] = weakref.WeakSet()


def _refuse_in_fork() -> None:
    for session in list(_SESSIONS):
        if session._refusal is None:
            session._refusal = _FORKED


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_refuse_in_fork)


def variable_names(variables: Sequence[tf.Variable]) -> tuple[str, ...]:
    """The names under which variables are stored: without the output number."""
    return tuple(variable.name.removesuffix(":0") for variable in variables)


def check_values(
    variables: Sequence[tf.Variable],
    values: Mapping[str, np.ndarray],
    what: str,
    *,
    finite: bool = False,
) -> None:
    """Checks that `values` has just the variables' names, with their shapes and safe dtypes.

    Args:
        variables: What they are for.
        values: Arrays by name.
        what: What messages call them.
        finite: Whether NaN and infinity are refused, too.

    Raises:
        ValueError: It has not; missing, unexpected and mis-shaped names are all listed.
    """
    expected = dict(zip(variable_names(variables), variables, strict=True))
    problems = []
    missing = [name for name in expected if name not in values]
    unexpected = [name for name in values if name not in expected]
    if missing:
        problems.append(f"missing: {', '.join(missing)}")
    if unexpected:
        problems.append(f"unexpected: {', '.join(map(str, unexpected))}")
    for name, variable in expected.items():
        if name not in values:
            continue
        value = np.asarray(values[name])
        if value.shape != tuple(variable.shape):
            problems.append(f"{name}: expected shape {tuple(variable.shape)}, got {value.shape}")
        elif not np.can_cast(value.dtype, variable.dtype.as_numpy_dtype, "same_kind"):
            problems.append(f"{name}: expected {variable.dtype.name}, got {value.dtype}")
        elif finite:
            with np.errstate(over="ignore"):
                assigned = value.astype(variable.dtype.as_numpy_dtype, copy=False)
            count = assigned.size - np.count_nonzero(np.isfinite(assigned))
            if count:
                problems.append(
                    f"{name}: {count} of {value.size} values are not finite (`check_numerics`)"
                )
    if problems:
        raise ValueError(f"The {what} do not fit; nothing was assigned. " + "; ".join(problems))


class SessionCallable(NamedTuple):
    """What `function(session, handle, values, None)` needs to run part of a graph on `values`.

    Attributes:
        function: Returns the list of what was fetched.
        session: TensorFlow's own handle of the session.
        handle: Says which part.
        owner: Frees the part when nobody holds it any more, and keeps the session alive till then.
    """

    function: Callable[..., list[Any]]
    session: Any
    handle: Any
    owner: Any


def make_callable(
    session: tf.compat.v1.Session,
    feeds: Sequence[tf.Tensor],
    fetches: Sequence[tf.Tensor],
    targets: Sequence[tf.Operation] = (),
    on_calling_thread: bool = False,
) -> SessionCallable:
    """The fastest callable that this TensorFlow offers.

    `_make_callable_from_options` is private, but has stood unchanged since TensorFlow 1.x and
    Keras is built on it; what it makes only hands its arguments on to the function that is called
    here without it. The public way takes several times as long for a small graph.
    """
    try:
        options = config_pb2.CallableOptions()
        options.feed.extend(tensor.name for tensor in feeds)
        options.fetch.extend(tensor.name for tensor in fetches)
        options.target.extend(operation.name for operation in targets)
        if on_calling_thread:
            options.run_options.inter_op_thread_pool = -1
        owner = session._make_callable_from_options(options)
        function = pywrap_tf_session.TF_SessionRunCallable
        return SessionCallable(function, session._session, owner._handle, owner)
    except AttributeError:
        run = session.make_callable([list(fetches), list(targets)], list(feeds))
        return SessionCallable(lambda *call: run(*call[2])[0], None, None, run)
