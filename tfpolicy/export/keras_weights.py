"""A policy's weights as an `.h5` file that Keras opens, and weights out of such files.

Weights only: optimizers, coefficients and counters travel in a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.config import PolicyConfig
from tfpolicy.export.h5 import read_h5, write_h5
from tfpolicy.export.matching import match_weights
from tfpolicy.graph.network import build_network
from tfpolicy.graph.session import variable_names


class _Layout(NamedTuple):
    """How the weights lie in a file.

    Attributes:
        layers: In the order of the file the names of layers, each with those of its variables.
        architecture: The Keras model as JSON; `None` if there is none that has all variables.
    """

    layers: dict[str, list[str]]
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
        (layer, [(name, weights[name]) for name in names]) for layer, names in layout.layers.items()
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
    layers = read_h5(path)
    layout = _layout(observation_space, action_space, config)
    # In a file every weight is in a layer; a variable that is in none has one to itself.
    names = {
        name if "/" in name else f"{layer}/{name}": name
        for layer, members in layout.layers.items()
        for name in members
    }
    match = match_weights({key: shapes[name] for key, name in names.items()}, layers)
    return {names[key]: value for key, value in match.weights.items()}


def _layout(observation_space: gym.Space, action_space: gym.Space, config: PolicyConfig) -> _Layout:
    # A network of its own: that of the policy is in a graph that is closed.
    with tf.Graph().as_default() as graph:
        model = build_network(observation_space, action_space, config, seed=0).model
        names = variable_names(graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES))
        keras_model = model.keras_model()
        if keras_model is not None:
            layers = {
                layer.name: [
                    name if name in names else layer.name for name in variable_names(layer.weights)
                ]
                for layer in keras_model.layers
                if layer.weights
            }
            if sorted(name for members in layers.values() for name in members) == sorted(names):
                return _Layout(layers, keras_model.to_json())
    layers = {}
    for name in names:
        layers.setdefault(name.rpartition("/")[0] or name, []).append(name)
    return _Layout(layers, None)
