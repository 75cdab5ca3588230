"""Weights of an `.h5` file as a SavedModel or a checkpoint, once it is said of what they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tfpolicy.checkpoint import HEADER_FILE, read_checkpoint
from tfpolicy.description import PolicyDescription, versions
from tfpolicy.export.h5 import read_own
from tfpolicy.export.saved_model import read_metadata, version_folder
from tfpolicy.tf_policy import TFPolicy
from tfpolicy.train.checkpoints import find_policy

# What a description in JSON may leave out.
DEFAULT_CLASS = "tfpolicy.policies.ppo.PPOPolicy"


def _to_saved_model(policy: TFPolicy, target: Path, onnx: int | None) -> Path:
    return policy.export_model(target, onnx)


def _to_checkpoint(policy: TFPolicy, target: Path, onnx: int | None) -> Path:
    if onnx is not None:
        raise ValueError("`onnx` rides along with a SavedModel, not with a checkpoint.")
    policy.save(target)
    return target


_WRITERS: dict[str, Callable[[TFPolicy, Path, int | None], Path]] = {
    "savedmodel": _to_saved_model,
    "checkpoint": _to_checkpoint,
}
KINDS = tuple(_WRITERS)


def convert(
    h5: Path, target: Path, kind: str, like: Path | None = None, onnx: int | None = None
) -> Path:
    """Writes a policy with the weights of an `.h5` file.

    Args:
        h5: Of this package, of tf_keras or of Keras 3.
        target: The folder of all versions of a SavedModel, or the folder of the checkpoint.
        kind: One of `KINDS`. A checkpoint starts training anew from these weights.
        like: What has the spaces and the config; see `describe`. `None` means `h5` itself, which a
            policy must have written then.
        onnx: Writes ONNX of this opset beside a SavedModel, too.

    Returns:
        The path of the version or of the checkpoint.

    Raises:
        FileNotFoundError: `h5` or `like` does not exist.
        ValueError: `like` describes no policy, or the weights are those of another network.
    """
    if kind not in _WRITERS:
        raise ValueError(f"`kind` must be one of {', '.join(KINDS)}, got {kind!r}.")
    with TFPolicy.from_description(describe(h5 if like is None else like)) as policy:
        policy.import_model_from_h5(h5)
        return _WRITERS[kind](policy, target, onnx)


def describe(path: Path) -> PolicyDescription:
    """What the policy in `path` was built from.

    Args:
        path: A run, a checkpoint, a SavedModel, an `.h5` file of a policy, or a `.json` file: an
            object with `observation_space` and `action_space` as `space_to_json` writes them, and
            maybe `config` and `policy_class`.

    Raises:
        FileNotFoundError: There is no such file or folder.
        ValueError: It describes no policy.
    """
    if not path.exists():
        raise FileNotFoundError(f"`{path}` must describe a policy, but it does not exist.")
    if path.is_dir():
        folder = find_policy(path)
        if (folder / HEADER_FILE).exists():
            return PolicyDescription.from_json(read_checkpoint(folder)[0], folder)
        folder = version_folder(folder)
        return PolicyDescription.from_json(read_metadata(folder), folder)
    if path.suffix.lower() == ".json":
        return _of_json(path)
    own = read_own(path)
    if "description" not in own:
        raise ValueError(
            f"`{path}` must say what its weights belong to, but it does not: give a checkpoint, a "
            "SavedModel or a JSON file that has the spaces and the config."
        )
    return PolicyDescription.from_text(str(own["description"]), path)


def _of_json(path: Path) -> PolicyDescription:
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"`{path}` must be JSON, but it is not: {error}.") from error
    if not isinstance(data, dict):
        raise ValueError(f"`{path}` must be a JSON object, got {type(data).__name__}.")
    defaults = {"policy_class": DEFAULT_CLASS, "config": {}, "versions": versions()}
    return PolicyDescription.from_json({**defaults, **data}, path)
