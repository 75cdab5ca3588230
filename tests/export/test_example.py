import numpy as np
import pytest

from tfpolicy.export.example import Example, compare, example_from_arrays, example_to_arrays

EXAMPLE = Example(
    {"obs": np.zeros((2, 3), np.float32)},
    {"actions": np.array([1, 2]), "vf_preds": np.float32([0.5, 100])},
    1e-5,
)


def found(**changes):
    return {**EXAMPLE.outputs, **changes}


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({}, {"actions": 0, "vf_preds": 0}),
        ({"vf_preds": np.float32([0.5 + 1e-6, 100])}, {"vf_preds": 1e-6 / 1.5}),
        ({"vf_preds": np.float32([0.5, 100 + 9e-4])}, {"vf_preds": 9e-4 / 101}),
    ],
)
def test_what_is_close_is_the_same(changes, differences):
    lines = compare(EXAMPLE, found(**changes))
    assert all(line.same for line in lines)
    by_name = {line.output: line.difference for line in lines}
    for name, difference in differences.items():
        assert by_name[name] == pytest.approx(difference, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "difference", "allowed"),
    [
        ({"vf_preds": np.float32([0.5, 100.01])}, 0.01 / 101, 1e-5),
        ({"vf_preds": np.float32([0.5, np.nan])}, np.inf, 1e-5),
        ({"vf_preds": np.float32([0.5, np.inf])}, np.inf, 1e-5),
        ({"vf_preds": np.float64([0.5, 100])}, np.inf, 0),
        ({"vf_preds": np.float32([[0.5, 100]])}, np.inf, 0),
        ({"actions": np.array([1, 3])}, 1, 0),
        ({"more": np.zeros(2)}, np.inf, 0),
    ],
)
def test_what_differs_is_told_with_how_far(changes, difference, allowed):
    (line,) = [line for line in compare(EXAMPLE, found(**changes)) if not line.same]
    assert [line.output] == list(changes)
    assert line.difference == pytest.approx(difference, rel=0.01)
    assert line.allowed == pytest.approx(allowed, rel=1e3)  # GPUs are allowed more.


@pytest.mark.parametrize("steps, same", [(1, True), (3, False)])
def test_float16_may_be_rounded_to_the_next_number(steps, same):
    action = np.array([[0.3, 3.0, -700.0]], np.float16)
    example = EXAMPLE._replace(outputs={"actions": action}, tolerance=1e-5)
    other = action.copy()
    for _ in range(steps):
        other = np.nextafter(other, np.float16(1000))
    (line,) = compare(example, {"actions": other})
    assert line.same == same


def test_a_missing_output_differs():
    lines = compare(EXAMPLE, {"actions": EXAMPLE.outputs["actions"]})
    assert [(line.output, line.found) for line in lines if not line.same] == [("vf_preds", "none")]


def test_what_is_not_finite_on_both_sides_is_the_same():
    odd = np.float32([np.nan, np.inf, -np.inf])
    example = EXAMPLE._replace(outputs={"vf_preds": odd})
    assert all(line.same for line in compare(example, {"vf_preds": odd.copy()}))
    assert not compare(example, {"vf_preds": -odd})[0].same


def test_it_comes_back_from_arrays():
    again = example_from_arrays({**example_to_arrays(EXAMPLE), "other": np.zeros(1)}, "x")
    np.testing.assert_equal(again._asdict(), EXAMPLE._asdict())


@pytest.mark.parametrize("missing", ["inputs/obs", "tolerance", "outputs/"])
def test_arrays_without_an_example_are_refused(missing):
    arrays = example_to_arrays(EXAMPLE)
    kept = {name: array for name, array in arrays.items() if not name.startswith(missing)}
    with pytest.raises(ValueError, match="`x` must hold recorded actions"):
        example_from_arrays(kept, "x")
