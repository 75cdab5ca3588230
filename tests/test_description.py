"""What a policy was built from can be written down, and built again without running code."""

import dataclasses
import json
import sys

import gymnasium as gym
import pytest

from tfpolicy.callbacks import DefaultCallbacks
from tfpolicy.config import PolicyConfig
from tfpolicy.description import PolicyDescription, class_name
from tfpolicy.policies.a2c import A2CPolicy
from tfpolicy.policies.ppo import PPOConfig, PPOPolicy
from tfpolicy.tf_policy import TFPolicy

OBS = gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Box(-1, 1, (2,)))
BOX = gym.spaces.Box(-2, 5, (2,))
PPO = "tfpolicy.policies.ppo.PPOPolicy"


class OwnPolicy(PPOPolicy):
    """A policy that is not part of the package."""


def described(name=PPO, **config):
    return PolicyDescription(name, OBS, BOX, PPOConfig.from_dict(config).to_json())


def test_a_description_survives_json():
    description = described(lr=0.1, model={"fcnet_hiddens": [3]})
    again = PolicyDescription.from_json(json.loads(json.dumps(description.to_json())), "here")
    assert again == description
    assert set(again.versions) == {"tfpolicy", "tensorflow", "python"}


def test_a_description_is_a_text_whatever_is_in_its_env_config():
    description = described(env_config={"rng": object(), "inf": float("inf")})
    again = PolicyDescription.from_text(description.to_text(), "here")
    assert again.config["model"] == description.config["model"]
    assert again.config["env_config"]["rng"].startswith("<object object")
    for text in ("{", "[1]", "{}"):
        with pytest.raises(ValueError, match="`here`"):
            PolicyDescription.from_text(text, "here")


def test_what_describes_no_policy_is_refused_with_its_source():
    data = described().to_json()
    del data["config"], data["policy_class"]
    with pytest.raises(ValueError, match="`here` must describe a policy.*no policy_class, config"):
        PolicyDescription.from_json(data, "here")


def test_acting_needs_only_a_part_of_the_config_and_no_policy_class():
    config = described(clip_actions=True, callbacks=DefaultCallbacks, kl_coeff=0.3).acting_config()
    assert type(config) is PolicyConfig
    assert config == PolicyConfig(clip_actions=True)
    overridden = described().acting_config({"model": {"fcnet_hiddens": [3]}, "lr": 1.0})
    assert overridden == PolicyConfig.from_dict({"model": {"fcnet_hiddens": [3]}})


def test_acting_depends_on_the_filter_and_its_settings():  # g10
    settings = {"observation_filter": "MeanStdFilter", "observation_filter_clip": 3.0}
    description = described(**settings)
    assert description.acting_config() == PolicyConfig.from_dict(settings)
    # What was written before there were filters has none.
    old = {name: value for name, value in description.config.items() if name not in settings}
    older = dataclasses.replace(description, config=old)
    assert older.acting_config() == PolicyConfig()


def test_code_that_the_config_names_must_be_given():  # g15
    description = described(model={"custom_model": OwnPolicy})
    with pytest.raises(ValueError, match=r"pass `model.custom_model` \(was .*OwnPolicy\)"):
        description.acting_config()
    given = description.acting_config({"model": {"custom_model": OwnPolicy}})
    assert given.model.custom_model is OwnPolicy


def test_the_class_is_the_one_described_or_derived_from_it():
    for base in (TFPolicy, PPOPolicy):
        assert described().find_class(base) is PPOPolicy
    own = class_name(OwnPolicy)
    assert own.endswith("test_description.OwnPolicy")
    for base in (TFPolicy, PPOPolicy, OwnPolicy):
        assert described(own).find_class(base) is OwnPolicy
    # Derived from what is described: it can stand for it.
    assert described().find_class(OwnPolicy) is OwnPolicy


def test_a_class_of_another_kind_is_named_with_where_to_go():
    message = r"a tfpolicy.policies.ppo.PPOPolicy, which is no A2CPolicy: .* method on PPOPolicy"
    with pytest.raises(ValueError, match=message):
        described().find_class(A2CPolicy)
    with pytest.raises(ValueError, match=r"OwnPolicy, which is no A2CPolicy: .* on OwnPolicy"):
        described(class_name(OwnPolicy)).find_class(A2CPolicy)


def test_a_class_of_this_package_is_imported(monkeypatch):
    module = "tfpolicy.policies.a2c"
    monkeypatch.delitem(sys.modules, module, raising=False)
    found = described(f"{module}.A2CPolicy").find_class(TFPolicy)
    assert class_name(found) == f"{module}.A2CPolicy"


@pytest.mark.parametrize(
    "name",
    ["antigravity.Policy", "tfpolicy.policies.gone.GonePolicy", "tfpolicy.policies.ppo.No", ""],
)
def test_no_other_code_is_ever_imported(name):
    with pytest.raises(ValueError, match="no such class is known here: import it, and call the"):
        described(name).find_class(TFPolicy)
    assert "antigravity" not in sys.modules
