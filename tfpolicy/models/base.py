"""What a model is to the rest of the package: columns in, `ModelOutput` out."""

from __future__ import annotations

import abc
import contextlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import tensorflow as tf
import tf_keras

from tfpolicy.config import ModelConfig
from tfpolicy.view_requirement import ViewRequirement


class ModelOutput(NamedTuple):
    """What one call of a model gives.

    Attributes:
        dist_inputs: [B, D] float32, the parameters of the action distribution.
        vf_preds: [B] float32 state values, or `None` for a model without a value head.
        state_out: The recurrent state after each sequence, [S, ...] each.
    """

    dist_inputs: tf.Tensor
    vf_preds: tf.Tensor | None
    state_out: tuple[tf.Tensor, ...] = ()


class Model(abc.ABC):
    """A network. Making one creates its variables; calling it only adds operations.

    A subclass keeps its Keras networks and its variables as attributes of itself, or in lists and
    dicts that are, and gives every layer a fixed name: those names are what weights are stored
    under.

    Args:
        observation_space: The environment's own; preprocessing is the model's first step.
        action_space: The policy's own (normalized), that of `prev_actions`.
        num_outputs: Width of `dist_inputs`.
        config: The `"model"` part of the policy's config.
        seed: Initial weights follow from it.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        num_outputs: int,
        config: ModelConfig,
        seed: int,
    ):
        self.observation_space = observation_space
        self.action_space = action_space
        self.num_outputs = num_outputs
        self.config = config
        self.seed = seed

    @abc.abstractmethod
    def __call__(self, columns: Mapping[str, Any]) -> ModelOutput:
        """Builds the forward pass.

        Args:
            columns: Tensors [B, ...] by column name. A model that learns from sequences also reads
                `seq_lens` [S] int32 and `max_seq_len`, the plain int T; B is then S * T, each
                sequence padded to T. Such is a model with states `state_in_i` [S, ...], or with a
                view whose `batch_repeat_value` is `max_seq_len`, [S, ...]. While acting T is 1: no
                loop is needed there.
        """

    def initial_state(self) -> list[np.ndarray]:
        """The recurrent state before the first step, without a batch dimension."""
        return []

    def view_requirements(self) -> dict[str, ViewRequirement]:
        """Columns that this model reads beside the usual ones."""
        return {}

    def losses(self, columns: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Losses of the model's own by name, which are added to that of the policy.

        Args:
            columns: Those of a train batch; reading one makes it an input. Calling the model on
                them once more costs nothing: equal operations are merged.

        Returns:
            Losses of each row, [B] float32, or scalars that belong to no row; they are averaged
            over the valid rows, reported under their names, and not weighted any further.
        """
        return {}

    def metrics(self, columns: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """What is reported beside the losses: values of each row, [B] float32, or scalars."""
        return {}

    def keras_model(self) -> tf_keras.Model | None:
        """A Keras model of all variables, for files that Keras opens; `None` if there is none.

        A layer that stands for a variable outside of all layers has the variable's name. Making the
        model may add operations and variables, so this is called in a graph made for it.
        """
        return None

    def named_networks(self) -> dict[str, list[tf.Variable]]:
        """The variables of each part that weights can be imported into by itself, by its name.

        Here a part is every Keras network, layer or module that is an attribute of the model.
        """
        return attributes_with_variables(self)

    def check_observations(self, leaves: Sequence[np.ndarray]) -> None:
        """Refuses observations that cannot be acted on or learned from, before anything is run.

        Args:
            leaves: The leaves [B, ...] of a batch of observations, in the order of the space.

        Raises:
            ValueError: The column and the rows are named.
        """

    def layer_seed(self, layer_name: str) -> int:
        """A seed for one layer's initializer; Keras initializers ignore the graph's seed."""
        return (self.seed + zlib.crc32(layer_name.encode())) % 2**31

    @contextlib.contextmanager
    def reading(
        self, variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
    ) -> Iterator[list[Any]]:
        """Within this context the model computes with `values` in place of its `variables`.

        A device can then be handed the weights as plain tensors, which a compiled function needs
        when the variables live on another device.

        Yields:
            For each variable the tensor that is read instead, or the variable itself where the
            model keeps it somewhere that cannot be reached from its attributes.
        """
        replacement = {id(v): value for v, value in zip(variables, values, strict=True)}
        swapped = []
        for place in _places(self):
            for key in list(place) if isinstance(place, dict) else range(len(place)):
                variable = place[key]
                if id(variable) in replacement:
                    place[key] = replacement[id(variable)]
                    swapped.append((place, key, variable))
        reached = {id(variable) for _, _, variable in swapped}
        try:
            yield [replacement[id(v)] if id(v) in reached else v for v in variables]
        finally:
            for place, key, variable in swapped:
                place[key] = variable


def replaceable_variables(model: Model, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Those in place of which a model can read something else, see `Model.reading`."""
    with model.reading(variables, [object()] * len(variables)) as readings:
        pairs = list(zip(variables, readings, strict=True))
    return [variable for variable, reading in pairs if reading is not variable]


def attributes_with_variables(owner: Any) -> dict[str, list[tf.Variable]]:
    """The variables of the public attributes that are Keras networks, layers or modules."""
    return {
        name: list(part.variables)
        for name, part in vars(owner).items()
        if isinstance(part, tf.Module) and not name.startswith("_")
    }


def _places(model: Model) -> list[Any]:
    """The dicts and lists that can hold a model's variables.

    They are the attributes of the model, its own lists and dicts among them, and those of every
    Keras layer or module that can be reached from there.
    """
    places = _containers(vars(model))
    modules: list[tf.Module] = []
    for value in vars(model).values():
        parts = [part for part in tf.nest.flatten(value) if isinstance(part, tf.Module)]
        modules += [module for part in parts for module in (part, *part.submodules)]
    return places + [vars(module) for module in modules]


def _containers(value: Any) -> list[Any]:
    # Keras wraps the lists of its layers in classes of its own, which must not be written to.
    if type(value) not in (dict, list):
        return []
    inner = value.values() if isinstance(value, dict) else value
    return [value, *(container for part in inner for container in _containers(part))]
