"""What is in an artifact, whichever kind it is: as plain data that reads well as YAML."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import tensorflow as tf
from google.protobuf.message import DecodeError
from ruamel.yaml import YAML
from tensorflow.core.protobuf import saved_model_pb2

from tfpolicy.checkpoint import HEADER_FILE, read_checkpoint
from tfpolicy.checksums import check_folder
from tfpolicy.description import PolicyDescription
from tfpolicy.export.h5 import OWN_GROUP, SUFFIXES, read_own
from tfpolicy.export.moments import split_moments
from tfpolicy.export.onnx import read_described, read_onnx
from tfpolicy.export.saved_model import METADATA_FILE, MODEL_FILE, read_metadata, version_folder
from tfpolicy.train.checkpoints import TRAINING_FOLDER, find_policy


def describe(path: Path) -> str:
    """Describes a SavedModel, a checkpoint, a run, an `.h5` or an `.onnx` file in YAML.

    Raises:
        ValueError: It is none of them, or damaged.
        ImportError: The package that reads it is not installed.
    """
    stream = io.StringIO()
    yaml = YAML()
    yaml.width = 1000  # No line breaks within a space or a list.
    yaml.dump({"path": str(path), **inspect(path)}, stream)
    return stream.getvalue().rstrip("\n")


def inspect(path: Path) -> dict[str, Any]:
    """The same as nested plain data; raises the same."""
    if path.is_file():
        readers = {**dict.fromkeys(SUFFIXES, _h5), ".onnx": _onnx}
        if path.suffix.lower() not in readers:
            raise ValueError(f"`{path}` must be a folder or a file of {', '.join(readers)}.")
        return readers[path.suffix.lower()](path)
    folder = find_policy(path)
    if not (folder / HEADER_FILE).exists():
        return _saved_model(version_folder(folder))
    return _policy_checkpoint(folder)


def env_config(path: Path) -> dict[str, Any]:
    """The `env_config` that the policy in a SavedModel, a checkpoint or a run was trained with."""
    folder = find_policy(path)
    if (folder / HEADER_FILE).exists():
        stored = read_checkpoint(folder)[0]
    else:
        stored = read_metadata(version_folder(folder))
    return stored["config"]["env_config"]


def _training(path: Path) -> dict[str, Any]:
    """What is known of the training whose checkpoint `path` is; nothing if it is none."""
    if not (path / TRAINING_FOLDER / HEADER_FILE).exists():
        return {}
    description, state = read_checkpoint(path / TRAINING_FOLDER)
    return {
        "checkpoint": path.name,
        "run": description["metadata"].get("run", {}),
        "iteration": state["iteration"],
        "episodes_total": state["statistics"]["total"],
    }


def _policy_checkpoint(path: Path) -> dict[str, Any]:
    stored, state = read_checkpoint(path)
    description = PolicyDescription.from_json(stored, path)
    return {
        "kind": "checkpoint",
        **_training(path.parent),
        **_policy(description),
        "global_timestep": state["global_timestep"],
        "weights": {name: _array_text(value) for name, value in state["weights"].items()},
        "config": dict(description.config),
    }


def _saved_model(path: Path) -> dict[str, Any]:
    description, exported, views = None, {}, {}
    if (path / METADATA_FILE).exists():  # A SavedModel of somebody else's can be looked at, too.
        metadata = read_metadata(path)
        check_folder(path)
        exported = {name: metadata.get(name) for name in ("exported", "global_timestep")}
        description = PolicyDescription.from_json(metadata, path)
        views = {name: _view_text(name, view) for name, view in metadata["views"].items()}
    model = saved_model_pb2.SavedModel()
    try:
        model.ParseFromString((path / MODEL_FILE).read_bytes())
        variables = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    except (DecodeError, tf.errors.OpError) as error:
        raise ValueError(f"`{path}` is a damaged SavedModel: {error}") from error
    return {
        "kind": "SavedModel",
        "version": path.name,
        **exported,
        **(_policy(description) if description else {}),
        "signatures": {
            name: {
                "inputs": _tensors(signature.inputs),
                "outputs": _tensors(signature.outputs),
            }
            for graph in model.meta_graphs
            for name, signature in sorted(graph.signature_def.items())
            if not name.startswith("__")  # Not to be called, such as the operation of loading.
        },
        "views": views,
        "weights": {
            name: f"{variables.get_variable_to_dtype_map()[name].name} {shape}"
            for name, shape in sorted(variables.get_variable_to_shape_map().items())
            if not name.startswith("_")
        },
        "config": dict(description.config) if description else None,
    }


def _view_text(name: str, view: Mapping[str, Any]) -> str:
    """Which steps of which column an input shows, as "obs at -3:0"."""
    text = f"{view['data_col'] or name} at {view['shift']}"
    return f"mask of {text}" if view["as_mask"] else text


def _policy(description: PolicyDescription) -> dict[str, Any]:
    return {
        "policy_class": description.policy_class,
        "observation_space": str(description.observation_space),
        "action_space": str(description.action_space),
        "versions": dict(description.versions),
    }


def _h5(path: Path) -> dict[str, Any]:
    weights: dict[str, str] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and not name.startswith(f"{OWN_GROUP}/"):
            weights[name] = _array_text(node)

    own = read_own(path)
    text = own.get("description")
    policy = _policy(PolicyDescription.from_text(str(text), path)) if text else {}
    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
            attributes = {name: _text(value) for name, value in file.attrs.items()}
    except OSError as error:
        raise ValueError(f"`{path}` is no HDF5 file or damaged: {error}") from error
    weights.update({name: _array_text(value) for name, value in split_moments(own)[1].items()})
    architecture = json.loads(attributes.get("model_config", "null"))
    return {
        "kind": "h5",
        **policy,
        "versions": {
            **policy.get("versions", {}),
            **{k: v for k, v in attributes.items() if k.endswith("version")},
        },
        "architecture": architecture["class_name"] if architecture else "none: weights only",
        "weights": weights,
    }


def _onnx(path: Path) -> dict[str, Any]:
    model, sealed = read_onnx(path)
    policy = _policy(read_described(path)[0]) if sealed else {}
    import onnx  # It is there, since the file was read.

    return {
        "kind": "ONNX",
        **policy,
        "versions": {
            **policy.get("versions", {}),
            "producer": f"{model.producer_name} {model.producer_version}",
            **{f"opset {opset.domain or 'ai.onnx'}": opset.version for opset in model.opset_import},
        },
        "signatures": {
            "inputs": {value.name: _onnx_text(onnx, value) for value in model.graph.input},
            "outputs": {value.name: _onnx_text(onnx, value) for value in model.graph.output},
        },
        "weights": {value.name: str(list(value.dims)) for value in model.graph.initializer},
    }


def _onnx_text(onnx: Any, value: Any) -> str:
    tensor = value.type.tensor_type
    sizes = [size.dim_param or str(size.dim_value) for size in tensor.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return f"{dtype} [{', '.join(sizes)}]"


def _tensors(infos: Mapping[str, Any]) -> dict[str, str]:
    """Dtype and shape of the tensors of a signature, as "float32 [B, 4]"."""
    return {
        name: "{} [{}]".format(
            tf.as_dtype(info.dtype).name,
            ", ".join("B" if dim.size < 0 else str(dim.size) for dim in info.tensor_shape.dim),
        )
        for name, info in sorted(infos.items())
    }


def _array_text(array: Any) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
