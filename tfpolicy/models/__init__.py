"""Networks: each maps the columns of a batch to a `ModelOutput`."""

from __future__ import annotations

import gymnasium as gym

from tfpolicy.config import ModelConfig
from tfpolicy.models.base import Model, ModelOutput
from tfpolicy.models.complex_input import ComplexInput, has_images
from tfpolicy.models.convolutional import Convolutional, is_image
from tfpolicy.models.fully_connected import FullyConnected

__all__ = [
    "ComplexInput",
    "Convolutional",
    "FullyConnected",
    "Model",
    "ModelOutput",
    "model_for",
]


def model_for(
    observation_space: gym.Space,
    action_space: gym.Space,
    num_outputs: int,
    config: ModelConfig,
    seed: int,
) -> Model:
    """Builds the model that `config` describes, in the current default graph.

    Raises:
        TypeError: `custom_model` is not a subclass of `Model`.
        ValueError: The observation is an image for which no network is known.
    """
    model_class = config.custom_model or _built_in(observation_space, config)
    if not issubclass(model_class, Model):
        raise TypeError(f"`custom_model` must be a subclass of `Model`, got {model_class!r}.")
    return model_class(observation_space, action_space, num_outputs, config, seed)


def _built_in(observation_space: gym.Space, config: ModelConfig) -> type[Model]:
    if is_image(observation_space, config):
        return Convolutional
    return ComplexInput if has_images(observation_space, config) else FullyConnected
