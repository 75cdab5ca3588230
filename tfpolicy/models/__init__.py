"""Networks: each maps the columns of a batch to a `ModelOutput`."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym

from tfpolicy.config import ModelConfig
from tfpolicy.models.attention import Attention
from tfpolicy.models.base import Model, ModelOutput
from tfpolicy.models.complex_input import ComplexInput
from tfpolicy.models.convolutional import Convolutional
from tfpolicy.models.custom import custom_model_class
from tfpolicy.models.encoder import Encoder
from tfpolicy.models.encoders import encoder_class_for
from tfpolicy.models.feed_forward import FeedForward
from tfpolicy.models.frame_stack import FrameStack, stacked_space
from tfpolicy.models.fully_connected import FullyConnected
from tfpolicy.models.recurrent import Recurrent

__all__ = [
    "Attention",
    "ComplexInput",
    "Convolutional",
    "FrameStack",
    "FullyConnected",
    "Model",
    "ModelOutput",
    "Recurrent",
    "model_for",
]

_FEED_FORWARD: dict[type[Encoder], type[FeedForward]] = {
    model_class.encoder_class: model_class
    for model_class in (FullyConnected, Convolutional, ComplexInput)
}


def model_for(
    observation_space: gym.Space,
    action_space: gym.Space,
    num_outputs: int,
    config: ModelConfig,
    seed: int,
) -> Model:
    """Builds the model that `config` describes, in the current default graph.

    Raises:
        TypeError: `custom_model` is neither a subclass of `Model` or of `tf_keras.Model`, nor a
            function.
        ValueError: The observation is an image for which no network is known, or frames are to be
            stacked for a model that has windows of its own over observations.
    """
    seen_space = stacked_space(observation_space, config.num_framestacks)
    if config.custom_model is None:
        model_class: Callable[..., Model] = _built_in(seen_space, config)
    else:
        model_class = custom_model_class(config.custom_model)
    model = model_class(seen_space, action_space, num_outputs, config, seed)
    if config.num_framestacks < 2:
        return model
    return FrameStack(model, observation_space, config.num_framestacks)


def _built_in(observation_space: gym.Space, config: ModelConfig) -> type[Model]:
    if config.use_lstm or config.use_gru:
        return Recurrent
    if config.use_attention:
        return Attention
    return _FEED_FORWARD[encoder_class_for(observation_space, config)]
