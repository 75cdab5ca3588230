"""Maps the weights of RLlib's default networks onto ours.

The fully connected, convolutional and LSTM networks of both have the same layers under the same
names; what differs is told apart here:

- RLlib feeds bytes to a network as they are, ours divides them by 255: the kernels that read them
  are multiplied by 255, which makes the same outputs of the same observations.
- RLlib's LSTM is one for the policy and its values (`vf_share_layers=True`), and the network below
  it has a value head, with layers of its own, that nothing reads.
- On the features of shared convolutions RLlib's value head is a fully connected layer, ours a
  convolution of size 1 x 1.
"""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.config import ModelConfig, PolicyConfig
from tfpolicy.export.matching import WeightMatch, match_weights
from tfpolicy.export.report import ImportReport
from tfpolicy.export.rllib_files import read_rllib
from tfpolicy.graph.keras_classes import building_in
from tfpolicy.graph.network import build_network
from tfpolicy.models.complex_input import ComplexEncoder
from tfpolicy.models.convolutional import ImageEncoder
from tfpolicy.models.encoders import encoder_class_for
from tfpolicy.models.wrapper import ObservationWrapper
from tfpolicy.preprocessing import feature_scales

Shapes = Mapping[str, tuple[int, ...]]
# The value function of the network below an LSTM.
_BELOW_LSTM = re.compile(
    r"(?:.+/)?(?:(?:fc|conv)_value_(?:\d+|out)|value_out)/(?:kernel|bias)(?::0)?"
)
_FILTER = "observation_filter/"
# Observations that RLlib itself changes beyond what a network's first layer could make up for.
_PREPROCESSED = {
    (210, 160, 3): "crops, resizes and scales images of shape (210, 160, 3)",
    (128,): "shifts and scales vectors of length 128, taking them for the memory of an Atari",
}


def import_rllib(
    source: str | os.PathLike[str] | Mapping[str, Any],
    observation_space: gym.Space,
    action_space: gym.Space,
    config: PolicyConfig,
    shapes: Shapes,
    *,
    strict: bool = True,
    policy_id: str | None = None,
) -> tuple[dict[str, np.ndarray], ImportReport]:
    """Reads the weights of a policy of RLlib for one of ours.

    Args:
        source: What `read_rllib` takes.
        observation_space: The environment's own.
        action_space: The environment's own.
        config: Any policy's config, whose `"model"` describes the same network.
        shapes: The shapes of all weights by name.
        strict: Whether all weights must be there, and no others.
        policy_id: Which policy, if there are several.

    Returns:
        Weights by name, and what went where.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: No such network can be mapped; the source is damaged or something else; or the
            weights do not fit: what is missing, unexpected and mis-shaped, and which settings fit.
    """
    space = _network_space(observation_space, action_space, config)
    _check_mapped(space, config.model)
    found = read_rllib(source, policy_id)
    left_out = [name for name in found if config.model.use_lstm and _BELOW_LSTM.fullmatch(name)]
    ours = {name: _as_ours(name, found[name], shapes) for name in found if name not in left_out}
    match = _matched(ours, shapes, config.model, strict)
    weights = dict(match.weights)
    reshaped = [n for n, value in weights.items() if value.ndim != found[match.sources[n]].ndim]
    scaled = []
    for name, scales in _input_scales(space, config.model):
        if name in weights and (scales != 1).any():
            weights[name] = _scaled(weights[name], scales)
            scaled.append(name)
    changes = {
        "nothing reads these below an LSTM of RLlib": left_out,
        "fully connected there, a 1 x 1 convolution here": reshaped,
        "multiplied by 255, since bytes are divided by it here": scaled,
    }
    report = ImportReport(
        loaded=match.sources,
        missing=match.missing,
        mis_shaped=match.mis_shaped,
        unexpected=match.unexpected,
        left_out=tuple(left_out),
        notes=tuple(f"{', '.join(names)}: {what}." for what, names in changes.items() if names),
    )
    return weights, report


def _check_mapped(space: gym.Space, model: ModelConfig) -> None:
    """Refuses networks that RLlib builds otherwise, and warns of observations that it changes."""
    others = [key for key in ("use_attention", "use_gru") if model[key]]
    if not others and model.custom_model is None:
        if encoder_class_for(space, model) is ComplexEncoder:
            others = ["an observation of several parts, images among them"]
    if others:
        raise ValueError(
            f"Fully connected, convolutional and LSTM networks of RLlib are mapped, and custom "
            f"models by their names; this policy has {others[0]}."
        )
    if model.use_lstm and not model.vf_share_layers:
        raise ValueError(
            "RLlib has one LSTM for the policy and its values: set `vf_share_layers` of the model."
        )
    if space.shape in _PREPROCESSED:
        warnings.warn(
            f"RLlib {_PREPROCESSED[space.shape]} unless told otherwise "
            f"(`_disable_preprocessor_api`); do the same in the environment.",
            stacklevel=4,
        )


def _as_ours(name: str, value: np.ndarray, shapes: Shapes) -> tuple[str, np.ndarray]:
    """A weight's name and value as they are here, where they only look different."""
    # Before 2.4 TensorFlow gave the cell of an LSTM no name of its own.
    name = re.sub(r"(^|/)lstm/((?:recurrent_)?kernel|bias)(:0)?$", r"\1lstm/lstm_cell/\2", name)
    for known, shape in shapes.items():
        if shape == (1, 1, *value.shape) and f"/{name}".removesuffix(":0").endswith(f"/{known}"):
            return name, value.reshape(shape)
    return name, value


def _matched(
    ours: Mapping[str, tuple[str, np.ndarray]], shapes: Shapes, model: ModelConfig, strict: bool
) -> WeightMatch:
    """The match by name, with the sources as RLlib calls them."""
    names = {name: source for source, (name, _) in ours.items()}
    try:
        match = match_weights(shapes, [("", list(ours.values()))], strict=strict)
        if match.by == "order":
            # RLlib's own order is now that of the policy and its values, and now the reverse.
            raise ValueError(
                f"No name of this policy's {len(shapes)} weights is among {list(ours)}."
            )
    except ValueError as error:
        raise ValueError(" ".join([str(error), *_hints(names, shapes, model)])) from error
    sources = {name: names[source] for name, source in match.sources.items()}
    return dataclasses.replace(match, sources=sources)


def _hints(found: Iterable[str], shapes: Shapes, model: ModelConfig) -> Iterator[str]:
    """Which settings would make a policy for which the weights are."""
    if model.custom_model is not None:
        return
    names = list(found)
    if any(n.startswith(_FILTER) for n in shapes) and not any(_FILTER in n for n in names):
        yield (
            f"RLlib keeps the moments of an observation filter elsewhere: give a dict that has "
            f"`{_FILTER}...`, too, or import with `strict=False`."
        )
    layers = {part for name in names for part in name.split("/")}
    has_values = any("_value_" in layer for layer in layers)
    if "lstm" in layers and not model.use_lstm:
        yield "They are those of an LSTM: set `use_lstm` and `vf_share_layers` of the model."
    elif "lstm" not in layers and model.use_lstm:
        yield (
            "The LSTM and its heads are not there: RLlib's `base_model` is the network below them "
            "alone, and only `policy_state.pkl` or `get_weights` has all."
        )
    elif has_values == model.vf_share_layers and not model.use_lstm:
        yield f"Set `vf_share_layers` of the model to {not has_values}."


def _network_space(
    observation_space: gym.Space, action_space: gym.Space, config: PolicyConfig
) -> gym.Space:
    """What the network observes, which is without the mask of actions if there is one."""
    with building_in(tf.Graph()):
        model = build_network(observation_space, action_space, config, seed=0).model
    while isinstance(model, ObservationWrapper):
        model = model.inner
    return model.observation_space


def _input_scales(space: gym.Space, model: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """The kernels that read observations, and by what each of their inputs is divided here."""
    if model.custom_model is not None:
        return
    scales = feature_scales(space)
    names = ["fc_1", "fc_value_1"]
    if encoder_class_for(space, model) is ImageEncoder:
        names = ["conv1", "conv_value_1"]
        scales = scales[: cast(gym.spaces.Box, space).shape[-1]]
    elif not model.fcnet_hiddens:
        names = ["lstm/lstm_cell"] if model.use_lstm else ["fc_out", "value_out"]
    for name in names:
        yield f"{name}/kernel", scales


def _scaled(kernel: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """A kernel [..., F, G] times the scales of its first inputs."""
    # Those that follow, such as previous actions, are in RLlib what they are here.
    rest = np.ones(kernel.shape[-2] - len(scales), np.float32)
    return kernel * np.concatenate([scales, rest])[:, None]
