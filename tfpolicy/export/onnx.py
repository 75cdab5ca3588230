"""ONNX files of what a policy does greedily, converted by tf2onnx and run before they appear."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import tensorflow as tf

from tfpolicy.export.inference import SERVING, InferenceGraph

# What tf2onnx and the runtimes have in common.
OPSETS = range(13, 19)


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
    runtime = _package("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in runtime.get_outputs()]
    feeds = {name: inputs[name] for name in signature.inputs}
    return dict(zip(names, runtime.run(names, feeds), strict=True))


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Exporting to ONNX needs the package {name}: pip install tfpolicy[onnx]."
        ) from error
