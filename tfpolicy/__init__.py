"""Static-graph TensorFlow policies that train on many devices and are served as SavedModels.

Public names are imported when they are first used, so that `import tfpolicy` takes no time.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "A2CConfig": "tfpolicy.policies.a2c",
    "A2CPolicy": "tfpolicy.policies.a2c",
    "DefaultCallbacks": "tfpolicy.callbacks",
    "LEARNER_STATS_KEY": "tfpolicy.policy",
    "LossOutput": "tfpolicy.graph.towers",
    "Model": "tfpolicy.models.base",
    "ModelConfig": "tfpolicy.config",
    "ModelOutput": "tfpolicy.models.base",
    "PGConfig": "tfpolicy.policies.pg",
    "PGPolicy": "tfpolicy.policies.pg",
    "PPOConfig": "tfpolicy.policies.ppo",
    "PPOPolicy": "tfpolicy.policies.ppo",
    "Policy": "tfpolicy.policy",
    "PolicyConfig": "tfpolicy.config",
    "PolicySpec": "tfpolicy.policy",
    "SampleBatch": "tfpolicy.sample_batch",
    "TFPolicy": "tfpolicy.tf_policy",
    "Trainer": "tfpolicy.train.loop",
    "ViewRequirement": "tfpolicy.view_requirement",
    "build_tf_policy": "tfpolicy.policies.builder",
    "concat_samples": "tfpolicy.sample_batch",
    "load_policy": "tfpolicy.served_policy",
    "policy_class": "tfpolicy.policies",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tfpolicy' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
