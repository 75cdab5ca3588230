"""A policy's weights as an `.h5` file that Keras opens, and weights out of such files.

Weights only: optimizers, coefficients and counters travel in a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import tensorflow as tf
import tf_keras

from tfpolicy.config import PolicyConfig
from tfpolicy.export.h5 import read_h5, write_h5
from tfpolicy.export.matching import match_weights
from tfpolicy.graph.network import build_network
from tfpolicy.graph.session import variable_names


class _Layout(NamedTuple):
    """How the weights lie in a file.

    Attributes:
        layers: For each layer, in the order of the file, the names there of its weights, and those
            of the variables that they are.
        architecture: The Keras model as JSON; `None` if there is none that has all variables.
    """

    layers: dict[str, dict[str, str]]
    architecture: str | None


def export_weights(
    path: str | os.PathLike[str],
    observation_space: gym.Space,
    action_space: gym.Space,
    config: PolicyConfig,
    weights: Mapping[str, np.ndarray],
) -> None:
    """Writes all weights and, for built-in models, the architecture; replaces `path` atomically.

    Args:
        path: The file.
        observation_space: The environment's own.
        action_space: The environment's own.
        config: Any policy's config.
        weights: All weights by name.
    """
    layout = _layout(observation_space, action_space, config)
    layers = [
        (layer, [(name, weights[variable]) for name, variable in variables.items()])
        for layer, variables in layout.layers.items()
    ]
    write_h5(path, layers, layout.architecture)


def import_weights(
    path: str | os.PathLike[str],
    observation_space: gym.Space,
    action_space: gym.Space,
    config: PolicyConfig,
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, np.ndarray]:
    """Reads all weights of a policy out of a file of ours, of tf_keras or of Keras 3.

    Args:
        path: The file.
        observation_space: The environment's own.
        action_space: The environment's own.
        config: Any policy's config.
        shapes: The shapes of all weights by name.

    Returns:
        The weights by name.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no weights, or others: what is missing, unexpected and mis-shaped.
    """
    found = read_h5(path)
    layers = _layout(observation_space, action_space, config).layers.values()
    variables = {name: variable for layer in layers for name, variable in layer.items()}
    match = match_weights({name: shapes[v] for name, v in variables.items()}, found)
    return {variables[name]: value for name, value in match.weights.items()}


def _layout(observation_space: gym.Space, action_space: gym.Space, config: PolicyConfig) -> _Layout:
    # A network of its own: that of the policy is in a graph that is closed.
    with tf.Graph().as_default() as graph:
        model = build_network(observation_space, action_space, config, seed=0).model
        names = variable_names(graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES))
        keras_model = model.keras_model()
        if keras_model is not None:
            layers = {
                layer.name: _weights_of(layer, names)
                for layer in keras_model.layers
                if layer.weights
            }
            if sorted(v for layer in layers.values() for v in layer.values()) == sorted(names):
                # Keras 3 refuses this argument of recurrent layers, even at its default.
                return _Layout(layers, keras_model.to_json().replace('"time_major": false, ', ""))
    layers = {}
    for name in names:
        layer = name.rpartition("/")[0]
        # A variable that is in no layer has one to itself.
        layers.setdefault(layer or name, {})[name if layer else f"{name}/{name}"] = name
    return _Layout(layers, None)


def _weights_of(layer: tf_keras.layers.Layer, variables: Sequence[str]) -> dict[str, str]:
    """The names of a layer's weights in a file, each with that of its variable."""
    found = {}
    for name in variable_names(layer.weights):
        if name in variables:
            found[name] = name
        else:  # The layer stands for the variable of its name, which is in none.
            found[f"{layer.name}/{name.rpartition('/')[2]}"] = layer.name
    return found
