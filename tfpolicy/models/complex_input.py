"""Networks for observations of several parts, images among them."""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import tensorflow as tf

from tfpolicy.config import ModelConfig
from tfpolicy.models.convolutional import ConvStack, is_image
from tfpolicy.models.encoder import Encoder
from tfpolicy.models.feed_forward import FeedForward
from tfpolicy.models.layers import LayerMaker
from tfpolicy.preprocessing import flatten_observation, num_features, scale_box
from tfpolicy.spaces import flatten, leaf_spaces


def has_images(space: gym.Space, config: ModelConfig) -> bool:
    """Whether a Dict or Tuple has a leaf that goes through convolutions."""
    nested = isinstance(space, gym.spaces.Dict | gym.spaces.Tuple)
    return nested and any(is_image(leaf, config) for leaf in leaf_spaces(space, "obs").values())


class ComplexEncoder(Encoder):
    """Convolutions `conv_<leaf>_1..n` for each image, joined with the rest, then `fc_1..n`.

    The rest is every leaf that is no image, encoded as in a fully connected network. Values have
    layers of their own, `conv_value_<leaf>_1..n` and `fc_value_1..n`.
    """

    def __init__(self, observation_space: gym.Space, config: ModelConfig, layers: LayerMaker):
        super().__init__(observation_space, config, layers)
        self._leaves = leaf_spaces(observation_space, "obs")
        self._images = {
            name: cast(gym.spaces.Box, leaf)
            for name, leaf in self._leaves.items()
            if is_image(leaf, config)
        }
        self._stacks = {
            name: ConvStack(space.shape, config, layers, name)
            for name, space in self._images.items()
        }
        rest = (leaf for name, leaf in self._leaves.items() if name not in self._images)
        self._num_rest = sum(map(num_features, rest))

    def tensors(self, observation: Any) -> list[tf.Tensor]:
        """The images, and all the rest as one vector."""
        images, rest = [], []
        values = flatten(self.observation_space, observation)
        for (name, leaf), value in zip(self._leaves.items(), values, strict=True):
            if name in self._images:
                images.append(scale_box(self._images[name], value))
            else:
                rest.append(flatten_observation(leaf, value))
        return images if self._num_rest == 0 else [*images, tf.concat(rest, axis=1)]

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The images, and one vector of the rest if there is any."""
        images = {name: space.shape for name, space in self._images.items()}
        return images if self._num_rest == 0 else {**images, "observations": (self._num_rest,)}

    def features(self, inputs: list[Any], value: bool = False) -> Any:
        """The last hidden layer."""
        config, kind = self.config, "_value" if value else ""
        parts = list(inputs)
        for index, (name, stack) in enumerate(self._stacks.items()):
            parts[index] = stack(inputs[index], f"conv{kind}_{name.removeprefix('obs_')}_")
        joined = parts[0]
        if len(parts) > 1:
            joined = self.layers.join(f"joined{kind}")(parts)
        return self.layers.hidden(
            joined, f"fc{kind}", config.fcnet_hiddens, config.fcnet_activation
        )


class ComplexInput(FeedForward):
    """Convolutions for each image of a Dict or Tuple, joined with the rest in hidden layers."""

    encoder_class = ComplexEncoder
    name = "complex_input"
