"""Keras `.h5` files of weights: writes the legacy layout, reads what tf_keras and Keras 3 write.

There are three layouts. `model.save_weights("x.h5")` has a group for each layer in the root, which
lists `layer_names`, and each layer `weight_names`. `model.save("x.h5")` has the same in the group
`model_weights`, and the architecture in the attribute `model_config`.
`model.save_weights("x.weights.h5")` numbers the weights of a layer in a group `vars`, below a path
of Python class names (`layers/dense_1/vars/0`); Keras 3, but not tf_keras, adds the layer's name.

Weights only: what a file holds of an optimizer or of metrics is left out. The whole state of a
policy, its optimizers included, travels in a checkpoint.

A file of a policy has a group `tfpolicy` besides, which Keras does not look into, and a checksum
before HDF5's own content. Files of others have none: what HDF5 or we make of a damaged one is as
good as their own checks.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from tfpolicy.checksums import H5_BLOCK, check_h5, seal_h5
from tfpolicy.files import atomic_file

# The last version of Keras that wrote this layout by default; all later ones read it.
KERAS_VERSION = "2.15.0"
# Keras and our own commands know a file by them.
SUFFIXES = (".h5", ".hdf5")
# What a policy writes about itself; Keras looks into groups that are listed.
OWN_GROUP = "tfpolicy"
_TOP_LEVEL = "top_level_model_weights"
# What Keras saves among the numbered weights that is none: beside the layers, and within them.
_NOT_LAYERS = ("optimizer", "metrics")
_NOT_WEIGHTS = ("vars", "seed_generator")


def write_h5(
    path: str | os.PathLike[str],
    layers: Sequence[tuple[str, Sequence[tuple[str, np.ndarray]]]],
    architecture: str | None = None,
    own: Mapping[str, np.ndarray | str] | None = None,
) -> None:
    """Writes weights in the legacy Keras layout; an existing `path` is replaced atomically.

    With an architecture the file opens with `load_model`, without one it is for `load_weights`, in
    tf_keras and in Keras 3 alike. Both pair layers by position, so `layers` must be in the model's
    own order (for a functional model by depth: fc_1, fc_value_1, fc_out, value_out).

    Args:
        path: The file to write; missing parent folders are made.
        layers: Each layer's name and weights. Weights are written as "fc_1/kernel:0"; the ":0", and
            for a bare "kernel" the layer's name, are added where they are missing.
        architecture: The model as JSON, in the form of `tf_keras.Model.to_json()`, which Keras 3
            reads too (tf_keras does not read that of Keras 3).
        own: Arrays and texts by name that are no weights, which `read_own` gives back. With them
            the file has a checksum.

    Raises:
        ValueError: `path` does not end in one of `SUFFIXES`, there is no weight at all, a name is
            empty or occurs twice, a value is no array of numbers, or `architecture` is not the JSON
            of a model.
    """
    check_suffix(path)
    named = [
        (layer, [(_full_name(layer, name), np.asarray(value)) for name, value in weights])
        for layer, weights in layers
    ]
    _check_layers(named)
    if architecture is not None:
        _check_architecture(architecture)
    # In memory, since h5py reports a full disk late, in a RuntimeError or not at all.
    image = io.BytesIO()
    with h5py.File(image, "w", userblock_size=H5_BLOCK if own else 0) as file:
        group: h5py.Group = file
        if architecture is not None:
            _set_origin(file)
            file.attrs["model_config"] = architecture
            group = file.create_group("model_weights")
        _set_origin(group)
        group.attrs["layer_names"] = [layer.encode() for layer, _ in named]
        for layer, weights in named:
            layer_group = group.require_group(layer)
            layer_group.attrs["weight_names"] = [name.encode() for name, _ in weights]
            for name, value in weights:
                layer_group.create_dataset(name, data=value)
        for name, data in (own or {}).items():
            file.create_dataset(f"{OWN_GROUP}/{name}", data=data)
    content = seal_h5(image.getvalue()) if own else image.getvalue()
    with atomic_file(path) as staged:
        staged.write_bytes(content)


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Refuses a name by which nobody would take the file for HDF5.

    Raises:
        ValueError: `path` does not end in one of `SUFFIXES`.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ValueError(f"`{os.fspath(path)}` must end in {' or '.join(SUFFIXES)}.")


def _full_name(layer: str, name: str) -> str:
    name = name if "/" in name else f"{layer}/{name}"
    return name if re.search(r":\d+$", name) else f"{name}:0"


def _check_layers(layers: list[tuple[str, list[tuple[str, np.ndarray]]]]) -> None:
    weights = [weight for _, layer_weights in layers for weight in layer_weights]
    if not weights:
        raise ValueError("`layers` must hold at least one weight, got none.")
    for kind, names in (
        ("layer", [layer for layer, _ in layers]),
        ("weight", [name for name, _ in weights]),
    ):
        wrong = sorted({name for name in names if not name or names.count(name) > 1})
        if wrong:
            raise ValueError(f"Each {kind} must have a name of its own, got {wrong} several times.")
    for name, value in weights:
        if value.dtype.kind not in "biuf":
            raise ValueError(f"`{name}` must be an array of numbers, got dtype {value.dtype}.")


def _check_architecture(architecture: str) -> None:
    try:
        model = json.loads(architecture)
    except ValueError as error:
        raise ValueError(f"`architecture` must be the JSON of a model: {error}.") from error
    if not isinstance(model, dict) or not {"class_name", "config"} <= model.keys():
        raise ValueError("`architecture` must be a JSON object with `class_name` and `config`.")


def _set_origin(group: h5py.Group) -> None:
    group.attrs["backend"] = "tensorflow"
    group.attrs["keras_version"] = KERAS_VERSION


def read_h5(path: str | os.PathLike[str]) -> list[tuple[str, list[tuple[str, np.ndarray]]]]:
    """Reads the weights of any of the three layouts.

    Args:
        path: A file that tf_keras, Keras 2 or 3, or `write_h5` wrote.

    Returns:
        The layers that have weights: the layer's name, and each weight's name as it is in the file
        with its array. In the legacy layouts layers come in the order of the model. Numbered
        weights have their path as a name ("layers/dense_1/vars/0"); their layer is named as the
        model names it if the file says so, else by its path ("layers/dense_1"), and they come
        sorted by path, so that the order within one Python class is that of the model.

    Raises:
        FileNotFoundError: `path` does not exist.
        ValueError: `path` is no h5 file, is damaged, or holds no weights of a Keras model.
    """
    path = Path(path)
    with _opened(path) as file:
        group = file["model_weights"] if "model_weights" in file else file
        legacy = bool(_names(group, "layer_names")) or _TOP_LEVEL in group
        found = _legacy_layers(group) if legacy else _numbered_layers(group)
        layers = [(layer, [(n, _value(d, file)) for n, d in weights]) for layer, weights in found]
    if not layers:
        raise ValueError(f"`{path}` must hold weights of a Keras model, but none were found.")
    return layers


def read_own(path: str | os.PathLike[str]) -> dict[str, np.ndarray | str]:
    """Reads what `write_h5` got as `own`; nothing from a file that has none.

    Raises:
        FileNotFoundError: `path` does not exist.
        ValueError: `path` is no h5 file or is damaged.
    """
    own: dict[str, np.ndarray | str] = {}
    with _opened(Path(path)) as file:

        def read(name: str, node: h5py.Group | h5py.Dataset) -> None:
            if isinstance(node, h5py.Dataset):
                value = node[()]
                own[name] = _text(value) if isinstance(value, bytes) else np.asarray(value)

        if OWN_GROUP in file:
            file[OWN_GROUP].visititems(read)
    return own


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Opens a file whose checksum, if it must have one, fits; other errors become `ValueError`."""
    if not path.exists():
        raise FileNotFoundError(f"`{path}` must be an h5 file, but it does not exist.")
    if not path.is_file() or not h5py.is_hdf5(path):
        raise ValueError(f"`{path}` must be an h5 file, but it is something else or truncated.")
    sealed = check_h5(path)
    try:
        with h5py.File(path, "r") as file:
            if OWN_GROUP in file and not sealed:
                raise ValueError(
                    f"it was written by tfpolicy and its checksum has been removed; without the "
                    f"group `{OWN_GROUP}` it would be a file of another program"
                )
            yield file
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"`{path}` is damaged or of an unknown layout: {error}") from error


def _legacy_layers(group: h5py.Group) -> Iterator[tuple[str, list[tuple[str, h5py.Dataset]]]]:
    names = _names(group, "layer_names")
    if _TOP_LEVEL in group and _TOP_LEVEL not in names:
        names.append(_TOP_LEVEL)
    for layer in names:
        weights = [(name, group[layer][name]) for name in _names(group[layer], "weight_names")]
        if weights:
            yield layer, weights


def _names(group: h5py.Group, attribute: str) -> list[str]:
    """A list of names, which Keras splits over "<attribute>0", "<attribute>1".. when it is long."""
    keys = [attribute]
    if attribute not in group.attrs:
        numbered = (f"{attribute}{i}" for i in itertools.count())
        keys = list(itertools.takewhile(group.attrs.__contains__, numbered))
    return [_text(name) for key in keys for name in group.attrs[key]]


def _numbered_layers(
    group: h5py.Group, path: str = "", scope: str = ""
) -> Iterator[tuple[str, list[tuple[str, h5py.Dataset]]]]:
    """Yields the layers in and below `group`, which lies at `path` in a layer named `scope`."""
    numbered = group.get("vars")
    if isinstance(numbered, h5py.Group):
        if path:  # In the root it is the model's own name, which says nothing about its weights.
            own = numbered.attrs.get("name")
            scope = path if own is None else f"{scope}/{_text(own)}".lstrip("/")
        keys = sorted(numbered, key=_natural)
        if keys:
            yield scope, [(f"{path}/vars/{key}".lstrip("/"), numbered[key]) for key in keys]
    for child in sorted(group, key=_natural):
        skipped = child in _NOT_WEIGHTS or (not path and child in _NOT_LAYERS)
        if not skipped and isinstance(group[child], h5py.Group):
            yield from _numbered_layers(group[child], f"{path}/{child}".lstrip("/"), scope)


def _natural(name: str) -> list[str | int]:
    """Sorts "dense_2" before "dense_10"."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", name))]


def _value(dataset: h5py.Dataset, file: h5py.File) -> np.ndarray:
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"`{dataset.name}` is no array.")
    # HDF5 can refer to other files, and a file from elsewhere must not read what it pleases.
    if dataset.file.filename != file.filename or dataset.external or dataset.is_virtual:
        raise ValueError(f"`{dataset.name}` lies in another file.")
    return np.asarray(dataset[()])


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
