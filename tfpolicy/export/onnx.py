"""ONNX files of what a policy does greedily, converted by tf2onnx and run before they appear."""

from __future__ import annotations

import base64
import importlib
import io
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tfpolicy.checksums import check_onnx, seal_onnx
from tfpolicy.description import PolicyDescription
from tfpolicy.export.example import Example, example_from_arrays, example_to_arrays
from tfpolicy.export.inference import SERVING, InferenceGraph
from tfpolicy.npz import read_npz, write_npz

# What tf2onnx and the runtimes have in common.
OPSETS = range(13, 19)
# Entries of a file's metadata: what the policy was built from as JSON, and the example as an npz
# file in base64.
_DESCRIPTION_KEY = "tfpolicy"
_EXAMPLE_KEY = "tfpolicy_example"


def check_opset(opset: int) -> None:
    """Refuses an opset that cannot be written, and names a package that is missing.

    Raises:
        ValueError: `opset` is not in `OPSETS`.
        ImportError: The extra "onnx" is not installed.
    """
    if opset not in OPSETS:
        raise ValueError(f"`onnx` must be an opset of {OPSETS[0]} to {OPSETS[-1]}, got {opset!r}.")
    for package in ("tf2onnx", "onnx", "onnxruntime"):
        _package(package)


def write_onnx(
    path: Path, graph: InferenceGraph, opset: int, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Writes the signature `serving_default`, with inputs and outputs of the same names.

    Args:
        path: The file to write.
        graph: Acts.
        opset: One of `OPSETS`.
        inputs: Arrays [B, ...] to run the file on, by name; there may be more than it takes.

    Returns:
        Its outputs on `inputs`, by name.

    Raises:
        ValueError: The model has operations that ONNX has not, such as a loop over time.
    """
    signature = graph.signatures[SERVING]
    tensors = {**signature.inputs, **signature.outputs}
    session = graph.graph_session.session
    frozen = tf.compat.v1.graph_util.convert_variables_to_constants(
        session,
        session.graph.as_graph_def(),
        [tensor.op.name for tensor in signature.outputs.values()],
    )
    model, _ = _package("tf2onnx").convert.from_graph_def(
        frozen,
        name="tfpolicy",
        input_names=[tensor.name for tensor in signature.inputs.values()],
        output_names=[tensor.name for tensor in signature.outputs.values()],
        opset=opset,
        tensors_to_rename={tensor.name: name for name, tensor in tensors.items()},
    )
    onnx = _package("onnx")
    try:
        onnx.checker.check_model(model, full_check=True)
    except onnx.checker.ValidationError as error:
        raise ValueError(
            f"The model cannot be written as ONNX of opset {opset}: {error}"
        ) from error
    onnx.save(model, path)
    return run_onnx(path.read_bytes(), inputs)


def describe_onnx(path: Path, description: PolicyDescription, example: Example) -> None:
    """Adds to a file's metadata what the policy is and does, and a checksum of all."""
    onnx = _package("onnx")
    archive = io.BytesIO()
    write_npz(archive, example_to_arrays(example), compressed=True)
    values = {
        _DESCRIPTION_KEY: description.to_text(),
        _EXAMPLE_KEY: base64.b64encode(archive.getvalue()).decode("ascii"),
    }
    entries = [onnx.StringStringEntryProto(key=k, value=v) for k, v in values.items()]
    # One message after the other is both of them merged.
    added = onnx.ModelProto(metadata_props=entries).SerializeToString()
    path.write_bytes(seal_onnx(path.read_bytes() + added))


def run_onnx(content: bytes, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs by name of a model on arrays [B, ...] by name.

    Args:
        content: Of the file.
        inputs: What the model takes; there may be more.

    Raises:
        ImportError: There is no onnxruntime.
    """
    runtime = _package("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in runtime.get_outputs()]
    feeds = {taken.name: inputs[taken.name] for taken in runtime.get_inputs()}
    return dict(zip(names, runtime.run(names, feeds), strict=True))


def read_onnx(path: Path) -> tuple[Any, bool]:
    """Reads a file of ours or of others, and nothing that it refers to.

    Returns:
        The model, an `onnx.ModelProto`, and whether it has a checksum, which then fits.

    Raises:
        ValueError: It is damaged.
        ImportError: There is no package onnx.
    """
    content = path.read_bytes()
    sealed = check_onnx(content, path)
    try:
        return _package("onnx").ModelProto.FromString(content), sealed
    except DecodeError as error:
        raise ValueError(f"`{path}` is no ONNX file or damaged: {error}") from error


def read_described(path: Path) -> tuple[PolicyDescription, Example]:
    """What `describe_onnx` added.

    Raises:
        ValueError: The file is damaged, or nothing was added.
        ImportError: There is no package onnx.
    """
    model, sealed = read_onnx(path)
    entries = {entry.key: entry.value for entry in model.metadata_props}
    if not sealed or not {_DESCRIPTION_KEY, _EXAMPLE_KEY} <= entries.keys():
        raise ValueError(
            f"`{path}` must be an ONNX file written by tfpolicy, with a description, recorded "
            "actions and a checksum, but it has none or lost them."
        )
    arrays = read_npz(io.BytesIO(base64.b64decode(entries[_EXAMPLE_KEY])))
    description = PolicyDescription.from_text(entries[_DESCRIPTION_KEY], path)
    return description, example_from_arrays(arrays, path)


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"ONNX files need the package {name}: pip install tfpolicy[onnx]."
        ) from error
