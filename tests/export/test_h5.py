import h5py
import keras
import numpy as np
import pytest
import tf_keras

from tfpolicy.export.h5 import read_h5, write_h5
from tfpolicy.export.matching import match_weights

LIBRARIES = {"tf_keras": tf_keras, "keras3": keras}
SHAPES = {  # In the order of the model: by depth.
    "fc_1/kernel": (4, 3),
    "fc_1/bias": (3,),
    "fc_value_1/kernel": (4, 3),
    "fc_value_1/bias": (3,),
    "fc_out/kernel": (3, 2),
    "fc_out/bias": (2,),
    "value_out/kernel": (3, 1),
    "value_out/bias": (1,),
}


def sequential_arrays(shapes):
    """Arrays whose every number differs, so that no two can be swapped unseen."""
    arrays, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        arrays[name] = (np.arange(start, start + size) / 50).astype(np.float32).reshape(shape)
        start += size
    return arrays


ARRAYS = sequential_arrays(SHAPES)


def layers_of(arrays):
    layers = {}
    for name, array in arrays.items():
        layer, weight = name.rsplit("/", 1)
        layers.setdefault(layer, []).append((weight, array))
    return list(layers.items())


def two_headed(library, names=("fc_1", "fc_value_1", "fc_out", "value_out")):
    dense = library.layers.Dense
    obs = library.Input((4,), name="obs")
    policy = dense(3, activation="tanh", name=names[0])(obs)
    value = dense(3, activation="tanh", name=names[1])(obs)
    outputs = [dense(2, name=names[2])(policy), dense(1, name=names[3])(value)]
    return library.Model(obs, outputs)


def forward(arrays, obs):
    a = arrays
    policy = np.tanh(obs @ a["fc_1/kernel"] + a["fc_1/bias"])
    value = np.tanh(obs @ a["fc_value_1/kernel"] + a["fc_value_1/bias"])
    return (
        policy @ a["fc_out/kernel"] + a["fc_out/bias"],
        value @ a["value_out/kernel"] + a["value_out/bias"],
    )


def with_optimizer(model):
    model.compile("adam", ["mse", "mse"])
    model.train_on_batch(np.ones((2, 4)), [np.ones((2, 2)), np.ones((2, 1))])
    return model


def assert_acts_alike(model, arrays=ARRAYS):
    obs = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
    for got, expected in zip(model(obs), forward(arrays, obs), strict=True):
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=1e-6)


def assert_imports(path, shapes, by, arrays=None):
    match = match_weights(shapes, read_h5(path))
    arrays = sequential_arrays(shapes) if arrays is None else arrays
    assert match.by == by and list(match.weights) == list(shapes)
    for name, array in arrays.items():
        assert match.weights[name].dtype == np.float32
        np.testing.assert_array_equal(match.weights[name], array)


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "made" / "x.h5"
    write_h5(path, layers_of(ARRAYS))
    layers = read_h5(path)
    assert [layer for layer, _ in layers] == ["fc_1", "fc_value_1", "fc_out", "value_out"]
    assert [name for name, _ in layers[0][1]] == ["fc_1/kernel:0", "fc_1/bias:0"]
    write_h5(tmp_path / "again.h5", layers)
    assert (tmp_path / "again.h5").read_bytes() == path.read_bytes()
    assert_imports(path, SHAPES, "name")


def test_the_legacy_layout_has_its_attributes(tmp_path):
    write_h5(tmp_path / "x.h5", layers_of(ARRAYS))
    with h5py.File(tmp_path / "x.h5") as file:
        assert list(file.attrs["layer_names"]) == ["fc_1", "fc_value_1", "fc_out", "value_out"]
        assert list(file["fc_1"].attrs["weight_names"]) == ["fc_1/kernel:0", "fc_1/bias:0"]
        assert file["fc_1"]["fc_1/kernel:0"].shape == (4, 3)
        assert file.attrs["backend"] == "tensorflow" and file.attrs["keras_version"] == "2.15.0"


def test_dtypes_ranks_and_layers_without_weights_survive(tmp_path):
    arrays = [np.float64(1.5), np.zeros((0, 3), np.float16), np.arange(3), np.ones((2, 2), bool)]
    weights = [(f"a/w{i}", array) for i, array in enumerate(arrays)]
    write_h5(tmp_path / "x.h5", [("obs", []), ("a", weights), ("a/b", [("w", np.ones(2))])])
    (name, found), (nested, _) = read_h5(tmp_path / "x.h5")
    assert (name, nested) == ("a", "a/b")
    for (_, got), array in zip(found, arrays, strict=True):
        assert got.dtype == array.dtype and got.shape == array.shape
        np.testing.assert_array_equal(got, array)


def test_both_libraries_open_a_written_model(tmp_path, library):
    path = tmp_path / "x.h5"
    write_h5(path, layers_of(ARRAYS), two_headed(tf_keras).to_json())
    assert_acts_alike(library.models.load_model(path, compile=False))


@pytest.mark.parametrize("with_architecture", [False, True])
def test_both_libraries_load_written_weights(tmp_path, library, with_architecture):
    path = tmp_path / "x.h5"
    architecture = two_headed(tf_keras).to_json() if with_architecture else None
    write_h5(path, layers_of(ARRAYS), architecture)
    model = two_headed(library)
    model.load_weights(str(path))
    assert_acts_alike(model)


@pytest.mark.parametrize("optimizer", [False, True])
@pytest.mark.parametrize(
    ("library", "form"),
    [
        (tf_keras, "model.h5"),
        (tf_keras, "legacy"),
        (tf_keras, "x.weights.h5"),
        (keras, "model.h5"),
        (keras, "x.weights.h5"),
    ],
)
def test_files_of_both_libraries_import(tmp_path, library, form, optimizer):  # j17
    model = two_headed(library)
    model = with_optimizer(model) if optimizer else model
    model.set_weights(list(ARRAYS.values()))
    path = tmp_path / ("x.h5" if form == "legacy" else form)
    (model.save if form == "model.h5" else model.save_weights)(path)
    nameless = form == "x.weights.h5" and library is tf_keras
    assert_imports(path, SHAPES, "order" if nameless else "name")


@pytest.mark.parametrize("form", ["x.h5", "x.weights.h5"])
def test_files_with_names_of_their_own_import_by_order(tmp_path, library, form):  # b10
    model = two_headed(library, names=(None,) * 4)
    model.set_weights(list(ARRAYS.values()))
    (model.save if form == "x.h5" else model.save_weights)(tmp_path / form)
    assert_imports(tmp_path / form, SHAPES, "order")


@pytest.mark.parametrize("form", ["x.h5", "x.weights.h5"])
def test_a_model_within_a_model_imports(tmp_path, library, form):
    inner = two_headed(library)
    obs = library.Input((4,))
    model = library.Model(obs, inner(obs))
    model.set_weights(list(ARRAYS.values()))
    (model.save if form == "x.h5" else model.save_weights)(tmp_path / form)
    nameless = form == "x.weights.h5" and library is tf_keras
    assert_imports(tmp_path / form, SHAPES, "order" if nameless else "name")


MIXED_SHAPES = {
    "conv/kernel": (2, 2, 1, 3),
    "conv/bias": (3,),
    "fc_1/kernel": (12, 4),
    "fc_1/bias": (4,),
    "norm/gamma": (4,),
    "norm/beta": (4,),
    "norm/moving_mean": (4,),
    "norm/moving_variance": (4,),
    "lstm/lstm_cell/kernel": (4, 8),
    "lstm/lstm_cell/recurrent_kernel": (2, 8),
    "lstm/lstm_cell/bias": (8,),
    "logits/kernel": (2, 2),
    "logits/bias": (2,),
}


def mixed_model(library):
    layers = library.layers
    return library.Sequential(
        [
            layers.Input((4, 4, 1)),
            layers.Conv2D(3, 2, 2, name="conv"),
            layers.Flatten(),
            layers.Dense(4, name="fc_1"),
            layers.Dropout(0.5),
            layers.BatchNormalization(name="norm"),
            layers.Reshape((1, 4)),
            layers.LSTM(2, name="lstm"),
            layers.Dense(2, name="logits"),
        ]
    )


@pytest.mark.parametrize("form", ["x.h5", "x.weights.h5"])
def test_layers_of_many_classes_import(tmp_path, library, form):
    model = mixed_model(library)
    arrays = sequential_arrays(MIXED_SHAPES)
    model.set_weights(list(arrays.values()))
    (model.save if form == "x.h5" else model.save_weights)(tmp_path / form)
    nameless = form == "x.weights.h5" and library is tf_keras
    assert_imports(tmp_path / form, MIXED_SHAPES, "order" if nameless else "name")


def test_more_than_ten_layers_of_a_class_keep_their_order(tmp_path, library):
    model = library.Sequential([library.layers.Input((2,))])
    for _ in range(12):
        model.add(library.layers.Dense(2))
    shapes = {f"fc_{i}/{w}": s for i in range(12) for w, s in (("kernel", (2, 2)), ("bias", (2,)))}
    model.set_weights(list(sequential_arrays(shapes).values()))
    model.save_weights(tmp_path / "x.weights.h5")
    assert_imports(tmp_path / "x.weights.h5", shapes, "order")


def test_a_subclassed_model_with_a_weight_of_its_own_imports(tmp_path, library):
    class Model(library.Model):
        def __init__(self):
            super().__init__()
            self.fc_out = library.layers.Dense(2, name="fc_out")
            self.log_std = self.add_weight(name="log_std", shape=(2,))

        def call(self, obs):
            return self.fc_out(obs) + self.log_std

    model = Model()
    model(np.ones((1, 3), np.float32))
    arrays = sequential_arrays({"log_std": (2,), "fc_out/kernel": (3, 2), "fc_out/bias": (2,)})
    model.log_std.assign(arrays["log_std"])
    model.fc_out.set_weights([arrays["fc_out/kernel"], arrays["fc_out/bias"]])
    forms = ["x.weights.h5", "x.h5"] if library is tf_keras else ["x.weights.h5"]
    for form in forms:
        model.save_weights(tmp_path / form)
        match = match_weights({n: a.shape for n, a in arrays.items()}, read_h5(tmp_path / form))
        np.testing.assert_equal(match.weights, arrays)


def test_scoped_files_of_another_policy_import(tmp_path):  # b3
    scoped = [
        (layer, [(f"default_policy/{layer}/{name}:0", array) for name, array in weights])
        for layer, weights in layers_of(ARRAYS)
    ]
    write_h5(tmp_path / "x.h5", scoped)
    assert_imports(tmp_path / "x.h5", SHAPES, "name")


def test_long_lists_of_names_that_keras_splits_are_joined(tmp_path):
    path = tmp_path / "x.h5"
    write_h5(path, layers_of(ARRAYS))
    with h5py.File(path, "r+") as file:
        names = list(file.attrs["layer_names"])
        del file.attrs["layer_names"]
        file.attrs["layer_names0"], file.attrs["layer_names1"] = names[:3], names[3:]
    assert_imports(path, SHAPES, "name")


def test_a_missing_file_is_named(tmp_path):  # j17
    with pytest.raises(FileNotFoundError, match="nowhere.h5"):
        read_h5(tmp_path / "nowhere.h5")


@pytest.mark.parametrize("content", [b"", b"not h5", None])
def test_what_is_no_h5_file_is_named(tmp_path, content):
    path = tmp_path / "x.h5"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match="x.h5` must be an h5 file"):
        read_h5(path)


def test_a_file_without_weights_is_named(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["data"] = np.arange(3.0)
    with pytest.raises(ValueError, match="x.h5` must hold weights of a Keras model"):
        read_h5(tmp_path / "x.h5")


def test_a_truncated_file_is_named_wherever_it_ends(tmp_path):
    path = tmp_path / "x.h5"
    write_h5(path, layers_of(ARRAYS))
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="x.h5`"):
            read_h5(path)


@pytest.mark.parametrize("name", ["fc_out", "fc_out/fc_out/bias:0"])
@pytest.mark.parametrize("instead", [None, "group", "type"])
def test_a_file_that_lists_what_is_not_there_is_named(tmp_path, name, instead):
    write_h5(tmp_path / "x.h5", layers_of(ARRAYS))
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        del file[name]
        if instead == "group":
            file.create_group(name).attrs["weight_names"] = ["gone:0"]
        if instead == "type":
            file[name] = np.dtype("f4")
            file[name].attrs["weight_names"] = ["gone:0"]
    with pytest.raises(ValueError, match="x.h5` is damaged"):
        read_h5(tmp_path / "x.h5")


@pytest.mark.parametrize("level", ["dataset", "layer"])
def test_weights_that_lie_in_another_file_are_refused(tmp_path, level):
    write_h5(tmp_path / "other.h5", layers_of(ARRAYS))
    write_h5(tmp_path / "x.h5", layers_of(ARRAYS))
    link = {"dataset": "fc_1/fc_1/bias:0", "layer": "fc_1"}[level]
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        del file[link]
        file[link] = h5py.ExternalLink(tmp_path / "other.h5", link)
    with pytest.raises(ValueError, match="lies in another file"):
        read_h5(tmp_path / "x.h5")


@pytest.mark.parametrize(
    ("layers", "architecture", "message"),
    [
        ([], None, "at least one weight"),
        ([("a", [])], None, "at least one weight"),
        ([("a", [("w", np.ones(1))])] * 2, None, r"Each layer must .*\['a'\]"),
        ([("a", [("a/w", np.ones(1)), ("w:0", np.ones(1))])], None, r"Each weight .*'a/w:0'"),
        ([("", [("w", np.ones(1))])], None, "Each layer must have a name"),
        ([("a", [("w", np.array(["text"]))])], None, "`a/w:0` must be an array of numbers"),
        ([("a", [("w", np.ones(1))])], "{", "`architecture` must be the JSON of a model"),
        ([("a", [("w", np.ones(1))])], "[]", "`class_name` and `config`"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    tmp_path, layers, architecture, message
):
    with pytest.raises(ValueError, match=message):
        write_h5(tmp_path / "x.h5", layers, architecture)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x.txt", "x", "x.keras"])
def test_a_name_by_which_keras_would_not_know_the_file_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=rf"{name}` must end in \.h5 or \.hdf5"):
        write_h5(tmp_path / name, layers_of(ARRAYS))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file_or_the_new(tmp_path, failing_disk):
    path = tmp_path / "x.h5"
    for failure in failing_disk.each_failure():
        write_h5(path, [("old", [("w", np.zeros(3))])])
        try:
            with failure:
                write_h5(path, [("new", [("w", np.ones(3))])])
        except OSError:
            pass
        assert read_h5(path)[0][0] in ("old", "new")
        assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(tmp_path, file_size_limit):
    path = tmp_path / "x.h5"
    write_h5(path, layers_of(ARRAYS))
    with pytest.raises(OSError), file_size_limit(4000):
        write_h5(path, [("new", [("w", np.ones(5000))])])
    assert list(tmp_path.iterdir()) == [path]
    assert_imports(path, SHAPES, "name")
