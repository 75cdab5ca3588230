"""What an encoder is: the layers between an observation and the features that heads read."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import gymnasium as gym
import tensorflow as tf
import tf_keras

from tfpolicy.config import ModelConfig
from tfpolicy.models.layers import LayerMaker
from tfpolicy.preprocessing import flatten_observation, num_features


class Encoder(abc.ABC):
    """Makes the layers for one kind of observations.

    It holds none of them itself: whoever calls `features` makes a Keras network of the result.

    Args:
        observation_space: The environment's own.
        config: The model's.
        layers: Makes layers with the model's seeds.
    """

    # Names of the heads of the policy, of the value, and of the value on shared features.
    head_names: ClassVar[tuple[str, str, str]] = ("fc_out", "value_out", "value_out")

    def __init__(self, observation_space: gym.Space, config: ModelConfig, layers: LayerMaker):
        self.observation_space = observation_space
        self.config = config
        self.layers = layers

    @abc.abstractmethod
    def tensors(self, observation: Any) -> list[tf.Tensor]:
        """Prepares observations [B, ...] in the structure of the space: one tensor per input."""

    @abc.abstractmethod
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """For each of what `tensors` gives a name, and its shape without the batch dimension."""

    def inputs(self) -> list[Any]:
        """New Keras inputs for what `tensors` gives, [B, ...] or, over time, [B, T, ...]."""
        lead = (None,) if self.layers.over_time else ()
        return [
            tf_keras.Input((*lead, *shape), name=name)
            for name, shape in self.input_shapes().items()
        ]

    @abc.abstractmethod
    def features(self, inputs: list[Any], value: bool = False) -> Any:
        """Calls layers on Keras tensors, up to the features [B, F] or [B, T, F].

        Args:
            inputs: What `inputs` gave.
            value: Whether they are those of the value function, which have names of their own.
        """

    def head(self, name: str, features: Any, width: int, gain: float) -> Any:
        """A linear layer on what `features` gave."""
        return self.layers.dense(name, width, None, gain)(features)

    def network(self, value: bool = False) -> tf_keras.Model:
        """A Keras network from the inputs to the features."""
        inputs = self.inputs()
        return tf_keras.Model(inputs, self.features(inputs, value))


class VectorEncoder(Encoder):
    """Hidden layers `fc_1..n` on the observation as one vector; `fc_value_1..n` for values."""

    def tensors(self, observation: Any) -> list[tf.Tensor]:
        """One vector [B, num_features]: discrete parts one-hot, images scaled, all flattened."""
        return [flatten_observation(self.observation_space, observation)]

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The vector."""
        return {"observations": (num_features(self.observation_space),)}

    def features(self, inputs: list[Any], value: bool = False) -> Any:
        """The last hidden layer."""
        config = self.config
        prefix = "fc_value" if value else "fc"
        return self.layers.hidden(inputs[0], prefix, config.fcnet_hiddens, config.fcnet_activation)
