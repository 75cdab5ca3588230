"""A policy's weights as an `.h5` file that Keras opens, and weights out of such files.

Weights only: optimizers, coefficients and counters travel in a checkpoint. The moments of an
observation filter are in the file, too, since the network is nothing without them, but not in the
Keras model, which takes observations that are normalized.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import tensorflow as tf
import tf_keras

from tfpolicy.config import PolicyConfig
from tfpolicy.export.h5 import OWN_GROUP, read_h5, read_own, write_h5
from tfpolicy.export.matching import match_weights
from tfpolicy.export.moments import import_moments, split_moments
from tfpolicy.export.report import ImportReport
from tfpolicy.graph.acting import single_steps
from tfpolicy.graph.keras_classes import building_in
from tfpolicy.graph.network import build_network
from tfpolicy.graph.placeholders import LazyColumns, batch_placeholder
from tfpolicy.graph.session import variable_names
from tfpolicy.graph.views import acting_specs
from tfpolicy.models import Model
from tfpolicy.spaces import flatten


class _Layout(NamedTuple):
    """How the weights lie in a file.

    Attributes:
        layers: For each layer, in the order of the file, the names there of its weights, and those
            of the variables that they are.
        architecture: The Keras model as JSON; `None` if there is none that has all variables.
        networks: For each network that can be imported into by itself, the names of its variables.
    """

    layers: dict[str, dict[str, str]]
    architecture: str | None
    networks: dict[str, tuple[str, ...]]


def export_weights(
    path: str | os.PathLike[str],
    observation_space: gym.Space,
    action_space: gym.Space,
    config: PolicyConfig,
    weights: Mapping[str, np.ndarray],
    own: Mapping[str, np.ndarray | str] | None = None,
) -> None:
    """Writes all weights and, for built-in models, the architecture; replaces `path` atomically.

    Args:
        path: The file.
        observation_space: The environment's own.
        action_space: The environment's own.
        config: Any policy's config.
        weights: All weights by name.
        own: What else is to stand there; see `write_h5`.
    """
    layout = _layout(observation_space, action_space, config)
    layers = [
        (layer, [(name, weights[variable]) for name, variable in variables.items()])
        for layer, variables in layout.layers.items()
    ]
    write_h5(path, layers, layout.architecture, {**(own or {}), **split_moments(weights)[1]})


def import_weights(
    path: str | os.PathLike[str],
    observation_space: gym.Space,
    action_space: gym.Space,
    config: PolicyConfig,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    strict: bool = True,
    layers: Collection[str] | None = None,
    network: str | None = None,
) -> tuple[dict[str, np.ndarray], ImportReport]:
    """Reads the weights of a policy out of a file of ours, of tf_keras or of Keras 3.

    The moments of an observation filter come with all the weights, not with some layers of them.

    Args:
        path: The file.
        observation_space: The environment's own.
        action_space: The environment's own.
        config: Any policy's config.
        shapes: The shapes of all weights by name.
        strict: Whether all that is asked for must be there.
        layers: The only layers that are asked for, by name; `None` for all.
        network: The only network that is asked for, by name; `None` for all.

    Returns:
        Weights by name, and what was matched with what.

    Raises:
        FileNotFoundError: There is no such file.
        KeyError: There is no such layer or network; the known ones are named.
        ValueError: It holds no weights, or others: what is missing, unexpected and mis-shaped; or,
            also if not `strict`: not a single one fits. Or the moments are those of another filter.
    """
    found = read_h5(path)
    layout = _layout(observation_space, action_space, config)
    variables = {name: v for layer in layout.layers.values() for name, v in layer.items()}
    selected = _selected(layout, layers, network)
    match = match_weights(
        {name: shapes[v] for name, v in variables.items()}, found, strict=strict, selected=selected
    )
    report = ImportReport(
        loaded={variables[name]: source for name, source in match.sources.items()},
        by=match.by,
        missing=tuple(variables[name] for name in match.missing),
        mis_shaped=match.mis_shaped,
        unexpected=match.unexpected,
        left_out=match.left_out,
    )
    weights = {variables[name]: value for name, value in match.weights.items()}
    if selected is not None:
        return weights, report
    stored, expected = split_moments(read_own(path))[1], split_moments(shapes)[1]
    moments = import_moments(stored, expected, path, strict)
    report = dataclasses.replace(
        report,
        loaded={**report.loaded, **{name: f"{OWN_GROUP}/{name}" for name in moments}},
        missing=(*report.missing, *(name for name in expected if name not in moments)),
        left_out=(*report.left_out, *(name for name in stored if name not in moments)),
    )
    return {**weights, **moments}, report


def _selected(
    layout: _Layout, layers: Collection[str] | None, network: str | None
) -> set[str] | None:
    """The names in a file of what is asked for; `None` if that is everything."""
    if layers is None and network is None:
        return None
    candidates = layout.layers
    if network is not None:
        if network not in layout.networks:
            raise KeyError(_unknown("network", network, layout.networks))
        members = set(layout.networks[network])
        candidates = {
            layer: kept
            for layer, names in candidates.items()
            if (kept := {name: v for name, v in names.items() if v in members})
        }
    if layers is not None:
        if isinstance(layers, str) or not layers:
            raise ValueError(f"`layers` must be a list of names of layers, got {layers!r}.")
        for layer in layers:
            if layer not in candidates:
                raise KeyError(_unknown("layer", layer, candidates))
        candidates = {layer: candidates[layer] for layer in layers}
    return {name for names in candidates.values() for name in names}


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    return f"This policy has no {kind} {name!r}; there are: {', '.join(known) or 'none'}."


def _layout(observation_space: gym.Space, action_space: gym.Space, config: PolicyConfig) -> _Layout:
    # A network of its own: that of the policy is in a graph that is closed.
    graph = tf.Graph()
    with building_in(graph):
        model = _built_model(observation_space, action_space, config)
        variables = graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        names = list(split_moments(dict.fromkeys(variable_names(variables)))[0])
        networks = {
            network: variable_names(variables)
            for network, variables in model.named_networks().items()
        }
        keras_model = model.keras_model()
        if keras_model is not None:
            layers = {
                layer.name: _weights_of(layer, names)
                for layer in keras_model.layers
                if layer.weights
            }
            if sorted(v for layer in layers.values() for v in layer.values()) == sorted(names):
                # Keras 3 refuses this argument of recurrent layers, even at its default.
                architecture = keras_model.to_json().replace('"time_major": false, ', "")
                return _Layout(layers, architecture, networks)
    layers = {}
    for name in names:
        layer = name.rpartition("/")[0]
        # A variable that is in no layer has one to itself.
        layers.setdefault(layer or name, {})[name if layer else f"{name}/{name}"] = name
    return _Layout(layers, None, networks)


def _built_model(
    observation_space: gym.Space, action_space: gym.Space, config: PolicyConfig
) -> Model:
    """The model with all its variables, some of which may only be made when it is called."""
    network = build_network(observation_space, action_space, config, seed=0)
    columns = LazyColumns(acting_specs(network.views), batch_placeholder)
    columns.give(single_steps(flatten(observation_space, columns["obs"])[0]))
    network.model(columns)
    return network.model


def _weights_of(layer: tf_keras.layers.Layer, variables: Sequence[str]) -> dict[str, str]:
    """The names of a layer's weights in a file, each with that of its variable."""
    found = {}
    for name in variable_names(layer.weights):
        if name in variables:
            found[name] = name
        else:  # The layer stands for the variable of its name, which is in none.
            found[f"{layer.name}/{name.rpartition('/')[2]}"] = layer.name
    return found
