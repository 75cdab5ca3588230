"""Settings of a run as people write them: config files and `key=value` pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


def read_config(path: Path) -> dict[str, Any]:
    """Reads a config from a `.json` file, or from YAML 1.2 (where 1e-4 is a number, `no` a string).

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It cannot be parsed, or holds no mapping.
    """
    text = path.read_text(encoding="utf-8")
    try:
        values = json.loads(text) if path.suffix.lower() == ".json" else _yaml(text)
    except (json.JSONDecodeError, YAMLError) as error:
        raise ValueError(f"`{path}` cannot be parsed: {_in_one_line(error)}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"`{path}` must hold a mapping of settings, got {type(values).__name__}.")
    return values


def with_settings(config: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Returns `config` with settings such as "lr=1e-4" and "model.fcnet_hiddens=[32, 32]".

    Values are YAML. A dotted key changes one key of a nested mapping; later settings win.

    Raises:
        ValueError: A setting is not of the form key=value, or its value cannot be parsed.
    """
    result = _copied(config)
    for setting in settings:
        key, equals, text = setting.partition("=")
        *parents, last = key.strip().split(".")
        if not equals or not all([*parents, last]):
            raise ValueError(
                f"A setting must look like key=value or key.key=value, got {setting!r}."
            )
        target = result
        for name in parents:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise ValueError(f"{setting!r}: `{name}` is {target!r} and has no keys to set.")
        try:
            target[last] = _yaml(text)
        except YAMLError as error:
            raise ValueError(f"{setting!r} cannot be parsed: {_in_one_line(error)}") from error
    return result


def _yaml(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def _copied(config: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in config.items()}


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())
