"""Frame stacking: the last observations are seen as one, through a view."""

import json

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import small_policy

from tfpolicy import load_policy
from tfpolicy.config import ModelConfig
from tfpolicy.models import FrameStack, FullyConnected
from tfpolicy.models.encoders import convolves
from tfpolicy.models.frame_stack import stacked_space
from tfpolicy.view_requirement import ViewRequirement

S = gym.spaces
OBS = S.Box(-1, 1, (3,))
IMAGE = S.Box(0, 255, (12, 12, 2), np.uint8)
NESTED = S.Dict(
    image=IMAGE,
    gray=S.Box(0, 255, (12, 12), np.uint8),
    matrix=S.Box(0, 1, (2, 3)),
    rest=S.Tuple([S.Discrete(3, start=5), S.MultiDiscrete([2, 4]), S.MultiBinary(2)]),
    speed=S.Box(-9, 9, ()),
)
FILTERS = {"conv_filters": [[4, 4, 2], [8, 6, 1]]}
THREE = S.Discrete(3)


def windows(space, rows, num_frames, seed=0):
    """Drawn windows [B, K, ...] for a space that is no nested one."""
    space.seed(seed)
    steps = [space.sample() for _ in range(rows * num_frames)]
    return np.stack(steps).reshape(rows, num_frames, *space.shape)


# What is stacked.


def test_stacked_spaces_by_hand():
    stacked = stacked_space(NESTED, 3)
    assert stacked == S.Dict(
        image=S.Box(0, 255, (12, 12, 6), np.uint8),
        gray=S.Box(0, 255, (12, 12, 3), np.uint8),
        matrix=S.Box(0, 1, (2, 9)),
        rest=S.Tuple(
            [
                S.MultiDiscrete([3, 3, 3], start=[5, 5, 5]),
                S.MultiDiscrete([2, 4, 2, 4, 2, 4]),
                S.MultiBinary(6),
            ]
        ),
        speed=S.Box(-9, 9, (3,)),
    )
    uneven = S.Box(np.float32([0, -1]), np.float32([1, np.inf]))
    assert stacked_space(uneven, 2) == S.Box(
        np.float32([0, -1, 0, -1]), np.float32([1, np.inf, 1, np.inf])
    )
    for num_frames in (0, 1):
        assert stacked_space(NESTED, num_frames) is NESTED


@pytest.mark.parametrize(
    ("space", "frames_are_axis"),
    [
        (S.Box(-1, 1, ()), True),
        (S.Discrete(5), True),
        (OBS, False),
        (S.Box(0, 255, (2, 3), np.uint8), True),
        (S.Box(-1, 1, (2, 3)), False),
        (IMAGE, False),
        (S.MultiDiscrete([[2, 3], [4, 5]]), False),
        (S.MultiBinary((2, 3, 2, 2)), False),
        (S.Box(0, 1, (0,)), False),
    ],
)
def test_frames_lie_as_their_space_says_oldest_first(space, frames_are_axis):
    window = windows(space, 4, 3)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inner = FullyConnected(stacked_space(OBS, 3), THREE, 3, ModelConfig(), 0)
        found = session.run(FrameStack(inner, space, 3).inner_observation(tf.constant(window)))
    frames = [window[:, k] for k in range(3)]
    expected = np.stack(frames, -1) if frames_are_axis else np.concatenate(frames, -1)
    np.testing.assert_array_equal(found, expected)
    stacked = stacked_space(space, 3)
    assert found.shape[1:] == stacked.shape and found.dtype == stacked.dtype
    assert all(row in stacked for row in found)


def test_a_stack_computes_what_a_network_on_stacked_observations_does():
    for space, model in ((OBS, {}), (IMAGE, FILTERS)):
        wide = stacked_space(space, 4)
        model = {"fcnet_hiddens": [8], **model}
        window = windows(space, 6, 4)
        frames = np.concatenate([window[:, k] for k in range(4)], axis=-1)
        with (
            small_policy("pg", space, model={**model, "num_framestacks": 4}) as stacked,
            small_policy("pg", wide, model=model) as plain,
        ):
            assert isinstance(stacked.model, FrameStack)
            plain.set_weights(stacked.get_weights())
            # What the present observation is besides makes no difference.
            other = windows(space, 6, 1, seed=9)[:, 0]
            found = stacked.compute_actions(other, prev_n_obs=window, explore=False)
            expected = plain.compute_actions(frames, explore=False)
        np.testing.assert_array_equal(found[0], expected[0])
        for name in ("action_dist_inputs", "vf_preds"):
            np.testing.assert_allclose(found[2][name], expected[2][name], atol=1e-6)


@pytest.mark.parametrize("num_frames", [0, 1])
def test_one_frame_is_no_stack(num_frames):
    with small_policy("pg", OBS, model={"num_framestacks": num_frames}) as policy:
        assert not isinstance(policy.model, FrameStack)
        assert policy.acting_columns == ("obs",)


def test_gray_images_are_seen_by_convolutions_once_they_are_stacked():
    gray = S.Box(0, 255, (12, 12), np.uint8)
    model = {"num_framestacks": 4, **FILTERS}
    with small_policy("pg", gray, model=model) as policy:
        assert policy.get_weights()["conv1/kernel"].shape == (4, 4, 4, 4)
        assert convolves(gray, policy.config.model)
        assert not convolves(gray, policy.config.model.replace(num_framestacks=1))


def test_all_kinds_of_observations_are_stacked_beside_each_other():
    with small_policy("pg", NESTED, model={"num_framestacks": 3, **FILTERS}) as policy:
        shapes = {name: weight.shape for name, weight in policy.get_weights().items()}
    assert shapes["conv_image_1/kernel"] == (4, 4, 6, 4)
    assert shapes["conv_gray_1/kernel"] == (4, 4, 3, 4)
    # Of three steps: 6 numbers, one of 3, 2 and 4 choices, 2 bits, 1 speed; and 8 of each image.
    assert shapes["fc_1/kernel"][0] == 3 * (6 + 3 + 2 + 4 + 2 + 1) + 2 * 8


# Acting.


def test_the_window_has_to_be_given_and_is_checked():
    with small_policy("pg", OBS, model={"num_framestacks": 4}) as policy:
        assert set(policy.acting_views) == {"obs", "prev_n_obs"}
        assert policy.acting_views["prev_n_obs"].shift == "-3:0"
        obs = windows(OBS, 2, 1)[:, 0]
        with pytest.raises(KeyError, match="Acting needs the column 'prev_n_obs', got: obs. What"):
            policy.compute_actions(obs)
        with pytest.raises(KeyError, match="Acting needs the column 'prev_n_obs'"):
            policy.compute_single_action(obs[0])
        with pytest.raises(
            ValueError, match=r"`prev_n_obs`: expected shape \(B, 4, 3\), got \(2, 3\)"
        ):
            policy.compute_actions(obs, prev_n_obs=obs)
        window = windows(OBS, 2, 4)
        action, _, _ = policy.compute_single_action(obs[0], prev_n_obs=window[0], explore=False)
        assert action == policy.compute_actions(obs, prev_n_obs=window, explore=False)[0][0]


def test_a_network_with_windows_of_its_own_is_refused():
    class LooksBack(FullyConnected):
        def view_requirements(self):
            return {"before": ViewRequirement("obs", OBS, -1)}

    model = {"custom_model": LooksBack, "num_framestacks": 2}
    with pytest.raises(ValueError, match="`num_framestacks` is for .* but LooksBack has before"):
        small_policy("pg", OBS, model=model)


# Learning.


def stacked_batch(policy, rows):
    """What PPO learns from, without observations."""
    width = len(policy.acting_views["prev_n_obs"].offsets)
    window = windows(OBS, rows, width, seed=rows)
    actions, _, extras = policy.compute_actions(window[:, -1], prev_n_obs=window)
    rng = np.random.default_rng(rows)
    targets = {
        name: rng.normal(0, 1, rows).astype(np.float32) for name in ("advantages", "value_targets")
    }
    return {"prev_n_obs": window, "actions": actions, **extras, **targets}


def test_only_the_window_is_learned_from_and_two_towers_are_one():
    weights = []
    for num_gpus in (1, 2):
        # Compiled, rounding makes 2e-6 where Adam divides a gradient that is almost 0 by itself.
        config = {"num_gpus": num_gpus, "fake_gpus": True, "jit_compile": False}
        config |= {"sgd_minibatch_size": 8, "lr": 0.01}
        model = {"fcnet_hiddens": [8], "num_framestacks": 4}
        with small_policy("ppo", OBS, model=model, **config) as policy:
            batch = stacked_batch(policy, 32)
            assert "obs" not in batch
            policy.load_batch_into_buffer(batch)
            policy.learn_on_buffer(num_sgd_iter=2, shuffle=False)
            policy.learn_on_batch(batch)
            weights.append(policy.get_weights())
    for name, weight in weights[0].items():
        np.testing.assert_allclose(weights[1][name], weight, atol=1e-6, err_msg=name)


def test_the_next_observation_is_stacked_onto_the_window_for_losses_of_the_network():
    class Predicting(FullyConnected):
        def metrics(self, columns):
            return {"newest": columns["new_obs"][:, -1], "oldest": columns["new_obs"][:, 0]}

    model = {"custom_model": Predicting, "num_framestacks": 2}
    with small_policy("ppo", OBS, model=model) as policy:
        batch = {**stacked_batch(policy, 2), "new_obs": np.float32([[7, 8, 9], [1, 2, 3]])}
        stats = policy.learn_on_batch(batch)["learner_stats"]
        assert stats["newest"] == pytest.approx(6.0)
        assert stats["oldest"] == pytest.approx(batch["prev_n_obs"][:, 1, 0].mean(), rel=1e-5)


# Exports.


def test_an_export_takes_the_window_alone_and_says_so(tmp_path):
    model = {"num_framestacks": 4, **FILTERS}
    with small_policy("pg", IMAGE, model=model) as policy:
        version = policy.export_model(tmp_path)
        window = windows(IMAGE, 5, 4)
        expected, _, extras = policy.compute_actions(
            window[:, -1], prev_n_obs=window, explore=False
        )
    act = tf.saved_model.load(str(version)).signatures["serving_default"]
    arguments = act.structured_input_signature[1]
    assert {name: spec.shape.as_list() for name, spec in arguments.items()} == {
        "prev_n_obs": [None, 4, 12, 12, 2]
    }
    assert arguments["prev_n_obs"].dtype == tf.uint8
    outputs = act(prev_n_obs=tf.constant(window))
    np.testing.assert_array_equal(outputs["actions"], expected)
    np.testing.assert_allclose(
        outputs["action_dist_inputs"], extras["action_dist_inputs"], atol=1e-6
    )
    metadata = json.loads((version / "assets.extra" / "tfpolicy.json").read_text())
    assert metadata["views"].keys() == {"prev_n_obs"}
    view = metadata["views"]["prev_n_obs"]
    assert (view["data_col"], view["shift"], view["as_mask"]) == ("obs", "-3:0", False)
    with load_policy(version) as served:
        found, _, _ = served.compute_actions(window[:, -1], prev_n_obs=window)
        np.testing.assert_array_equal(found, expected)
        with pytest.raises(KeyError, match="Acting needs the column 'prev_n_obs'"):
            served.compute_single_action(window[0, -1])


def test_weights_go_to_h5_and_back_and_those_of_a_plain_network_fit(tmp_path):
    model = {"fcnet_hiddens": [8], "num_framestacks": 4}
    path = tmp_path / "weights.h5"
    with (
        small_policy("pg", OBS, model=model) as policy,
        small_policy("pg", stacked_space(OBS, 4), model={"fcnet_hiddens": [8]}, seed=5) as plain,
    ):
        plain.export_model_to_h5(path)
        policy.import_model_from_h5(path)
        for name, weight in policy.get_weights().items():
            np.testing.assert_array_equal(weight, plain.get_weights()[name])
