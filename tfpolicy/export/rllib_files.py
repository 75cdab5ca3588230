"""Weights as RLlib's TensorFlow policies of Ray 1.x and 2.x leave them, by name.

They are in `policy_state.pkl`, what `Policy.get_state` gives, in the folder of a policy or of an
algorithm; in the `checkpoint-<n>` of a trainer of Ray 1.x or 2.0; or in what users made of
`get_weights` or of a Keras network: an npz, an h5, a dict.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tfpolicy.export.h5 import read_h5
from tfpolicy.export.plain_pickle import PickledArray, describe, read_plain_pickle
from tfpolicy.npz import read_npz

POLICY_STATE = "policy_state.pkl"
# What stood beside the weights where a state was no more than a dict of them.
_NO_WEIGHTS = ("_optimizer_variables", "_exploration_state", "global_timestep")


def read_rllib(
    source: str | os.PathLike[str] | Mapping[str, Any], policy_id: str | None = None
) -> dict[str, np.ndarray]:
    """Reads weights by the names that they have in RLlib.

    Args:
        source: A file or folder, or a dict: of weights by name, or what `get_state` gave.
        policy_id: Which policy, if there are several.

    Returns:
        Arrays of numbers by name ("default_policy/fc_1/kernel").

    Raises:
        FileNotFoundError: There is no such file.
        TypeError: `source` is neither a path nor a dict.
        ValueError: It is damaged or something else, a weight is no array of numbers, the weights
            have no names, or it holds several policies and `policy_id` is none of them.
    """
    if isinstance(source, Mapping):
        return _named(_weights_of(source, policy_id))
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"`source` must be a path or a dict of weights, got {type(source).__name__}."
        )
    path = _state_file(Path(source), policy_id)
    if not path.exists():
        raise FileNotFoundError(f"`{path}` must hold weights of RLlib, but it does not exist.")
    if path.is_file() and h5py.is_hdf5(path):
        return {
            name if "/" in name else f"{layer}/{name}": value
            for layer, weights in read_h5(path)
            for name, value in weights
        }
    data = path.read_bytes()
    try:
        if data.startswith(b"PK\x03\x04"):
            arrays = read_npz(io.BytesIO(data))
            # `np.savez` makes files of names, in which some write a slash as something else.
            return _named({name.replace("|", "/"): array for name, array in arrays.items()})
        return _named(_weights_of(read_plain_pickle(data), policy_id))
    except ValueError as error:
        raise ValueError(f"`{path}` must hold weights of RLlib by name. {error}") from error


def _state_file(path: Path, policy_id: str | None) -> Path:
    """The file with the policy's state, of the folder of an algorithm or of a policy."""
    if not path.is_dir():
        return path
    if (path / POLICY_STATE).exists():
        return path / POLICY_STATE
    states = {state.parent.name: state for state in path.glob(f"policies/*/{POLICY_STATE}")}
    if not states:
        raise FileNotFoundError(
            f"`{path}` must hold `{POLICY_STATE}` or `policies/<name>/{POLICY_STATE}`, but there "
            f"is neither."
        )
    return states[_chosen(states, policy_id)]


def _chosen(policies: Iterable[str], policy_id: str | None) -> str:
    known = sorted(policies)
    if policy_id is None and len(known) == 1:
        return known[0]
    if policy_id not in known:
        raise ValueError(
            f"`policy_id` must be one of the policies {', '.join(known)}, got {policy_id!r}."
        )
    return str(policy_id)


def _weights_of(state: Any, policy_id: str | None) -> Mapping[str, Any]:
    """The weights in the state of a policy or of a trainer, or in a dict of them."""
    if not isinstance(state, Mapping):
        raise ValueError(f"A policy's state must be a dict, but this one {describe(state)}.")
    if isinstance(state.get("worker"), bytes):
        worker = read_plain_pickle(state["worker"])
        policies = worker.get("state") if isinstance(worker, Mapping) else None
        if not isinstance(policies, Mapping):
            raise ValueError("The state of the trainer's worker must hold policies by name.")
        return _weights_of(policies[_chosen(map(str, policies), policy_id)], None)
    weights = state.get("weights")
    if weights is None:
        return {name: value for name, value in state.items() if name not in _NO_WEIGHTS}
    if isinstance(weights, list):
        raise ValueError(
            "The weights are a list without names, as policies of `framework='tf2'` write them. "
            "Save `{v.name: v.numpy() for v in policy.variables()}` there, and import that."
        )
    if not isinstance(weights, Mapping):
        raise ValueError(f"`weights` must be a dict of arrays, but it {describe(weights)}.")
    return weights


def _named(weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {str(name): _array(name, value) for name, value in weights.items()}


def _array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, PickledArray):
        try:
            return value.array()
        except ValueError as error:
            raise ValueError(
                f"The weight {name!r} must be an array of numbers: {error}."
            ) from error
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return np.asarray(value)
    raise ValueError(f"The weight {name!r} must be an array of numbers, but it {describe(value)}.")
