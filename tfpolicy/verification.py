"""Whether an artifact still does what the policy did that it was written from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfpolicy.checkpoint import HEADER_FILE, read_checkpoint
from tfpolicy.description import PolicyDescription
from tfpolicy.export.example import Comparison, Example, compare, example_from_arrays
from tfpolicy.export.h5 import SUFFIXES, read_own
from tfpolicy.export.inference import SERVING, build_inference, weight_shapes
from tfpolicy.export.keras_weights import import_weights
from tfpolicy.export.onnx import read_described, run_onnx
from tfpolicy.export.saved_model import load_saved_model, read_example, version_folder
from tfpolicy.train.checkpoints import find_policy

_HEAD = ("output", "recorded", "found", "difference", "allowed", "")


def verify(path: Path, config: Mapping[str, Any] | None = None) -> list[Comparison]:
    """Loads an artifact and compares what it does with the actions that were recorded in it.

    Args:
        path: A SavedModel (its base or one version), a policy's checkpoint, a run or its
            checkpoint, or an `.h5` or `.onnx` file that a policy wrote.
        config: Settings for a checkpoint or an `.h5` file in place of the stored ones. A custom
            model is never loaded from a file: it has to be given here.

    Returns:
        One comparison for each output.

    Raises:
        FileNotFoundError: There is nothing at `path`.
        ValueError: It is none of these, is damaged, or has no recorded actions.
        ImportError: A package for ONNX is missing.
    """
    if not path.exists():
        raise FileNotFoundError(f"`{path}` must be something to verify, but it does not exist.")
    if path.is_dir():
        folder = find_policy(path)
        if (folder / HEADER_FILE).exists():
            return compare(*_checkpoint(folder, config))
        return compare(*_saved_model(version_folder(folder)))
    if path.suffix.lower() == ".onnx":
        _, example = read_described(path)
        return compare(example, run_onnx(path.read_bytes(), example.inputs))
    if path.suffix.lower() in SUFFIXES:
        return compare(*_h5(path, config))
    raise ValueError(f"`{path}` must be a folder or a file of {', '.join(SUFFIXES)}, .onnx.")


def table(comparisons: Sequence[Comparison]) -> str:
    """Comparisons as lines of aligned columns, with a head."""
    rows = [_HEAD]
    for line in comparisons:
        verdict = "same" if line.same else "DIFFERS"
        numbers = f"{line.difference:.2g}", f"{line.allowed:.2g}"
        rows.append((line.output, line.expected, line.found, *numbers, verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _saved_model(folder: Path) -> tuple[Example, dict[str, np.ndarray]]:
    with load_saved_model(folder)[0] as graph:
        example = read_example(folder)
        return example, graph.run(SERVING, example.inputs)


def _checkpoint(
    folder: Path, config: Mapping[str, Any] | None
) -> tuple[Example, dict[str, np.ndarray]]:
    stored, state = read_checkpoint(folder)
    description = PolicyDescription.from_json(stored, folder)
    if not stored.get("example"):
        raise ValueError(f"`{folder}` must hold recorded actions on observations, but has none.")
    example = Example(**stored["example"])
    return example, _acted(description, config, state["weights"], example)


def _h5(path: Path, config: Mapping[str, Any] | None) -> tuple[Example, dict[str, np.ndarray]]:
    own = read_own(path)
    if "description" not in own:
        raise ValueError(
            f"`{path}` must be written by a policy, with its description and recorded actions, but "
            "has none."
        )
    description = PolicyDescription.from_text(str(own["description"]), path)
    example = example_from_arrays(own, path)
    spaces = description.observation_space, description.action_space
    acting = description.acting_config(config)
    weights, _ = import_weights(path, *spaces, acting, weight_shapes(*spaces, acting))
    return example, _acted(description, config, weights, example)


def _acted(
    description: PolicyDescription,
    config: Mapping[str, Any] | None,
    weights: Mapping[str, np.ndarray],
    example: Example,
) -> dict[str, np.ndarray]:
    """What a policy with these weights does on the observations of an example."""
    spaces = description.observation_space, description.action_space
    with build_inference(*spaces, description.acting_config(config), weights) as graph:
        return graph.run(SERVING, example.inputs)
