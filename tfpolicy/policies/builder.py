"""A policy class out of functions, for those who come with the functions of an RLlib policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfpolicy.config import PolicyConfig
from tfpolicy.graph.towers import LossOutput
from tfpolicy.tf_policy import TFPolicy


def build_tf_policy(
    name: str,
    *,
    loss_fn: Callable[..., tf.Tensor | LossOutput],
    stats_fn: Callable[..., Mapping[str, tf.Tensor]] | None = None,
    postprocess_fn: Callable[..., Any] | None = None,
    optimizer_fn: Callable[..., tf.compat.v1.train.Optimizer] | None = None,
    gradients_fn: Callable[..., Any] | None = None,
    default_config: Mapping[str, Any] | None = None,
    config_class: type[PolicyConfig] = PolicyConfig,
) -> type[TFPolicy]:
    """Makes a subclass of `TFPolicy`; writing the subclass yourself says the same in fewer words.

    The first argument of every function is the policy, as in RLlib.

    Args:
        name: Name of the class.
        loss_fn: `(policy, model, dist_class, train_batch)` to a scalar or a `LossOutput`. Unlike in
            RLlib the model returns a `ModelOutput`, and `dist_class` takes only its `dist_inputs`.
        stats_fn: `(policy, train_batch)` to scalars that are reported beside the loss.
        postprocess_fn: `(policy, sample_batch, other_agent_batches, episode)` to a batch.
        optimizer_fn: `(policy, learning_rate)` to an optimizer; `learning_rate` is a function.
        gradients_fn: `(policy, optimizer, loss, variables)` to gradients, not yet clipped.
        default_config: Values that differ from the defaults of `config_class`.
        config_class: What the config of the policy is made from.

    Returns:
        The class, to be called with spaces and a config.
    """
    defaults = config_class.from_dict(default_config)

    def loss(self, model, dist_class, train_batch):
        output = loss_fn(self, model, dist_class, train_batch)
        if not isinstance(output, LossOutput):
            output = LossOutput(output, {})
        if stats_fn is None:
            return output
        return output._replace(stats={**output.stats, **stats_fn(self, train_batch)})

    members: dict[str, Any] = {
        "__doc__": f"Built from `{loss_fn.__name__}`.",
        "__module__": loss_fn.__module__,
        "config_class": _with_defaults(f"{name}Config", defaults),
        "loss": loss,
    }
    if postprocess_fn is not None:
        members["postprocess_trajectory"] = lambda self, batch, others=None, episode=None: (
            postprocess_fn(self, batch, others, episode)
        )
    if optimizer_fn is not None:
        members["optimizer"] = lambda self, learning_rate: optimizer_fn(self, learning_rate)
    if gradients_fn is not None:
        members["gradients"] = lambda self, optimizer, loss, variables: gradients_fn(
            self, optimizer, loss, variables
        )
    return type(name, (TFPolicy,), members)


def _with_defaults(name: str, defaults: PolicyConfig) -> type[PolicyConfig]:
    """A config class with other defaults."""
    fields = []
    for field in dataclasses.fields(defaults):
        value = vars(defaults)[field.name]
        changed: Any = dataclasses.field(default_factory=_giving(value), metadata=field.metadata)
        fields.append((field.name, field.type, changed))
    base = type(defaults)
    return dataclasses.make_dataclass(
        name, fields, bases=(base,), frozen=True, namespace={"__module__": base.__module__}
    )


def _giving(value: Any) -> Callable[[], Any]:
    return lambda: value
