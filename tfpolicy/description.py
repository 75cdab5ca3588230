"""What a policy was built from, as it stands in its checkpoints and in its exports."""

from __future__ import annotations

import dataclasses
import importlib
import json
import platform
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import gymnasium as gym
import tensorflow as tf

from tfpolicy import __version__
from tfpolicy.config import PolicyConfig
from tfpolicy.policy import Policy
from tfpolicy.spaces import space_from_json, space_to_json

T = TypeVar("T")
_PACKAGE = __name__.partition(".")[0]
# All that acting depends on, whatever the algorithm.
_ACTING_KEYS = (
    "normalize_actions",
    "clip_actions",
    "observation_filter",
    "observation_filter_clip",
    "model",
)


def versions() -> dict[str, str]:
    """Versions of the software at work."""
    return {
        "tfpolicy": __version__,
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
    }


@dataclasses.dataclass(frozen=True)
class PolicyDescription:
    """What is needed to build a policy again.

    Attributes:
        policy_class: Its class, as "package.module.Class".
        observation_space: The environment's own.
        action_space: The environment's own.
        config: As `Config.to_json` gives it.
        versions: Of the software that wrote it.
    """

    policy_class: str
    observation_space: gym.Space
    action_space: gym.Space
    config: Mapping[str, Any]
    versions: Mapping[str, str] = dataclasses.field(default_factory=versions)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "policy_class": self.policy_class,
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "config": dict(self.config),
            "versions": dict(self.versions),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], source: Any) -> PolicyDescription:
        """The inverse of `to_json`.

        Args:
            data: What `to_json` gave, and maybe more.
            source: Where it comes from, for the message.

        Raises:
            ValueError: `data` describes something else, or a space of an unknown kind.
        """
        keys = [field.name for field in dataclasses.fields(cls)]
        missing = [key for key in keys if key not in data]
        if missing:
            raise ValueError(
                f"`{source}` must describe a policy, but it has no {', '.join(missing)}."
            )
        values = {key: data[key] for key in keys}
        for key in ("observation_space", "action_space"):
            values[key] = space_from_json(data[key])
        return cls(**values)

    def to_text(self) -> str:
        """As JSON; in an `env_config` values that JSON has not become their `repr`."""
        return json.dumps(self.to_json(), default=repr)

    @classmethod
    def from_text(cls, text: str, source: Any) -> PolicyDescription:
        """The inverse of `to_text`; raises as `from_json`."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ValueError(f"`{source}` is damaged, it is not JSON: {error}.") from error
        if not isinstance(data, dict):
            raise ValueError(f"`{source}` must be a JSON object, got {type(data).__name__}.")
        return cls.from_json(data, source)

    def acting_config(self, overrides: Mapping[str, Any] | None = None) -> PolicyConfig:
        """The part of the config that acting depends on; no policy class is needed for it.

        Args:
            overrides: Settings in place of the stored ones: a custom model has to be given.

        Raises:
            ValueError: The stored config names a class and `overrides` does not supply it.
        """
        overrides = overrides or {}
        return PolicyConfig.from_json(
            {key: self.config[key] for key in _ACTING_KEYS if key in self.config},
            **{key: overrides[key] for key in _ACTING_KEYS if key in overrides},
        )

    def find_class(self, base: type[T]) -> type[T]:
        """The class that is described: `base` itself, or one derived from it.

        Classes of this package are imported; others must have been, since a file must not decide
        what code runs.

        Raises:
            ValueError: There is no such class.
        """
        # One derived from what is described can stand for it: its config and state will tell.
        if self.policy_class in map(class_name, base.__mro__):
            return base
        module = self.policy_class.rpartition(".")[0]
        if module.startswith(f"{_PACKAGE}."):
            try:
                importlib.import_module(module)
            except ModuleNotFoundError:
                pass  # Renamed since, and no more to be found than a class of others.
        for candidate in _subclasses(base):
            if class_name(candidate) == self.policy_class:
                return candidate
        for other in _subclasses(Policy):  # type: ignore[type-abstract]
            if class_name(other) == self.policy_class:
                raise ValueError(
                    f"The policy is a {self.policy_class}, which is no {base.__name__}: call the "
                    f"method on {other.__name__}, or on a class that both are derived from."
                )
        raise ValueError(
            f"The policy is a {self.policy_class}, and no such class is known here: import it, and "
            f"call the method on it."
        )


def class_name(cls: type) -> str:
    """The name under which a class is described."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _subclasses(base: type[T]) -> Iterator[type[T]]:
    for derived in base.__subclasses__():
        yield derived
        yield from _subclasses(derived)
