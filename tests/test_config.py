"""Configs: names, types and ranges are checked, and nothing in a config changes afterwards."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from tfpolicy.callbacks import DefaultCallbacks
from tfpolicy.config import Config, ModelConfig, PolicyConfig, setting


@dataclasses.dataclass(frozen=True)
class A2CConfig(PolicyConfig):
    """As a user writes one."""

    lambda_: float = 1.0
    vf_loss_coeff: float = 0.5
    entropy_coeff: float = setting(0.01, low=0.0)


@dataclasses.dataclass(frozen=True)
class WildConfig(Config):
    """Every kind of annotation a user may think of."""

    anything: Any = None
    mode: Literal["sum", "mean"] = "mean"
    names: list[str] | None = None
    table: dict[str, int] = setting({})
    pairs: tuple[tuple[int, float], ...] = ()
    function: Callable[[float], float] | None = None
    family: type[DefaultCallbacks] | None = None


class Network:
    """Stands for a user's model: a class by name."""


def test_attribute_key_and_dict_say_the_same():
    config = A2CConfig(lr=0.1, lambda_=0.9)
    assert config.lr == config["lr"] == dict(config)["lr"] == 0.1
    assert config.lambda_ == config["lambda"] == dict(config)["lambda"] == 0.9
    assert config.model.fcnet_hiddens == config["model"]["fcnet_hiddens"] == (256, 256)
    assert {**config} == {key: config[key] for key in config}
    assert len(config) == len(list(config)) == len(dataclasses.fields(A2CConfig))


def test_configs_with_equal_values_are_equal():
    assert A2CConfig.from_dict({"lr": 1, "model": {}}) == A2CConfig(lr=1.0)
    assert A2CConfig() != A2CConfig(lambda_=0.5)
    assert dict(PolicyConfig()) == dict(PolicyConfig.from_dict())


def test_membership_and_get_go_by_key():
    config = A2CConfig()
    assert "lambda" in config and "lambda_" not in config
    assert config.get("lamda") is None
    assert config.get("gamma") == 0.99


def test_subclass_has_the_keys_of_its_base_and_its_own():
    config = A2CConfig.from_dict({"entropy_coeff": 0, "gamma": 1, "lambda": 0.5})
    assert (config.entropy_coeff, config.gamma, config.lambda_) == (0.0, 1.0, 0.5)
    assert config.vf_loss_coeff == 0.5
    with pytest.raises(KeyError, match="A2CConfig has no key 'vf_los_coeff'.*'vf_loss_coeff'"):
        A2CConfig.from_dict({"vf_los_coeff": 1.0})


def test_key_that_is_a_word_of_python_may_be_given_with_or_without_underscore():
    assert A2CConfig.from_dict({"lambda": 0.5}) == A2CConfig.from_dict({"lambda_": 0.5})
    assert A2CConfig().replace(lambda_=0.5) == A2CConfig().replace(**{"lambda": 0.5})


def test_from_dict_takes_nothing_a_mapping_or_a_config():
    config = A2CConfig(lr=0.5)
    assert A2CConfig.from_dict(config) is config
    assert A2CConfig.from_dict(None) == A2CConfig()
    # A config of another class counts by its keys.
    assert A2CConfig.from_dict(PolicyConfig(lr=0.5)) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rat": 1}, "no key 'learning_rat'"),
        ({"gama": 1}, "Did you mean 'gamma'"),
        ({"xyzzy": 1}, "Known keys: explore, exploration_config"),
        ({"model": {"fcnet_hidens": [1]}}, "ModelConfig has no key .*'fcnet_hiddens'"),
    ],
)
def test_unknown_key_is_refused_with_the_nearest_or_all(values, message):
    with pytest.raises(KeyError, match=message):
        PolicyConfig.from_dict(values)


def test_unknown_key_is_refused_by_replace_and_by_reading():
    with pytest.raises(KeyError, match="Did you mean 'gamma'"):
        PolicyConfig().replace(gama=1.0)
    with pytest.raises(KeyError, match="Did you mean 'gamma'"):
        PolicyConfig()["gama"]
    with pytest.raises(KeyError, match="fcnet_hiddens"):
        PolicyConfig().replace(model={"fcnet_hidens": [1]})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gamma": "0.9"}, r"`gamma` must be float, got '0.9' \(str\)"),
        ({"gamma": True}, r"`gamma` must be float, got True \(bool\)"),
        ({"gamma": float("nan")}, "`gamma` must be float, got nan"),
        ({"num_sgd_iter": 1.5}, r"`num_sgd_iter` must be int, got 1.5 \(float\)"),
        ({"num_sgd_iter": float("inf")}, "`num_sgd_iter` must be int, got inf"),
        ({"num_sgd_iter": False}, "`num_sgd_iter` must be int"),
        ({"num_sgd_iter": None}, "`num_sgd_iter` must be int, got None"),
        ({"seed": "0"}, "`seed` must be int or None, got '0'"),
        ({"explore": 1}, r"`explore` must be bool, got 1 \(int\)"),
        (
            {"observation_filter": "MeanStd"},
            "`observation_filter` must be 'NoFilter' or 'MeanStdFilter', got 'MeanStd'",
        ),
        ({"lr_schedule": 0.1}, "`lr_schedule` must be list or dict or None, got 0.1"),
        ({"env_config": [1]}, r"`env_config` must be dict, got \[1\]"),
        ({"callbacks": "mine"}, "`callbacks` must be a class or None, got 'mine'"),
        ({"callbacks": Network}, "`callbacks` must be a subclass of DefaultCallbacks"),
        ({"model": 5}, r"`model` must be ModelConfig, got 5 \(int\)"),
        ({"model": {"fcnet_hiddens": 64}}, "`fcnet_hiddens` must be a list of int, got 64"),
        ({"model": {"fcnet_hiddens": ["a"]}}, "`fcnet_hiddens` must be int, got 'a'"),
        ({"model": {"custom_action_dist": 1}}, "must be str or a class or None"),
    ],
)
def test_wrong_type_names_key_expectation_and_value(values, message):
    with pytest.raises(TypeError, match=message):
        PolicyConfig.from_dict(values)


def test_what_is_no_mapping_makes_no_config():
    with pytest.raises(TypeError, match="PolicyConfig is made from a dict, got list"):
        PolicyConfig.from_dict([("lr", 1.0)])
    with pytest.raises(TypeError, match="`model` must be ModelConfig, got None"):
        PolicyConfig().replace(model=None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gamma": 1.01}, "`gamma` must be at most 1.0, got 1.01"),
        ({"gamma": -0.1}, "`gamma` must be at least 0.0, got -0.1"),
        ({"grad_clip": 0}, "`grad_clip` must be greater than 0.0, got 0.0"),
        ({"lr": float("inf")}, "`lr` must be finite, got inf"),
        ({"lr_schedule": [[0, 1.0], [9, -0.1]]}, "`lr_schedule` must .* at all times, but .* -0.1"),
        ({"lr_schedule": {"type": "linear", "schedule_timesteps": 9, "final_p": -1}}, "goes to -1"),
        ({"lr_schedule": {"type": "lin"}}, "`lr_schedule`: Unknown schedule type 'lin'; did you"),
        ({"observation_filter_clip": 0}, "`observation_filter_clip` must be greater than 0.0"),
        ({"train_batch_size": 0}, "`train_batch_size` must be at least 1, got 0"),
        ({"seed": 2**31}, "`seed` must be at most 2147483647"),
        ({"model": {"fcnet_hiddens": [64, 0]}}, "`fcnet_hiddens` must be at least 1, got 0"),
        (
            {"train_batch_size": 4, "sgd_minibatch_size": 16},  # c5
            r"`sgd_minibatch_size` must be at most `train_batch_size` \(4\), got 16",
        ),
    ],
)
def test_value_out_of_range_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        PolicyConfig.from_dict(values)
    with pytest.raises(ValueError, match=message):
        PolicyConfig().replace(**values)


def test_limits_themselves_are_allowed():
    config = PolicyConfig(gamma=0.0, lr=0.0, num_gpus=0, train_batch_size=1, sgd_minibatch_size=1)
    assert config.replace(gamma=1.0, seed=2**31 - 1).seed == 2**31 - 1


def test_whole_floats_are_ints_as_yaml_writes_them():
    config = PolicyConfig.from_dict({"train_batch_size": 1e5, "seed": np.float64(3)})
    assert config.train_batch_size == 100_000 and isinstance(config.train_batch_size, int)
    assert config.seed == 3 and isinstance(config.seed, int)


def test_numpy_scalars_become_plain_numbers():
    config = PolicyConfig(lr=np.float32(0.5), num_sgd_iter=np.int64(2), gamma=np.int8(1))
    assert [type(v) for v in (config.lr, config.num_sgd_iter, config.gamma)] == [float, int, float]


def test_minibatch_is_the_whole_train_batch_unless_told():
    assert PolicyConfig(train_batch_size=7).minibatch_size == 7
    assert PolicyConfig(train_batch_size=7, sgd_minibatch_size=3).minibatch_size == 3


def test_replace_changes_only_what_it_is_given():
    config = A2CConfig(lr=0.5, model=ModelConfig(fcnet_hiddens=(8,), fcnet_activation="relu"))
    changed = config.replace(gamma=0.5, model={"fcnet_hiddens": [4, 4]})
    assert (changed.lr, changed.gamma) == (0.5, 0.5)
    assert changed.model == ModelConfig(fcnet_hiddens=(4, 4), fcnet_activation="relu")
    # A whole nested config replaces the old one instead.
    assert config.replace(model=ModelConfig()).model == ModelConfig()
    assert config.model.fcnet_hiddens == (8,) and config.gamma == 0.99
    assert type(changed) is A2CConfig


def test_config_cannot_be_changed():
    config = PolicyConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 1.0
    with pytest.raises(TypeError):
        config["lr"] = 1.0


def test_config_does_not_share_what_the_caller_may_change():
    hiddens, schedule = [8, 8], [[0, 1.0], [10, 0.1]]
    exploration = {"type": "EpsilonGreedy", "epsilon_schedule": {"endpoints": [[0, 1.0]]}}
    config = PolicyConfig.from_dict(
        {
            "model": {"fcnet_hiddens": hiddens},
            "lr_schedule": schedule,
            "exploration_config": exploration,
        }
    )
    before = config.to_dict()
    hiddens.append(1)
    schedule[1][1] = 7.0
    exploration["epsilon_schedule"]["endpoints"].append([5, 0.0])
    exploration["type"] = "Random"
    assert config.to_dict() == before
    assert config.lr_schedule == ((0, 1.0), (10, 0.1))


def test_default_dicts_are_not_shared_between_configs():
    PolicyConfig().env_config["size"] = 3
    assert PolicyConfig().env_config == {}


def test_to_dict_is_plain_and_makes_the_same_config():
    config = A2CConfig(lambda_=0.5, model=ModelConfig(custom_model=Network))
    plain = config.to_dict()
    assert type(plain) is dict and type(plain["model"]) is dict
    assert A2CConfig.from_dict(plain) == config


def test_json_round_trip_is_exact():
    config = A2CConfig.from_dict(
        {
            "lambda": 0.1 + 0.2,
            "lr_schedule": [[0, 1e-3], [1e6, 1e-5]],
            "grad_clip": None,
            "seed": 2**31 - 1,
            "env_config": {"size": [1, [2, 3]], "nested": {"names": ["a"], "none": None}},
            "model": {"fcnet_hiddens": [3], "custom_action_dist": "beta"},
        }
    )
    assert A2CConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_stored_class_names_are_never_loaded_but_asked_for():
    config = A2CConfig.from_dict(
        {
            "callbacks": DefaultCallbacks,
            "exploration_config": {"type": Network, "scale": 2.0},
            "model": {"custom_model": Network, "fcnet_hiddens": [3]},
        }
    )
    stored = json.loads(json.dumps(config.to_json()))
    with pytest.raises(ValueError) as refused:
        A2CConfig.from_json(stored)
    for name in (
        "`callbacks` (was tfpolicy.callbacks.DefaultCallbacks)",
        f"`exploration_config.type` (was {__name__}.Network)",
        f"`model.custom_model` (was {__name__}.Network)",
    ):
        assert name in str(refused.value)
    restored = A2CConfig.from_json(
        stored,
        callbacks=DefaultCallbacks,
        exploration_config={"type": Network},
        model={"custom_model": Network},
    )
    assert restored == config


def test_stored_config_can_be_overruled_on_the_way_in():
    stored = A2CConfig(lr=0.5, num_gpus=2).to_json()
    restored = A2CConfig.from_json(stored, num_gpus=0, model={"fcnet_activation": "relu"})
    assert (restored.lr, restored.num_gpus) == (0.5, 0)
    assert restored.model == ModelConfig(fcnet_activation="relu")
    with pytest.raises(KeyError, match="Did you mean 'num_gpus'"):
        A2CConfig.from_json(stored, num_gpu=0)
    # A version that no longer has a key says so instead of dropping it.
    with pytest.raises(KeyError, match="no key 'framework'"):
        A2CConfig.from_json({**stored, "framework": "tf"})


def test_function_in_a_config_is_named_in_json_too():
    stored = PolicyConfig(env_config={"reward": len}).to_json()
    assert stored["env_config"] == {"reward": {"__class__": "builtins.len"}}


def test_every_kind_of_annotation_is_understood():
    config = WildConfig.from_dict(
        {
            "anything": {1, 2},
            "mode": "sum",
            "names": ["a"],
            "table": {"a": 1},
            "pairs": [[1, 2], [3, 4.5]],
            "function": abs,
            "family": DefaultCallbacks,
        }
    )
    assert config.anything == {1, 2} and config.mode == "sum" and config.names == ("a",)
    assert config.table == {"a": 1} and config.function is abs
    assert config.pairs == ((1, 2.0), (3, 4.5))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "max"}, "`mode` must be 'sum' or 'mean', got 'max'"),
        ({"names": "a"}, "`names` must be list or None, got 'a'"),
        ({"table": [1]}, "`table` must be dict, got"),
        ({"pairs": [[1, 2, 3]]}, r"`pairs` must be a list of int, float, got \[1, 2, 3\]"),
        ({"function": 3}, "`function` must be Callable or None, got 3"),
        ({"family": 3}, "`family` must be a class or None, got 3"),
    ],
)
def test_every_kind_of_annotation_refuses_what_it_does_not_mean(values, message):
    with pytest.raises(TypeError, match=message):
        WildConfig.from_dict(values)


def test_configs_validate_fields_against_each_other_in_subclasses_too():
    @dataclasses.dataclass(frozen=True)
    class Ordered(PolicyConfig):
        low: float = 0.0
        high: float = 1.0

        def validate(self):
            super().validate()
            if self.low > self.high:
                raise ValueError(f"`low` must be at most `high` ({self.high}), got {self.low}.")

    with pytest.raises(ValueError, match="`low` must be at most `high`"):
        Ordered(low=2.0)
    with pytest.raises(ValueError, match="`sgd_minibatch_size`"):
        Ordered(train_batch_size=1, sgd_minibatch_size=2)
