"""What a server says of a model, checked to be what a policy takes and gives."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from tfpolicy.export.inference import INITIAL_STATE, SAMPLE, SERVING, Signature
from tfpolicy.export.saved_model import signature_text
from tfpolicy.serving.errors import SignatureError
from tfpolicy.spaces import Leaf, leaf_spaces, unflatten


def signature_specs(definition: meta_graph_pb2.SignatureDef, where: str) -> Signature:
    """The specs [B, ...] of a signature.

    Raises:
        SignatureError: Something has no free batch dimension.
    """
    sides = (
        {
            name: tf.TensorSpec(tf.TensorShape(info.tensor_shape), tf.as_dtype(info.dtype))
            for name, info in sorted(side.items())
        }
        for side in (definition.inputs, definition.outputs)
    )
    signature = Signature(*sides)
    for name, spec in itertools.chain(signature.inputs.items(), signature.outputs.items()):
        if not spec.shape.rank or spec.shape[0] is not None:
            raise SignatureError(
                f"{where}: `{name}` must lead with a free batch dimension, got {spec.shape}."
            )
    return signature


def acting_signature(signatures: Mapping[str, Signature], where: str) -> Signature:
    """What acting takes and gives, greedily as well as exploring.

    Raises:
        SignatureError: It is not what a policy takes and gives.
    """
    serving, sample = signatures[SERVING], signatures[SAMPLE]
    text = signature_text(serving)
    states = [name for name in serving.inputs if name.startswith("state_in_")]
    initial = list(signatures[INITIAL_STATE].outputs) if INITIAL_STATE in signatures else []
    if (
        signature_text(sample) != text
        or "action_logp" not in serving.outputs
        or states != initial
        or any(name.replace("_in_", "_out_") not in serving.outputs for name in states)
    ):
        raise SignatureError(f"{where} must act as a policy does, but {SERVING} is {text}.")
    return serving


def observation_space_of(signature: Signature, where: str) -> gym.Space:
    """A `Box` for each leaf of the observation, as far as dtypes and shapes tell.

    Raises:
        SignatureError: No input tells anything.
    """
    names = [name for name in signature.inputs if name == "obs" or name.startswith("obs_")]
    if not names:
        raise SignatureError(
            f"`observation_space` must be given, for {where} takes {', '.join(signature.inputs)}, "
            "which do not tell it."
        )
    return _space(signature.inputs, "obs")


def action_space_of(signature: Signature) -> gym.Space:
    """A `Box` for each leaf of the action, as far as dtypes and shapes tell."""
    return _space(signature.outputs, "actions")


def check_observation_space(space: gym.Space, signature: Signature, where: str) -> None:
    """Checks the leaves that the model reads: it may read but some, or none, and windows instead.

    Raises:
        SignatureError: The inputs have other names, shapes or dtypes.
    """
    wanted = _texts(leaf_spaces(space, "obs"))
    has = _row_texts(signature.inputs, "obs")
    read = wanted.keys() & has.keys()
    if (has and not read) or any(wanted[name] != has[name] for name in read):
        raise SignatureError(
            f"`observation_space` does not fit {where}: expected {wanted}, it has {has}."
        )


def check_action_space(space: gym.Space, signature: Signature, where: str) -> None:
    """Checks that the outputs are the leaves of the space.

    Raises:
        SignatureError: They have other names, shapes or dtypes.
    """
    wanted = _texts(leaf_spaces(space, "actions"))
    has = _row_texts(signature.outputs, "actions")
    if wanted != has:
        raise SignatureError(
            f"`action_space` does not fit {where}: expected {wanted}, it has {has}."
        )


def columns_beside(
    signature: Signature, observation_space: gym.Space, action_space: gym.Space
) -> dict[str, Any]:
    """The columns beside the observation: in the structure of each, the names of its inputs.

    What shows observations or actions of other steps, such as `prev_actions` or `prev_n_obs`, is
    known by the end of its name and has the structure of their space.
    """
    observations = leaf_spaces(observation_space, "obs")
    left = dict.fromkeys(name for name in signature.inputs if name not in observations)
    columns = {}
    for end, space in (("obs", observation_space), ("actions", action_space)):
        names = [name[: match.end()] for name in left for match in re.finditer(end, name)]
        for column in dict.fromkeys(names):
            leaves = list(leaf_spaces(space, column))
            if left.keys() >= set(leaves):
                columns[column] = unflatten(space, leaves)
                for name in leaves:
                    del left[name]
    return {**columns, **{name: name for name in left}}


def _space(specs: Mapping[str, tf.TensorSpec], prefix: str) -> gym.Space:
    if prefix in specs:
        return _box(specs[prefix])
    prefix += "_"
    return gym.spaces.Dict(
        {
            name.removeprefix(prefix): _box(spec)
            for name, spec in specs.items()
            if name.startswith(prefix)
        }
    )


def _box(spec: tf.TensorSpec) -> gym.spaces.Box:
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    low: float
    high: float
    low, high = -np.inf, np.inf
    if dtype.kind == "b":
        low, high = 0, 1
    elif dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return gym.spaces.Box(low, high, tuple(spec.shape[1:]), dtype.type)


def _texts(leaves: Mapping[str, Leaf]) -> dict[str, str]:
    specs = {name: tf.TensorSpec(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
    return signature_text(Signature(specs, {}))["inputs"]


def _row_texts(specs: Mapping[str, tf.TensorSpec], prefix: str) -> dict[str, str]:
    rows = {
        name: tf.TensorSpec(spec.shape[1:], spec.dtype)
        for name, spec in specs.items()
        if name == prefix or name.startswith(f"{prefix}_")
    }
    return signature_text(Signature(rows, {}))["inputs"]
