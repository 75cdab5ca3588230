import numpy as np
import pytest

from tfpolicy.export.matching import match_weights

EXPECTED = {
    "fc_1/kernel": (4, 3),
    "fc_1/bias": (3,),
    "fc_value_1/kernel": (4, 3),
    "fc_value_1/bias": (3,),
    "fc_out/kernel": (3, 2),
    "fc_out/bias": (2,),
    "value_out/kernel": (3, 1),
    "value_out/bias": (1,),
}


def arrays_of(shapes):
    """Arrays whose every number differs, so that no two can be swapped unseen."""
    arrays, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        arrays[name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
        start += size
    return arrays


ARRAYS = arrays_of(EXPECTED)


def file_of(arrays):
    """What `read_h5` gives for a file that holds these weights under these names."""
    layers = {}
    for name, array in arrays.items():
        layers.setdefault(name.rpartition("/")[0], []).append((name, array))
    return list(layers.items())


def renamed(rename):
    return file_of({rename(name): array for name, array in ARRAYS.items()})


def assert_all_matched(match, by, arrays=ARRAYS):
    assert match.by == by and match.complete
    assert list(match.weights) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(match.weights[name], array)


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name,
        lambda name: f"{name}:0",
        lambda name: f"default_policy/{name}:0",  # b3
        lambda name: f"outer/default_policy_3/{name}:0",
        lambda name: f"sequential_{name[:4]}/{name}",
    ],
)
def test_names_match_whatever_scope_they_carry(rename):
    assert_all_matched(match_weights(EXPECTED, renamed(rename)), "name")


def test_a_scope_that_all_expected_names_share_does_not_count_either():
    expected = {f"other_policy/{name}": shape for name, shape in EXPECTED.items()}
    arrays = {f"other_policy/{name}": array for name, array in ARRAYS.items()}
    match = match_weights(expected, renamed(lambda name: f"default_policy/{name}:0"))
    assert_all_matched(match, "name", arrays)


def test_names_count_in_any_order():
    found = file_of(dict(reversed(ARRAYS.items())))
    assert_all_matched(match_weights(EXPECTED, found), "name")


def test_swapped_names_of_one_shape_are_taken_at_their_word():  # j14
    swapped = {"fc_1": "fc_value_1", "fc_value_1": "fc_1"}
    found = renamed(lambda name: "/".join(swapped.get(part, part) for part in name.split("/")))
    match = match_weights(EXPECTED, found)
    np.testing.assert_array_equal(match.weights["fc_1/kernel"], ARRAYS["fc_value_1/kernel"])
    np.testing.assert_array_equal(match.weights["fc_value_1/bias"], ARRAYS["fc_1/bias"])


def test_the_longest_known_name_wins():
    expected = {"fc/kernel": (2,), "value/fc/kernel": (2,)}
    arrays = arrays_of(expected)
    found = file_of({f"scope/{name}": array for name, array in arrays.items()})
    assert_all_matched(match_weights(expected, found), "name", arrays)


def test_a_weight_outside_of_any_layer_is_matched():
    expected = {"fc_out/kernel": (3, 2), "log_std": (2,)}
    arrays = arrays_of(expected)
    found = [
        ("fc_out", [("fc_out/kernel:0", arrays["fc_out/kernel"])]),
        ("top_level_model_weights", [("log_std:0", arrays["log_std"])]),
    ]
    assert_all_matched(match_weights(expected, found), "name", arrays)


def test_a_bare_weight_name_belongs_to_its_layer():
    found = [
        (layer, [(name.rpartition("/")[2], array) for name, array in weights])
        for layer, weights in file_of(ARRAYS)
    ]
    assert_all_matched(match_weights(EXPECTED, found), "name")


def test_foreign_names_match_by_order():  # b10
    numbers = {layer: i for i, (layer, _) in enumerate(file_of(ARRAYS), start=191)}
    found = renamed(lambda name: f"dense_{numbers[name.split('/')[0]]}/{name.split('/')[1]}:0")
    assert_all_matched(match_weights(EXPECTED, found), "order")


@pytest.mark.parametrize(
    ("changes", "listed"),
    [
        ({"fc_out/bias": None}, "7 weights match by name; 1 missing: fc_out/bias"),
        ({"fc_2/bias": np.zeros(3)}, "1 unexpected: fc_2/bias"),
        (
            {"fc_1/bias": np.zeros(4)},
            r"1 mis-shaped: `fc_1/bias` \(expected \(3,\), got \(4,\) from `fc_1/bias`\)",
        ),
        (  # j14: an unknown name of the very shape that is missing
            {"fc_value_1/kernel": None, "fc_v/kernel": np.zeros((4, 3))},
            "1 missing: fc_value_1/kernel; 1 unexpected: fc_v/kernel",
        ),
        (
            {
                "fc_1/kernel": np.zeros((3, 4)),
                "value_out/bias": None,
                "value_out/scale": np.ones(1),
            },
            "1 missing: value_out/bias; 1 unexpected: value_out/scale; 1 mis-shaped: `fc_1/kernel`",
        ),
    ],
)
def test_what_differs_is_listed(changes, listed):  # b7
    arrays = {name: a for name, a in {**ARRAYS, **changes}.items() if a is not None}
    with pytest.raises(ValueError, match=f"do not fit the model's 8: .*{listed}"):
        match_weights(EXPECTED, file_of(arrays))


def test_foreign_names_in_another_number_match_nothing():
    arrays = {f"x_{i}/w": array for i, array in enumerate(list(ARRAYS.values())[:-1])}
    with pytest.raises(
        ValueError, match=r"0 weights match by order; 8 missing: fc_1/kernel.*7 unex"
    ):
        match_weights(EXPECTED, file_of(arrays))


def test_foreign_names_in_another_order_are_never_put_right_by_their_shapes():  # j14
    arrays = {f"x_{i}/w": array for i, array in enumerate(reversed(ARRAYS.values()))}
    with pytest.raises(ValueError, match="8 mis-shaped: `fc_1/kernel`") as caught:
        match_weights(EXPECTED, file_of(arrays))
    assert "got (1,) from `x_0/w`" in str(caught.value)
    with pytest.raises(ValueError, match="0 weights match by order"):
        match_weights(EXPECTED, file_of(arrays), strict=False)


def test_two_weights_that_claim_one_name_are_refused():
    arrays = {f"{scope}/{name}": a for scope in ("old", "new") for name, a in ARRAYS.items()}
    for strict in (True, False):
        with pytest.raises(ValueError, match="`old/fc_1/kernel` and `new/fc_1/kernel` both claim"):
            match_weights(EXPECTED, file_of(arrays), strict=strict)


def test_without_strict_the_result_says_what_matched_and_what_did_not():  # b7
    arrays = {**ARRAYS, "fc_out/kernel": np.zeros((3, 5)), "fc_2/bias": np.zeros(3)}
    del arrays["value_out/bias"]
    match = match_weights(EXPECTED, file_of(arrays), strict=False)
    assert not match.complete
    assert match.missing == ("value_out/bias",)
    assert match.unexpected == ("fc_2/bias",)
    assert match.mis_shaped == (
        "`fc_out/kernel` (expected (3, 2), got (3, 5) from `fc_out/kernel`)",
    )
    assert list(match.weights) == [
        name for name in EXPECTED if name not in ("fc_out/kernel", "value_out/bias")
    ]
    assert str(match).startswith("6 weights match by name; 1 missing: value_out/bias; 1 unexp")


def test_nothing_matched_is_an_error_even_without_strict():  # g25
    arrays = {name: np.zeros(9) for name in EXPECTED}
    with pytest.raises(ValueError, match="0 weights match by name; 8 mis-shaped"):
        match_weights(EXPECTED, file_of(arrays), strict=False)


def numbered(layers, names=None):
    """Layers as a `.weights.h5` file numbers them; with the model's own names if it has them."""
    return [
        (names[i] if names else path, [(f"{path}/vars/{k}", a) for k, a in enumerate(arrays)])
        for i, (path, arrays) in enumerate(layers)
    ]


RECURRENT = {
    "fc_1/kernel": (4, 3),
    "fc_1/bias": (3,),
    "lstm/lstm_cell/kernel": (3, 8),
    "lstm/lstm_cell/recurrent_kernel": (2, 8),
    "lstm/lstm_cell/bias": (8,),
    "fc_out/kernel": (2, 2),
    "fc_out/bias": (2,),
}


def recurrent_layers():
    a = list(arrays_of(RECURRENT).values())
    return [("layers/dense", a[:2]), ("layers/dense_1", a[5:]), ("layers/lstm/cell", a[2:5])]


def test_numbered_weights_of_named_layers_match_by_layer_and_number():
    names = ["fc_1", "fc_out", "lstm/lstm_cell"]
    match = match_weights(RECURRENT, numbered(recurrent_layers(), names))
    assert_all_matched(match, "name", arrays_of(RECURRENT))


def test_numbered_weights_of_two_classes_match_in_the_only_order_that_their_shapes_allow():
    match = match_weights(RECURRENT, numbered(recurrent_layers()))
    assert_all_matched(match, "order", arrays_of(RECURRENT))


def test_numbered_weights_of_two_classes_that_could_change_places_are_refused():
    expected = {"a/w": (2,), "b/w": (2,)}
    layers = [("layers/dense", [np.zeros(2)]), ("layers/my_dense", [np.ones(2)])]
    with pytest.raises(ValueError, match=r"`a` must be told from others.*layers/my_dense"):
        match_weights(expected, numbered(layers))


def test_numbered_weights_that_fit_in_no_order_list_the_shapes():
    layers = recurrent_layers()
    layers[2] = ("layers/lstm/cell", [np.zeros((3, 9)), np.zeros((2, 9)), np.zeros(9)])
    with pytest.raises(ValueError, match=r"mis-shaped: `lstm/lstm_cell/kernel`"):
        match_weights(RECURRENT, numbered(layers))


def test_a_path_that_looks_like_a_known_name_is_no_name():
    expected = {"dense/kernel": (2,), "dense_1/kernel": (2,), "dense_2/kernel": (2,)}
    arrays = list(arrays_of(expected).values())
    paths = ["layers/dense", "layers/dense_1", "layers/dense_2"]
    match = match_weights(
        expected, numbered([(p, [a]) for p, a in zip(paths, arrays, strict=True)])
    )
    assert_all_matched(match, "order", arrays_of(expected))
