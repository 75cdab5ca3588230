"""Networks of the user's own that are no `Model`: a Keras class, or a function of the columns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import tensorflow as tf
import tf_keras

from tfpolicy.config import ModelConfig
from tfpolicy.models.base import Model, ModelOutput, attributes_with_variables


class KerasModel(Model):
    """A `tf_keras.Model` class, made with the spaces, `num_outputs` and `custom_model_config`.

    It is made as `custom_model(observation_space, action_space, num_outputs,
    **custom_model_config)`, and its `call` maps the dict of columns to a `ModelOutput`; it has no
    recurrent state and no views of its own. Give its layers names, and their initializers seeds:
    Keras ignores those of graphs.

    Raises:
        ValueError: A layer has a loss of its own (a regularizer, `add_loss`), which Keras alone
            would add up; a `Model` of your own can have `losses`.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        num_outputs: int,
        config: ModelConfig,
        seed: int,
    ):
        super().__init__(observation_space, action_space, num_outputs, config, seed)
        make: Any = config.custom_model
        self.network = make(
            observation_space, action_space, num_outputs, **config.custom_model_config
        )

    def __call__(self, columns: Mapping[str, Any]) -> ModelOutput:
        """Calls the network's `call`, since Keras itself would read every column there is."""
        output = checked_output(self.network.call(columns), self.num_outputs, self.network)
        if self.network.losses:
            raise ValueError(
                f"`custom_model`: {type(self.network).__name__} has losses in its layers, which "
                f"no policy would see. Return them from `losses` of a subclass of `Model`."
            )
        return output

    def named_networks(self) -> dict[str, list[tf.Variable]]:
        """The parts of the user's network."""
        return attributes_with_variables(self.network)


class FunctionModel(Model):
    """A function that maps the dict of columns, and `custom_model_config`, to a `ModelOutput`.

    It is called several times and makes its variables with `tf.compat.v1.get_variable`, which finds
    those that there are; they start from the policy's seed. It has no recurrent state.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        num_outputs: int,
        config: ModelConfig,
        seed: int,
    ):
        super().__init__(observation_space, action_space, num_outputs, config, seed)
        self._function: Any = config.custom_model
        self._names: set[str] = set()
        self._replacements: dict[str, tf.Tensor] = {}
        tf.compat.v1.set_random_seed(seed)

    def __call__(self, columns: Mapping[str, Any]) -> ModelOutput:
        """Calls the function in a variable scope that reuses variables."""
        scope = tf.compat.v1.variable_scope(
            tf.compat.v1.get_variable_scope(),
            reuse=tf.compat.v1.AUTO_REUSE,
            use_resource=True,
            custom_getter=self._variable,
        )
        with scope:
            output = self._function(columns, **self.config.custom_model_config)
        return checked_output(output, self.num_outputs, self._function)

    @contextlib.contextmanager
    def reading(
        self, variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
    ) -> Iterator[list[Any]]:
        """Within this context the function gets `values` in place of its `variables`."""
        pairs = list(zip(variables, values, strict=True))
        self._replacements = {variable.name: value for variable, value in pairs}
        try:
            yield [value if v.name in self._names else v for v, value in pairs]
        finally:
            self._replacements = {}

    def _variable(self, getter: Callable[..., tf.Variable], *args: Any, **kwargs: Any) -> Any:
        variable = getter(*args, **kwargs)
        self._names.add(variable.name)
        return self._replacements.get(variable.name, variable)


def custom_model_class(custom_model: Any) -> Callable[..., Model]:
    """What makes a `Model` of the `custom_model` in a config.

    Raises:
        TypeError: It is neither a subclass of `Model` or of `tf_keras.Model` nor a function.
    """
    if isinstance(custom_model, type):
        if issubclass(custom_model, Model):
            return custom_model
        if issubclass(custom_model, tf_keras.Model):
            return KerasModel
    elif callable(custom_model) and not isinstance(custom_model, tf.Module | Model):
        return FunctionModel
    raise TypeError(
        f"`custom_model` must be a subclass of `Model` or of `tf_keras.Model`, or a function of "
        f"the columns, got {custom_model!r}."
    )


def checked_output(output: Any, num_outputs: int, source: Any) -> ModelOutput:
    """Refuses what a custom model must not return.

    Raises:
        TypeError: It is no `ModelOutput`.
        ValueError: The distribution's inputs have the wrong shape, or there is a state.
    """
    if not isinstance(output, ModelOutput):
        raise TypeError(f"`custom_model` {source!r} must return a `ModelOutput`, got {output!r}.")
    if not output.dist_inputs.shape.is_compatible_with([None, num_outputs]):
        raise ValueError(
            f"`custom_model` {source!r}: the actions need `dist_inputs` of shape "
            f"(B, {num_outputs}), got {tuple(output.dist_inputs.shape)}."
        )
    if output.state_out:
        raise ValueError(
            f"`custom_model` {source!r} has a `state_out`, but only a subclass of `Model` can tell "
            f"the state before the first step."
        )
    return output
