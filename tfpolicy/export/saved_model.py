"""SavedModels: versions of a policy that TensorFlow Serving, TensorFlow and the C API load."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tfpolicy import checksums
from tfpolicy.description import PolicyDescription
from tfpolicy.export.example import (
    Example,
    compare,
    example_from_arrays,
    example_to_arrays,
)
from tfpolicy.export.inference import SERVING, InferenceGraph, Signature
from tfpolicy.export.onnx import check_opset, describe_onnx, write_onnx
from tfpolicy.export.publish import (
    check_base,
    check_keep,
    is_version,
    publish_version,
    remove_older_versions,
)
from tfpolicy.export.warmup import write_warmup_records
from tfpolicy.graph.session import GraphSession
from tfpolicy.npz import read_npz, write_npz
from tfpolicy.spaces import space_from_json, space_to_json
from tfpolicy.view_requirement import ViewRequirement

MODEL_FILE = "saved_model.pb"
VARIABLES = Path("variables", "variables")
ONNX_FILE = "model.onnx"
METADATA_FILE = Path("assets.extra", "tfpolicy.json")
EXAMPLE_FILE = Path("assets.extra", "tfpolicy_example.npz")
FORMAT = "tfpolicy-saved-model"
FORMAT_VERSION = 1
_TAG = "serve"


def export_saved_model(
    export_dir: str | os.PathLike[str],
    graph: InferenceGraph,
    description: PolicyDescription,
    example: Example,
    onnx: int | None = None,
    version: int | None = None,
    keep: int | None = None,
    global_timestep: int = 0,
) -> Path:
    """Publishes an inference graph as the next version, once it was loaded and acts as it should.

    With the extra "serving" installed, warm-up records for TensorFlow Serving ride along.

    Args:
        export_dir: Folder of all versions; made if missing.
        graph: What to write; it gets the operations of a saver.
        description: What the policy was built from; written beside the graph.
        example: What the policy itself does.
        onnx: Also writes `ONNX_FILE`, of this opset.
        version: The version's number, by default one above the highest there.
        keep: How many versions up to this one may stay; older ones are removed.
        global_timestep: After how many steps of acting; for people who look at it.

    Returns:
        The path of the version.

    Raises:
        FileExistsError: `version` is there already.
        ValueError: There is no such opset, `version` or `keep` is no such number, or `export_dir`
            is itself the place of a version.
        ImportError: A package for ONNX is missing.
        OSError: It cannot be written.
        RuntimeError: What was written does not act as in `example`; nothing was published.
    """
    if onnx is not None:
        check_opset(onnx)
    if keep is not None:
        check_keep(keep)
    check_base(export_dir, MODEL_FILE)

    def write(folder: Path) -> None:
        try:
            write_saved_model(folder, graph, description, example, global_timestep)
            write_warmup_records(folder, graph.signatures, example.inputs)
        except tf.errors.OpError as error:
            raise OSError(f"`{export_dir}` cannot be written: {_reason(error)}") from error
        if onnx is not None:
            path = folder / ONNX_FILE
            _check_outputs(example, write_onnx(path, graph, onnx, example.inputs))
            describe_onnx(path, description, example)
        checksums.write_list(folder)
        with load_saved_model(folder)[0] as loaded:
            _check_signatures(graph.signatures, loaded.signatures)
            _check_outputs(example, loaded.run(SERVING, example.inputs))

    published = publish_version(export_dir, write, version)
    if keep is not None:
        remove_older_versions(published, keep, MODEL_FILE)
    return published


def write_saved_model(
    folder: Path,
    graph: InferenceGraph,
    description: PolicyDescription,
    example: Example,
    global_timestep: int,
) -> None:
    """Writes a graph and what belongs to it, but no checksums, into an existing, empty folder."""
    builder = tf.compat.v1.saved_model.Builder(os.fspath(folder))
    with graph.graph_session.building():
        builder.add_meta_graph_and_variables(
            graph.graph_session.session,
            [_TAG],
            {name: _signature_def(signature) for name, signature in graph.signatures.items()},
            strip_default_attrs=True,
            # The default one would write a shard for each device.
            saver=tf.compat.v1.train.Saver(allow_empty=True),
        )
    builder.save()
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **description.to_json(),
        "exported": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "global_timestep": global_timestep,
        "views": {name: _view_to_json(view) for name, view in graph.views.items()},
        "signatures": {k: signature_text(v) for k, v in graph.signatures.items()},
    }
    path = folder / METADATA_FILE
    path.parent.mkdir()
    # For people: an `env_config` may hold what JSON cannot say, and nothing is built from it.
    path.write_text(json.dumps(metadata, indent=2, default=repr), encoding="utf-8")
    write_npz(folder / EXAMPLE_FILE, example_to_arrays(example), compressed=True)


def load_saved_model(folder: Path) -> tuple[InferenceGraph, PolicyDescription]:
    """Loads one version into a graph and a session of its own.

    Raises:
        ValueError: It is damaged, or was not written by this package.
    """
    metadata = read_metadata(folder)
    checksums.check_folder(folder)
    description = PolicyDescription.from_json(metadata, folder / METADATA_FILE)
    meta_graph = read_meta_graph(folder)
    graph_session = GraphSession()
    try:
        with graph_session.building():
            saver = tf.compat.v1.train.import_meta_graph(meta_graph)
            saver.restore(graph_session.session, os.fspath(folder / VARIABLES))
        signatures = {
            name: _signature(graph_session.graph, definition)
            for name, definition in meta_graph.signature_def.items()
        }
    except (tf.errors.OpError, KeyError, OSError, RuntimeError, ValueError) as error:
        graph_session.close()
        reason = _reason(error) if isinstance(error, tf.errors.OpError) else error
        raise ValueError(f"`{folder}` is a damaged SavedModel: {reason}") from error
    views = {name: _view_from_json(view) for name, view in metadata["views"].items()}
    graph = InferenceGraph(graph_session, signatures, description.observation_space, views)
    return graph, description


def read_meta_graph(folder: Path) -> meta_graph_pb2.MetaGraphDef:
    """The graph and the signatures of any SavedModel with the tag "serve", without its weights.

    Raises:
        ValueError: The file is damaged, or has no graph with that tag.
    """
    path = folder / MODEL_FILE
    try:
        model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError(f"`{path}` is damaged, it is no SavedModel: {error}.") from error
    for meta_graph in model.meta_graphs:
        if _TAG in meta_graph.meta_info_def.tags:
            return meta_graph
    raise ValueError(f"`{path}` must hold a graph with the tag {_TAG!r}, but it has none.")


def read_metadata(folder: Path) -> dict[str, Any]:
    """What `write_saved_model` wrote beside the graph.

    Raises:
        ValueError: There is none, it is damaged, or of a later format.
    """
    path = folder / METADATA_FILE
    try:
        metadata = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ValueError(
            f"`{folder}` must be written by tfpolicy, but it has no `{METADATA_FILE}`."
        ) from error
    except ValueError as error:
        raise ValueError(f"`{path}` is damaged, it is not JSON: {error}.") from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise ValueError(f'`{path}` does not describe a SavedModel: no `format` "{FORMAT}".')
    version = metadata.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ValueError(
            f"`{path}` has format {version}, written by versions {metadata.get('versions')}; "
            f"this version reads up to {FORMAT_VERSION}."
        )
    return metadata


def read_example(folder: Path) -> Example:
    """The recorded actions of a version, whose checksums have been compared.

    Raises:
        ValueError: It has none.
    """
    return example_from_arrays(read_npz(folder / EXAMPLE_FILE), folder / EXAMPLE_FILE)


def version_folder(path: Path) -> Path:
    """`path` itself if it is a SavedModel, or the newest version in it.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: It is neither.
    """
    if not path.exists():
        raise FileNotFoundError(f"`{path}` must be the folder of a model, but it does not exist.")
    if (path / MODEL_FILE).is_file():
        return path
    while True:
        entries = path.iterdir() if path.is_dir() else ()
        versions = [entry for entry in entries if is_version(entry.name)]
        if not versions:
            raise ValueError(
                f"`{path}` must be a SavedModel, a folder of versions or a checkpoint, but it has "
                f"neither `{MODEL_FILE}` nor a version such as `1` nor a `policy.json`."
            )
        newest = max(versions, key=lambda entry: int(entry.name))
        if (newest / MODEL_FILE).is_file():
            return newest
        # One that has vanished since gave way to a newer one.
        if newest.exists():
            raise ValueError(f"`{newest}` must be a SavedModel, but it has no `{MODEL_FILE}`.")


def signature_text(signature: Signature) -> dict[str, dict[str, str]]:
    """Dtypes and shapes for people, as "float32 [B, 4]"."""
    return {
        side: {name: _spec_text(tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        for side, tensors in signature._asdict().items()
    }


def _view_to_json(view: ViewRequirement) -> dict[str, Any]:
    """What of a view matters to who acts: which steps of which column an input shows."""
    return {
        "data_col": view.data_col,
        "shift": view.shift if isinstance(view.shift, str) else np.asarray(view.shift).tolist(),
        "as_mask": view.as_mask,
        "space": None if view.space is None else space_to_json(view.space),
    }


def _view_from_json(data: Mapping[str, Any]) -> ViewRequirement:
    space = None if data["space"] is None else space_from_json(data["space"])
    return ViewRequirement(data["data_col"], space, data["shift"], as_mask=data["as_mask"])


def _spec_text(dtype: tf.DType, shape: tf.TensorShape) -> str:
    return f"{dtype.name} [{', '.join('B' if size is None else str(size) for size in shape)}]"


def _signature_def(signature: Signature) -> meta_graph_pb2.SignatureDef:
    return meta_graph_pb2.SignatureDef(
        inputs={name: _tensor_info(tensor) for name, tensor in signature.inputs.items()},
        outputs={name: _tensor_info(tensor) for name, tensor in signature.outputs.items()},
        method_name=tf.saved_model.PREDICT_METHOD_NAME,
    )


def _tensor_info(tensor: tf.Tensor) -> meta_graph_pb2.TensorInfo:
    return meta_graph_pb2.TensorInfo(
        name=tensor.name,
        dtype=tensor.dtype.as_datatype_enum,
        tensor_shape=tensor.shape.as_proto(),
    )


def _signature(graph: tf.Graph, definition: meta_graph_pb2.SignatureDef) -> Signature:
    return Signature(
        {name: graph.get_tensor_by_name(info.name) for name, info in definition.inputs.items()},
        {name: graph.get_tensor_by_name(info.name) for name, info in definition.outputs.items()},
    )


def _reason(error: tf.errors.OpError) -> str:
    """The line of TensorFlow's message that says it, without the stack of whoever made the node."""
    return error.message.partition("[[{{node")[0].strip().splitlines()[-1]


def _check_signatures(written: Mapping[str, Signature], loaded: Mapping[str, Signature]) -> None:
    expected, found = (
        {name: signature_text(signature) for name, signature in signatures.items()}
        for signatures in (written, loaded)
    )
    if expected != found:
        raise RuntimeError(
            f"Nothing was published, for the signatures differ: wrote {expected}, read {found}."
        )


def _check_outputs(example: Example, found: Mapping[str, np.ndarray]) -> None:
    differing = [line.output for line in compare(example, found) if not line.same]
    if differing:
        raise RuntimeError(
            "Nothing was published, for the written model does not act as the policy does: on the "
            f"same observations {', '.join(differing)} differ."
        )
