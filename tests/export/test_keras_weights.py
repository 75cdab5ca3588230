"""Files of weights open in Keras as models of the same outputs, and come back from there."""

import gymnasium as gym
import h5py
import keras
import numpy as np
import pytest
import tf_keras
from small_policies import Recurrent

from tfpolicy.config import PolicyConfig
from tfpolicy.export.inference import SERVING, build_inference
from tfpolicy.export.keras_weights import export_weights, import_weights

OBS = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
BOX = gym.spaces.Box(-2, 5, (2,))
LIBRARIES = pytest.mark.parametrize("library", [tf_keras, keras], ids=["tf_keras", "keras3"])
NETWORKS = {"apart": {}, "shared": {"vf_share_layers": True}, "log_std": {"free_log_std": True}}


def shapes_of(model):
    """The weights of a fully connected network, in the order of their creation."""
    hidden = [("fc_1", 4, 5), ("fc_2", 5, 3)]
    values = [] if "vf_share_layers" in model else [("fc_value_1", 4, 5), ("fc_value_2", 5, 3)]
    outputs = 2 if "free_log_std" in model else 4
    shapes = {"log_std": (2,)} if "free_log_std" in model else {}
    for name, rows, columns in [*hidden, ("fc_out", 3, outputs), *values, ("value_out", 3, 1)]:
        shapes.update({f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)})
    return shapes


def sequential(shapes):
    """Weights every one of which differs, so that no two can be swapped unseen."""
    weights, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        weights[name] = (np.arange(start, start + size, dtype=np.float32) / 99 - 0.4).reshape(shape)
        start += size
    return weights


@pytest.fixture(scope="module", params=NETWORKS)
def written(request, tmp_path_factory):
    """A file, what it was written from, and what the network gives on some observations."""
    path = tmp_path_factory.mktemp("h5") / "deep" / "weights.h5"
    model = NETWORKS[request.param]
    config = PolicyConfig.from_dict({"model": {"fcnet_hiddens": [5, 3], **model}})
    weights = sequential(shapes_of(model))
    export_weights(path, OBS, BOX, config, weights)
    with build_inference(OBS, BOX, config, weights) as graph:
        return path, config, weights, graph.function(SERVING)(observations())


def observations():
    return np.random.default_rng(0).uniform(-1, 1, (3, 4)).astype(np.float32)


def assert_imports(path, config, weights):
    shapes = {name: value.shape for name, value in weights.items()}
    found, report = import_weights(path, OBS, BOX, config, shapes)
    assert report.complete and set(report.loaded) == set(weights)
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_file_of_ours_comes_back(written):
    path, config, weights, _ = written
    assert_imports(path, config, weights)


@LIBRARIES
def test_keras_opens_the_file_as_a_model(written, library):
    path, _, _, expected = written
    outputs, values = library.models.load_model(path, compile=False).predict(
        observations(), verbose=0
    )
    np.testing.assert_allclose(outputs, expected["action_dist_inputs"], atol=1e-6)
    np.testing.assert_allclose(values[:, 0], expected["vf_preds"], atol=1e-6)


@LIBRARIES
@pytest.mark.parametrize("form", ["model.h5", "weights.h5", "numbered.weights.h5"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_files_of_keras_are_imported(written, library, form, tmp_path):  # b1, b3
    path, config, weights, _ = written
    if library is keras and form == "weights.h5":
        pytest.skip("Keras 3 writes no such file.")
    model = library.models.load_model(path, compile=False)
    save = model.save if form == "model.h5" else model.save_weights
    save(tmp_path / form)
    assert_imports(tmp_path / form, config, weights)


def test_names_in_the_file_have_no_scopes(written):  # b3
    path, _, weights, _ = written
    with h5py.File(path) as file:
        for name, value in weights.items():
            in_file = {"log_std": "log_std/beta"}.get(name, name)
            layer = in_file.partition("/")[0]
            stored = file["model_weights"][layer][f"{in_file}:0"]
            np.testing.assert_array_equal(stored, value)


def test_a_model_outside_of_keras_keeps_its_variables_in_layers_of_their_own(tmp_path):  # b12
    config = PolicyConfig.from_dict({"model": {"fcnet_hiddens": [4], "custom_model": Recurrent}})
    discrete = gym.spaces.Discrete(3)
    weights = sequential({"w": (4, 4), "u": (4, 4), "b": (4,), "out": (4, 4)})
    export_weights(tmp_path / "w.h5", OBS, discrete, config, weights)
    with h5py.File(tmp_path / "w.h5") as file:
        assert list(file.attrs["layer_names"]) == ["w", "u", "b", "out"]
        assert "model_config" not in file.attrs
    shapes = {name: value.shape for name, value in weights.items()}
    found, _ = import_weights(tmp_path / "w.h5", OBS, discrete, config, shapes)
    for name, value in weights.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_file_of_another_network_is_told_apart(written, tmp_path):  # b7
    path, config, weights, _ = written
    narrow = config.replace(model={"fcnet_hiddens": [5]})
    shapes = {name: value.shape for name, value in weights.items() if "_2" not in name}
    with pytest.raises(ValueError, match="unexpected: .*fc_2/kernel"):
        import_weights(path, OBS, BOX, narrow, shapes)
    with pytest.raises(FileNotFoundError, match="nowhere.h5"):  # j17
        import_weights(tmp_path / "nowhere.h5", OBS, BOX, config, shapes)
    (tmp_path / "text.h5").write_text("no weights")
    with pytest.raises(ValueError, match="must be an h5 file"):
        import_weights(tmp_path / "text.h5", OBS, BOX, config, shapes)
