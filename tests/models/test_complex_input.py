"""Observations of images and vectors: each image has convolutions of its own."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import ppo_batch, small_policy

from tfpolicy.config import ModelConfig
from tfpolicy.models import ComplexInput, model_for
from tfpolicy.models.fully_connected import FullyConnected

S = gym.spaces
IMAGE = S.Box(0, 255, (8, 10, 2), np.uint8)
SPACE = S.Dict(
    speed=S.Box(-1, 1, (2,)), eyes=S.Tuple([IMAGE, S.Box(0, 1, (6, 6, 1))]), goal=S.Discrete(3)
)
MODEL = {"conv_filters": [[3, 3, 2], [5, 3, 1]], "fcnet_hiddens": [4]}


def observations(rows, seed=0):
    rng = np.random.default_rng(seed)
    eyes = (rng.integers(0, 256, (rows, 8, 10, 2), np.uint8), rng.random((rows, 6, 6, 1), "f"))
    return {
        "eyes": eyes,
        "goal": rng.integers(0, 3, rows),
        "speed": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def policy():
    with small_policy(obs_space=SPACE, model=MODEL) as policy:
        yield policy


def test_images_have_layers_of_their_own_and_the_rest_is_joined_to_them(policy):
    assert isinstance(policy.model, ComplexInput)
    shapes = {k: v.shape for k, v in policy.get_weights().items() if k.endswith("kernel")}
    # 4 x 5 leaves 2 x 3 after the last kernel, 3 x 3 leaves 1 x 1; 3 one-hot, 2 speeds.
    joined = 2 * 3 * 5 + 1 * 1 * 5 + 3 + 2
    expected = {"fc_out/kernel": (4, 3), "value_out/kernel": (4, 1)}
    for kind in ("", "_value"):
        expected[f"conv{kind}_eyes_0_1/kernel"] = (3, 3, 2, 3)
        expected[f"conv{kind}_eyes_0_2/kernel"] = (3, 3, 3, 5)
        expected[f"conv{kind}_eyes_1_1/kernel"] = (3, 3, 1, 3)
        expected[f"conv{kind}_eyes_1_2/kernel"] = (3, 3, 3, 5)
        expected[f"fc{kind}_1/kernel"] = (joined, 4)
    assert shapes == expected


def test_every_part_matters_to_actions_and_values(policy):
    obs = observations(5)
    _, _, expected = policy.compute_actions(obs, explore=False)
    other = observations(5, seed=1)
    changes = [
        {"goal": (obs["goal"] + 1) % 3},
        {"speed": other["speed"]},
        {"eyes": (other["eyes"][0], obs["eyes"][1])},
        {"eyes": (obs["eyes"][0], other["eyes"][1])},
    ]
    for change in changes:
        _, _, found = policy.compute_actions({**obs, **change}, explore=False)
        assert (found["action_dist_inputs"] != expected["action_dist_inputs"]).any(axis=1).all()
        assert (found["vf_preds"] != expected["vf_preds"]).all()


def test_all_layers_learn(policy):
    before = policy.get_weights()
    policy.learn_on_batch({**ppo_batch(16), "obs": observations(16)})
    after = policy.get_weights()
    assert all((before[name] != after[name]).any() for name in before)


@pytest.mark.parametrize(
    "space, config, expected",
    [
        (S.Dict(a=S.Box(0, 1, (42, 42, 1)), b=S.Discrete(2)), {}, ComplexInput),
        (S.Tuple([S.Box(0, 1, (42, 42, 1))]), {}, ComplexInput),
        (S.Dict(a=S.Box(0, 1, (42, 42, 1))), {"conv_filters": []}, FullyConnected),
        (S.Dict(a=S.Box(0, 1, (4, 4, 1))), {}, FullyConnected),
    ],
)
def test_it_is_chosen_where_a_leaf_is_an_image(space, config, expected):
    with tf.Graph().as_default():
        config = ModelConfig.from_dict({"fcnet_hiddens": [2], **config})
        assert type(model_for(space, S.Discrete(2), 2, config, seed=0)) is expected


def test_an_image_without_filters_is_named():
    space = S.Dict(a=S.Dict(eye=S.Box(0, 1, (30, 40, 3))))
    with pytest.raises(ValueError, match=r"`obs_a_eye`.*\(30, 40, 3\)"), tf.Graph().as_default():
        model_for(space, S.Discrete(2), 2, ModelConfig(), seed=0)
