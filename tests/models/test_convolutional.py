"""Convolutional networks: which images they take, what they compute, and how their weights lie."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import ppo_batch, small_policy

from tfpolicy.config import ModelConfig
from tfpolicy.models import Convolutional, FullyConnected, model_for

S = gym.spaces
SMALL = {"conv_filters": [[3, 3, 2], [5, [4, 3], 1]], "fcnet_hiddens": [4]}


def image_space(*shape, dtype=np.uint8):
    return S.Box(0, 255 if dtype == np.uint8 else 1, shape, dtype)


class Built:
    """A model in a graph and session of its own."""

    def __init__(self, space, **config):
        self.graph = tf.Graph()
        with self.graph.as_default(), tf.compat.v1.Session().as_default() as session:
            config = ModelConfig.from_dict(config)
            self.model = model_for(space, S.Discrete(2), 2, config, seed=3)
            leaf = tf.compat.v1.placeholder(space.dtype, [None, *space.shape])
            output = self.model({"obs": leaf})
            variables = tf.compat.v1.global_variables()
            session.run([v.initializer for v in variables])
            self.weights = {v.name[:-2]: session.run(v) for v in variables}
            self.run = session.make_callable([output.dist_inputs, output.vf_preds], [leaf])


@pytest.fixture(scope="module")
def small():
    return Built(image_space(8, 10, 2), **SMALL)


def convolve(image, kernel, bias, stride, padding):
    """[H, W, C] * [h, w, C, D] with ReLU, pixel by pixel."""
    size = np.array(image.shape[:2])
    window = np.array(kernel.shape[:2])
    if padding == "same":
        total = np.maximum((-(-size // stride) - 1) * stride + window - size, 0)
        before = total // 2
        image = np.pad(image, [*zip(before, total - before, strict=True), (0, 0)])
    rows, columns = (np.array(image.shape[:2]) - window) // stride + 1
    out = np.zeros((rows, columns, kernel.shape[3]))
    for i in range(rows):
        for j in range(columns):
            seen = image[i * stride : i * stride + window[0], j * stride : j * stride + window[1]]
            out[i, j] = np.tensordot(seen, kernel, 3) + bias
    return np.maximum(out, 0)


def reference(weights, image, prefix):
    first = convolve(image, weights[f"{prefix}1/kernel"], weights[f"{prefix}1/bias"], 2, "same")
    second = convolve(first, weights[f"{prefix}2/kernel"], weights[f"{prefix}2/bias"], 1, "valid")
    return second.ravel()


def test_convolutions_are_computed_as_by_hand_on_bytes_scaled_to_one(small):
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 10, 2), np.uint8)
    outputs, values = small.run(images)
    w = small.weights
    for image, output, value in zip(images, outputs, values, strict=True):
        features = reference(w, image / 255.0, "conv")
        expected = features @ w["conv_out/kernel"] + w["conv_out/bias"]
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-6)
        features = reference(w, image / 255.0, "conv_value_")
        expected = features @ w["conv_value_out/kernel"] + w["conv_value_out/bias"]
        np.testing.assert_allclose(value, expected[0], rtol=1e-4, atol=1e-6)


def test_floats_are_taken_as_they_are(small):
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 10, 2), np.uint8)
    floats = Built(image_space(8, 10, 2, dtype=np.float32), **SMALL)
    expected = small.run(images)
    found = floats.run((images / 255.0).astype(np.float32))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("side, channels", [(42, 1), (42, 3), (42, 4), (64, 3), (84, 4), (96, 3)])
def test_there_are_default_filters_for_common_sizes(side, channels):
    space = image_space(side, side, channels)
    with tf.Graph().as_default() as graph:
        model = model_for(space, S.Discrete(2), 2, ModelConfig(vf_share_layers=True), seed=0)
        shapes = {v.name[:-2]: tuple(v.shape) for v in graph.get_collection("variables")}
    assert isinstance(model, Convolutional)
    assert shapes["conv1/kernel"][2] == channels
    count = sum(name.startswith("conv") and name.endswith("kernel") for name in shapes) - 1
    assert shapes[f"conv{count}/kernel"][3] == 256


def test_names_and_shapes_are_those_of_rllib():
    with tf.Graph().as_default() as graph:
        filters = [[4, [4, 4], 2], [8, [4, 4], 2], [16, [11, 11], 1]]
        config = ModelConfig.from_dict({"conv_filters": filters})
        model_for(image_space(42, 42, 3), S.Discrete(4), 4, config, seed=0)
        found = {v.name[:-2]: tuple(v.shape) for v in graph.get_collection("variables")}
    expected = {"conv_out/kernel": (1, 1, 16, 4), "conv_value_out/kernel": (1, 1, 16, 1)}
    for prefix in ("conv", "conv_value_"):
        expected[f"{prefix}1/kernel"] = (4, 4, 3, 4)
        expected[f"{prefix}2/kernel"] = (4, 4, 4, 8)
        expected[f"{prefix}3/kernel"] = (11, 11, 8, 16)
    assert {k: v for k, v in found.items() if k.endswith("kernel")} == expected


def test_shared_features_and_layers_after_the_convolutions():
    space = image_space(8, 10, 2)
    built = Built(space, **SMALL, post_fcnet_hiddens=[6, 7], vf_share_layers=True)
    shapes = {name: value.shape for name, value in built.weights.items() if "kernel" in name}
    assert shapes == {
        "conv1/kernel": (3, 3, 2, 3),
        "conv2/kernel": (4, 3, 3, 5),
        "post_fcnet_1/kernel": (15, 6),
        "post_fcnet_2/kernel": (6, 7),
        "conv_out/kernel": (7, 2),
        "value_out/kernel": (7, 1),
    }


@pytest.mark.parametrize(
    "space, config",
    [
        (image_space(7, 7, 3), {}),
        (image_space(84, 84), {}),
        (image_space(42, 42, 3), {"conv_filters": []}),
        (S.Dict({"image": image_space(42, 42, 3)})["image"], {"custom_model": FullyConnected}),
    ],
)
def test_what_is_no_picture_is_flattened(space, config):
    with tf.Graph().as_default():
        config = ModelConfig.from_dict({"fcnet_hiddens": [2], **config})
        assert isinstance(model_for(space, S.Discrete(2), 2, config, seed=0), FullyConnected)


@pytest.mark.parametrize(
    "shape, filters, words",
    [
        ((50, 60, 3), None, ["(50, 60, 3)", "conv_filters", "42 x 42", "`conv_filters=[]`"]),
        ((8, 8, 3), [[4, 3, 2], [4, 5, 1]], ["at most 4 x 4", "(8, 8, 3)", "got 5 x 5"]),
        ((8, 8, 3), [[4, 3]], ["[out channels, kernel, stride]", "(4, 3)"]),
        ((8, 8, 3), [[4, 0, 1]], ["positive", "(4, 0, 1)"]),
        ((8, 8, 3), [[4, [3, 3, 3], 1]], ["[height, width]", "(3, 3, 3)"]),
    ],
)
def test_what_fits_no_image_is_refused(shape, filters, words):
    config = ModelConfig.from_dict({"conv_filters": filters})
    with pytest.raises(ValueError) as error, tf.Graph().as_default():
        model_for(image_space(*shape), S.Discrete(2), 2, config, seed=0)
    for word in words:
        assert word in str(error.value)


def test_a_policy_learns_from_images_and_its_file_opens_in_keras(tmp_path):
    import tf_keras

    space = image_space(8, 10, 2)
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 10, 2), np.uint8)
    with small_policy(obs_space=space, model=SMALL) as policy:
        before = policy.get_weights()
        policy.learn_on_batch({**ppo_batch(16), "obs": images})
        after = policy.get_weights()
        assert all((before[name] != after[name]).any() for name in before)
        _, _, extras = policy.compute_actions(images, explore=False)
        policy.export_model_to_h5(tmp_path / "conv.h5")
    with tf.Graph().as_default(), tf.compat.v1.Session().as_default():
        model = tf_keras.models.load_model(tmp_path / "conv.h5", compile=False)
        outputs, values = model.predict((images / 255.0).astype(np.float32), verbose=0)
    np.testing.assert_allclose(outputs, extras["action_dist_inputs"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(values[:, 0], extras["vf_preds"], rtol=1e-4, atol=1e-6)
