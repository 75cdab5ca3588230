"""Configs: frozen dataclasses that are also mappings, with checked names, types and ranges."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import numbers
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from tfpolicy.callbacks import DefaultCallbacks
from tfpolicy.schedules import check_not_negative
from tfpolicy.typed_values import typed_value

ConfigT = TypeVar("ConfigT", bound="Config")

# A class cannot travel in JSON; it is written under this key, and whoever reads must supply it.
_CLASS_MARK = "__class__"


def setting(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    finite: bool = False,
) -> Any:
    """Declares a config field with a range.

    Args:
        default: Its default; dicts are copied for each instance.
        low: Smallest allowed value.
        high: Largest allowed value.
        above: Every value must be greater than this.
        finite: Whether infinity is refused; as a limit it may mean that there is none.
    """
    metadata = {"low": low, "high": high, "above": above, "finite": finite}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Config(Mapping[str, Any]):
    """Base of all configs: `config.lr`, `config["lr"]` and `dict(config)` say the same.

    A field that ends in an underscore has the key without it (`lambda_` is `"lambda"`). Lists
    become tuples, so that nothing in a config can change behind the policy built from it.
    """

    def __post_init__(self) -> None:
        hints = _hints(type(self))
        for field in dataclasses.fields(self):
            key = _key(field)
            value = typed_value(hints[field.name], getattr(self, field.name), key, Config)
            _check_range(field.metadata, value, key)
            object.__setattr__(self, field.name, value)
        self.validate()

    def validate(self) -> None:
        """Checks fields against each other; subclasses extend it."""

    @classmethod
    def from_dict(cls: type[ConfigT], values: Mapping[str, Any] | None = None) -> ConfigT:
        """Builds the config with defaults where `values` says nothing.

        Raises:
            KeyError: A key is unknown; the nearest known one is named.
            TypeError: A value is of the wrong type.
            ValueError: A value is out of its range.
        """
        if isinstance(values, cls):
            return values
        return cls(**_field_names(cls, values or {}))

    def replace(self: ConfigT, **changes: Any) -> ConfigT:
        """A copy with `changes`; a dict given for a nested config changes only the keys it has."""
        changes = _field_names(type(self), changes)
        for name, value in changes.items():
            current = getattr(self, name)
            if isinstance(current, Config) and _is_plain_mapping(value):
                changes[name] = current.replace(**value)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dicts and tuples."""
        return {k: v.to_dict() if isinstance(v, Config) else v for k, v in self.items()}

    def to_json(self) -> dict[str, Any]:
        """What `json.dumps` takes; classes and functions are named but not stored."""
        return {key: _jsonable(value) for key, value in self.to_dict().items()}

    @classmethod
    def from_json(cls: type[ConfigT], stored: Mapping[str, Any], **overrides: Any) -> ConfigT:
        """The inverse of `to_json`.

        Raises:
            ValueError: A class or function was stored by name and `overrides` does not supply it.
        """
        values = _merged(stored, overrides)
        missing = list(_class_marks(values))
        if missing:
            listed = ", ".join(f"`{key}` (was {name})" for key, name in missing)
            raise ValueError(
                f"The stored config names code, which is never loaded from a file: pass {listed}."
            )
        return cls.from_dict(values)

    def __getitem__(self, key: str) -> Any:
        name = _keys(type(self)).get(key)
        if name is None:
            raise KeyError(_unknown(type(self), key))
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_keys(type(self)))

    def __len__(self) -> int:
        return len(_keys(type(self)))


@dataclasses.dataclass(frozen=True)
class ModelConfig(Config):
    """What the network looks like."""

    fcnet_hiddens: tuple[int, ...] = setting((256, 256), low=1)
    fcnet_activation: str = "tanh"
    # [[out channels, kernel, stride], ...]; `None`: by the size of the image, `[]`: no convolution.
    conv_filters: list | None = None
    conv_activation: str = "relu"
    # So many of the last observations are seen as one; 0 and 1: the present one alone.
    num_framestacks: int = setting(0, low=0)
    # Layers between convolutions and heads.
    post_fcnet_hiddens: tuple[int, ...] = setting((), low=1)
    post_fcnet_activation: str = "relu"
    vf_share_layers: bool = False
    # One state-independent log standard deviation per action dimension (Gaussian actions only).
    free_log_std: bool = False
    # A recurrent cell behind these layers; the keys `lstm_...` are those of both kinds.
    use_lstm: bool = False
    use_gru: bool = False
    lstm_cell_size: int = setting(256, low=1)
    lstm_use_prev_action: bool = False
    lstm_use_prev_reward: bool = False
    # A gated transformer behind these layers, which sees so many steps back while acting.
    use_attention: bool = False
    attention_num_transformer_units: int = setting(1, low=1)
    attention_dim: int = setting(64, low=1)
    attention_num_heads: int = setting(1, low=1)
    attention_head_dim: int = setting(32, low=1)
    attention_memory_inference: int = setting(50, low=1)
    # How many of them the first row of a sequence sees when learning; `None`: as many.
    attention_memory_training: int | None = setting(None, low=0)
    attention_position_wise_mlp_dim: int = setting(32, low=1)
    attention_init_gru_gate_bias: float = 2.0
    attention_use_n_prev_actions: int = setting(0, low=0)
    attention_use_n_prev_rewards: int = setting(0, low=0)
    # Rows that a recurrent network learns from are cut into sequences of at most so many.
    max_seq_len: int = setting(20, low=1)
    # How many of them only bring the state up to date, where others of the episode precede.
    burn_in: int = setting(0, low=0)
    # A subclass of `Model` or of `tf_keras.Model`, or a function of the columns.
    custom_model: Callable | None = None
    custom_model_config: dict = setting({})
    custom_action_dist: str | type | None = None
    # Arguments of the distribution's constructor, for example its temperature.
    custom_action_dist_config: dict = setting({})
    # Where a Dict observation tells which actions are legal (`None`: nowhere), and the rest of it.
    action_mask_key: str | None = "action_mask"
    observations_key: str = "observations"

    def validate(self) -> None:
        """Checks that at most one kind of network is asked for, and the lengths of sequences."""
        keys = ("custom_model", "use_lstm", "use_gru", "use_attention")
        kinds = [key for key in keys if self[key]]
        if len(kinds) > 1:
            raise ValueError(f"`{kinds[0]}` and `{kinds[1]}` exclude each other.")
        if (self.attention_memory_training or 0) > self.attention_memory_inference:
            raise ValueError(
                f"`attention_memory_training` must be at most `attention_memory_inference` "
                f"({self.attention_memory_inference}), got {self.attention_memory_training}."
            )
        if self.burn_in >= self.max_seq_len:
            raise ValueError(
                f"`burn_in` must be less than `max_seq_len` ({self.max_seq_len}), "
                f"got {self.burn_in}."
            )


@dataclasses.dataclass(frozen=True)
class PolicyConfig(Config):
    """What every policy takes; algorithms add their own keys."""

    # Acting.
    explore: bool = True
    exploration_config: dict = setting({"type": "StochasticSampling"})
    normalize_actions: bool = True
    clip_actions: bool = False
    # Whether the network sees observations less their running mean, by their standard deviation.
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "NoFilter"
    # Most standard deviations that they may be away from the mean; `None`: any number.
    observation_filter_clip: float | None = setting(10.0, above=0.0)
    # Learning.
    gamma: float = setting(0.99, low=0.0, high=1.0)
    lr: float = setting(5e-5, low=0.0, finite=True)
    lr_schedule: list | dict | None = None
    grad_clip: float | None = setting(None, above=0.0)
    train_batch_size: int = setting(4000, low=1)
    # `None`: the whole train batch is one minibatch.
    sgd_minibatch_size: int | None = setting(None, low=1)
    num_sgd_iter: int = setting(1, low=1)
    # `None`: whatever makes one train batch of all environments.
    rollout_fragment_length: int | None = setting(None, low=1)
    check_numerics: bool = True
    # Devices.
    num_gpus: int = setting(0, low=0)
    fake_gpus: bool = False
    num_multi_gpu_tower_stacks: int = setting(1, low=1)
    jit_compile: bool = False
    # 0: TensorFlow decides.
    intra_op_parallelism_threads: int = setting(0, low=0)
    inter_op_parallelism_threads: int = setting(0, low=0)
    # The rest.
    seed: int | None = setting(None, low=0, high=2**31 - 1)
    callbacks: type | None = None
    env_config: dict = setting({})
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)

    def validate(self) -> None:
        """Checks that a minibatch fits into the train batch, schedules, and what `callbacks` is."""
        check_not_negative("lr_schedule", self.lr_schedule)
        if self.callbacks is not None and not issubclass(self.callbacks, DefaultCallbacks):
            raise TypeError(
                f"`callbacks` must be a subclass of DefaultCallbacks, got {self.callbacks!r}."
            )
        if self.sgd_minibatch_size is not None and self.sgd_minibatch_size > self.train_batch_size:
            raise ValueError(
                f"`sgd_minibatch_size` must be at most `train_batch_size` "
                f"({self.train_batch_size}), got {self.sgd_minibatch_size}."
            )
        if self.minibatch_size < self.num_gpus:
            raise ValueError(
                f"A minibatch must have a row for each of the {self.num_gpus} towers (`num_gpus`), "
                f"got {self.minibatch_size} (`sgd_minibatch_size` or `train_batch_size`)."
            )

    @property
    def minibatch_size(self) -> int:
        """Rows of one SGD step over all towers."""
        return self.sgd_minibatch_size or self.train_batch_size


def _key(field: dataclasses.Field) -> str:
    return field.name.rstrip("_")


@functools.cache
def _keys(cls: type[Config]) -> dict[str, str]:
    """Maps each key of a config class to its field's name."""
    return {_key(field): field.name for field in dataclasses.fields(cls)}


@functools.cache
def _hints(cls: type[Config]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _unknown(cls: type[Config], key: str) -> str:
    known = list(_keys(cls))
    near = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" Known keys: {', '.join(known)}."
    return f"{cls.__name__} has no key {key!r}.{hint}"


def _is_plain_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and not isinstance(value, Config)


def _field_names(cls: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """Translates keys to field names and refuses unknown ones."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{cls.__name__} is made from a dict, got {type(values).__name__}.")
    keys = _keys(cls)
    fields = set(keys.values())
    named = {}
    for key, value in values.items():
        name = keys.get(key, key if key in fields else None)
        if name is None:
            raise KeyError(_unknown(cls, key))
        named[name] = value
    return named


def _check_range(metadata: Mapping[str, Any], value: Any, key: str) -> None:
    low, high, above = (metadata.get(name) for name in ("low", "high", "above"))
    for number in value if isinstance(value, tuple) else (value,):
        if not isinstance(number, numbers.Real):
            continue
        if metadata.get("finite") and not math.isfinite(number):
            raise ValueError(f"`{key}` must be finite, got {number}.")
        if low is not None and number < low:
            raise ValueError(f"`{key}` must be at least {low}, got {number}.")
        if high is not None and number > high:
            raise ValueError(f"`{key}` must be at most {high}, got {number}.")
        if above is not None and number <= above:
            raise ValueError(f"`{key}` must be greater than {above}, got {number}.")


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, type) or callable(value):
        return {_CLASS_MARK: f"{value.__module__}.{value.__qualname__}"}
    return value


def _merged(stored: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(stored)
    for key, value in overrides.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        nested = both and _CLASS_MARK not in merged[key]
        merged[key] = _merged(merged[key], value) if nested else value
    return merged


def _class_marks(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted key and the class name of everything that `to_json` could only name."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            if _CLASS_MARK in value:
                yield prefix + key, value[_CLASS_MARK]
            else:
                yield from _class_marks(value, f"{prefix}{key}.")
