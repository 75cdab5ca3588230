"""Which encoder is for which observations."""

from __future__ import annotations

import gymnasium as gym

from tfpolicy.config import ModelConfig
from tfpolicy.models.complex_input import ComplexEncoder, has_images
from tfpolicy.models.convolutional import ImageEncoder, is_image
from tfpolicy.models.encoder import Encoder, VectorEncoder
from tfpolicy.models.frame_stack import stacked_space


def encoder_class_for(space: gym.Space, config: ModelConfig) -> type[Encoder]:
    """Images go through convolutions, everything else through fully connected layers."""
    if is_image(space, config):
        return ImageEncoder
    return ComplexEncoder if has_images(space, config) else VectorEncoder


def convolves(space: gym.Space, config: ModelConfig) -> bool:
    """Whether the built-in network for such observations has convolutions."""
    seen_space = stacked_space(space, config.num_framestacks)
    return (
        config.custom_model is None and encoder_class_for(seen_space, config) is not VectorEncoder
    )
