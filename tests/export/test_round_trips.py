"""Weights of every built-in model go to both versions of Keras and come back, each in its place."""

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tfpolicy.config import PolicyConfig
from tfpolicy.export.h5 import read_h5
from tfpolicy.export.inference import SERVING, build_inference
from tfpolicy.export.keras_weights import export_weights, import_weights
from tfpolicy.export.matching import match_weights
from tfpolicy.graph.network import build_network

S = gym.spaces
LIBRARIES = {"tf_keras": tf_keras, "keras3": keras}
FORMS = ("model.h5", "weights.h5", "numbered.weights.h5")
VECTOR = S.Box(-1.0, 1.0, (4,))
IMAGE = S.Box(0, 255, (8, 8, 1), np.uint8)
PARTS = S.Dict(image=IMAGE, near=IMAGE, rest=VECTOR)
DISCRETE, BOX = S.Discrete(3), S.Box(-1.0, 1.0, (2,))
SMALL = {"fcnet_hiddens": [5, 3], "lstm_cell_size": 3, "conv_filters": [[2, 4, 2], [3, 4, 1]]}
ATTENTION = {
    "use_attention": True,
    "attention_dim": 4,
    "attention_num_heads": 2,
    "attention_head_dim": 3,
    "attention_position_wise_mlp_dim": 5,
    "attention_num_transformer_units": 2,
}
SHARED = {"vf_share_layers": True}
MODELS = {
    "fully connected": (VECTOR, DISCRETE, {}),
    "fully connected, shared": (VECTOR, DISCRETE, SHARED),
    "fully connected, log_std": (VECTOR, BOX, {"free_log_std": True}),
    "convolutional": (IMAGE, DISCRETE, {}),
    "convolutional, shared": (IMAGE, BOX, {**SHARED, "free_log_std": True}),
    "convolutional, layers behind": (IMAGE, DISCRETE, {"post_fcnet_hiddens": [4]}),
    "complex": (PARTS, DISCRETE, {}),
    "complex, shared": (PARTS, BOX, SHARED),
    "lstm": (VECTOR, DISCRETE, {"use_lstm": True, "lstm_use_prev_action": True}),
    "lstm, shared": (IMAGE, BOX, {"use_lstm": True, "free_log_std": True, **SHARED}),
    "gru": (PARTS, DISCRETE, {"use_gru": True}),
    "gru, shared": (VECTOR, DISCRETE, {"use_gru": True, "lstm_use_prev_reward": True, **SHARED}),
    "attention": (VECTOR, DISCRETE, ATTENTION),
    "attention, shared": (IMAGE, BOX, {**ATTENTION, **SHARED, "free_log_std": True}),
}


class Exported:
    """The weights of a model, every number of which differs, and the file with them."""

    def __init__(self, name, path):
        obs_space, action_space, model = MODELS[name]
        self.key = obs_space, action_space, PolicyConfig.from_dict({"model": {**SMALL, **model}})
        self.weights = sequential(network_shapes(*self.key))
        self.path = path / "exported.h5"
        export_weights(self.path, *self.key, self.weights)
        self.layers = read_h5(self.path)

    def assert_in(self, path):
        """Another file holds the same, each weight in its place."""
        expected = {name: value for _, weights in self.layers for name, value in weights}
        shapes = {name.removesuffix(":0"): value.shape for name, value in expected.items()}
        match = match_weights(shapes, read_h5(path))
        for name, value in expected.items():
            found = match.weights[name.removesuffix(":0")]
            np.testing.assert_array_equal(found, value, err_msg=name)


def network_shapes(obs_space, action_space, config):
    with tf.Graph().as_default() as graph:
        build_network(obs_space, action_space, config, seed=0)
        variables = graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        return {variable.name[:-2]: tuple(variable.shape) for variable in variables}


def sequential(shapes):
    """Weights every one of which differs, so that no two can be swapped unseen."""
    weights, start = {}, 1
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        weights[name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
        start += size
    return weights


@pytest.fixture(scope="module", params=MODELS)
def exported(request, tmp_path_factory):
    return Exported(request.param, tmp_path_factory.mktemp("models"))


def keras_model(library, exported):
    """The model in a file; attention is none of Keras's own layers, so one with such weights."""
    if exported.key[2].model.use_attention:
        model = model_of_layers(library, exported.layers)
        model.load_weights(exported.path)
        return model
    return library.models.load_model(exported.path, compile=False)


def model_of_layers(library, layers):
    """A model of layers that only hold weights, named and ordered as in a file."""

    class Holder(library.layers.Layer):
        def __init__(self, name, weights):
            super().__init__(name=name)
            self._shapes = {full.split("/")[-1].removesuffix(":0"): a.shape for full, a in weights}

        def build(self, _):
            for name, shape in self._shapes.items():
                self.add_weight(name=name, shape=shape)

        def call(self, x):
            return x

        def get_config(self):
            return {"name": self.name}

    x = inputs = library.Input((1,))
    for name, weights in layers:
        x = Holder(name, weights)(x)
    return library.Model(inputs, x)


def saved(model, path):
    (model.save if path.name == "model.h5" else model.save_weights)(path)
    return path


def test_a_file_of_ours_comes_back(exported):
    shapes = {name: value.shape for name, value in exported.weights.items()}
    found, report = import_weights(exported.path, *exported.key, shapes)
    assert report.complete and found.keys() == exported.weights.keys()
    for name, value in exported.weights.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_weights_come_back_from_keras_in_every_form(exported, library, tmp_path):  # b1, j17
    model = keras_model(LIBRARIES[library], exported)
    numbers = np.sort(np.concatenate([np.ravel(w) for w in model.get_weights()]))
    np.testing.assert_array_equal(numbers, np.arange(1, len(numbers) + 1))
    for form in FORMS:
        if library == "keras3" and form == "weights.h5":
            continue  # Keras 3 writes no such file.
        exported.assert_in(saved(model, tmp_path / form))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("exported", ["attention", "attention, shared"], indirect=True)
def test_without_an_architecture_layers_are_loaded_by_their_names(exported, library):
    model = model_of_layers(LIBRARIES[library], exported.layers[::-1])
    model.load_weights(exported.path, by_name=True)
    for layer, weights in exported.layers:
        found = model.get_layer(layer).get_weights()
        for (_, expected), value in zip(weights, found, strict=True):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("exported", ["complex", "complex, shared"], indirect=True)
def test_a_network_of_several_parts_acts_alike_in_keras(exported, library, tmp_path):
    weights = {name: np.sin(value) / 3 for name, value in exported.weights.items()}
    export_weights(tmp_path / "model.h5", *exported.key, weights)
    model = LIBRARIES[library].models.load_model(tmp_path / "model.h5", compile=False)
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (5, 8, 8, 1), np.uint8) for _ in range(2)]
    rest = rng.uniform(-1, 1, (5, 4)).astype(np.float32)
    outputs, values = model.predict([*(i / np.float32(255) for i in images), rest], verbose=0)
    with build_inference(*exported.key, weights) as graph:
        expected = graph.function(SERVING)(*images, rest)
    np.testing.assert_allclose(outputs, expected["action_dist_inputs"], atol=1e-5)
    np.testing.assert_allclose(values[:, 0], expected["vf_preds"], atol=1e-5)
