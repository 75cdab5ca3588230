"""The suite's options for how policies learn change defaults, and nothing that a test says."""

import pytest
from small_policies import RegressionConfig, small_policy

from tfpolicy.config import PolicyConfig
from tfpolicy.policies.ppo import PPOConfig


def learning(config):
    return config["jit_compile"], config["num_gpus"], config["fake_gpus"]


@pytest.mark.parametrize("config_class", [PolicyConfig, PPOConfig, RegressionConfig])
def test_every_config_has_the_defaults_that_the_options_say(config_class, pytestconfig):
    towers = pytestconfig.getoption("--towers")
    expected = (pytestconfig.getoption("--jit-compile"), towers, towers > 0)
    assert learning(config_class()) == learning(config_class.from_dict({})) == expected
    assert learning(config_class().replace(lr=0.5)) == expected


def test_what_a_test_says_stands(package_defaults):
    said = {"jit_compile": False, "num_gpus": 1, "fake_gpus": True}
    with small_policy(**said) as policy:
        assert learning(policy.config) == (False, 1, True)
    assert learning(PPOConfig(**package_defaults)) == (False, 0, False)
