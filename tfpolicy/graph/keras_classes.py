"""Builds Keras layers in a static graph and leaves those of eager code as they were.

tf_keras has two implementations of layers, for eager code and for graphs. Whenever one is made, its
class gets the bases of the implementation that is wanted just then, and with it every instance that
there is, which the other implementation then refuses to call. So the bases are changed only while a
graph is being built.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tf_keras

# Bases that classes have while a graph is built, once they were used there.
_bases_in_graphs: weakref.WeakKeyDictionary[type, tuple[type, ...]] = weakref.WeakKeyDictionary()
# The classes are those of the whole process.
_lock = threading.RLock()


@contextlib.contextmanager
def building_in(graph: tf.Graph) -> Iterator[None]:
    """Makes `graph` the default one, in which Keras layers can be made and called.

    Afterwards all Keras classes are what they were before. While one thread builds, another one
    that wants to waits.
    """
    with _lock:
        outside = {cls: cls.__bases__ for cls in _layer_classes()}
        _set_bases(_bases_in_graphs)
        try:
            with graph.as_default():
                yield
        finally:
            inside = {cls: cls.__bases__ for cls in _layer_classes()}
            changed = {cls for cls, bases in outside.items() if inside[cls] != bases}
            _bases_in_graphs.update({cls: inside[cls] for cls in changed})
            _set_bases({cls: outside[cls] for cls in changed})


def _layer_classes() -> set[type]:
    found: set[type] = set()
    left: list[Any] = [tf_keras.layers.Layer]
    while left:
        for cls in left.pop().__subclasses__():
            if cls not in found:
                found.add(cls)
                left.append(cls)
    return found


def _set_bases(bases: Mapping[type, tuple[type, ...]]) -> None:
    for cls, own in bases.items():
        if cls.__bases__ != own:
            cls.__bases__ = own
