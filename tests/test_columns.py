import numpy as np
import pytest

from tfpolicy.columns import as_column, blank, map_column, row_count, select


def test_an_array_stays_the_same_object():
    array = np.zeros(3, np.float32)
    assert as_column("x", array) is array


def test_lists_become_arrays_within_nested_columns_too():
    column = as_column("x", {"a": [1, 2], "b": ([3.0, 4.0], np.array([True, False]))})
    np.testing.assert_array_equal(column["a"], [1, 2])
    np.testing.assert_array_equal(column["b"][0], [3.0, 4.0])


def test_object_rows_are_not_stacked_into_a_matrix():
    column = as_column("infos", [[1, 2], [3, 4]], objects=True)
    assert column.shape == (2,)
    assert column[1] == [3, 4]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3.0, r"`x`: expected an array \[B, ...\], got the scalar 3.0"),
        (np.float32(3.0), "got the scalar 3.0"),
        (None, "got the scalar None"),
        ("text", "got the scalar text"),
        ([[1, 2], [3]], "`x`: expected rows of one shape"),
        ([{"a": 1}, {"a": 2}], "`x`: expected an array of numbers or strings"),
        (np.array([None, 1]), "`x`: expected an array of numbers or strings"),
        ({}, "`x`: expected at least one array, got {}"),
        ((), r"`x`: expected at least one array, got \(\)"),
        ({"a": {"b": 1.0}}, r"`x\.a\.b`: .*scalar"),
        ((np.zeros(2), 1.0), r"`x\.1`: .*scalar"),
    ],
)
def test_as_column_refuses(value, message):
    with pytest.raises(ValueError, match=message):
        as_column("x", value)


def test_row_count_of_a_nested_column():
    assert row_count("x", {"a": np.zeros((4, 2)), "b": (np.zeros(4),)}) == 4


def test_arrays_of_a_nested_column_share_one_length():
    with pytest.raises(ValueError, match=r"`x`: expected arrays of equal length.*'x\.b\.0': 3"):
        row_count("x", {"a": np.zeros(4), "b": (np.zeros(3),)})


def test_map_column_keeps_the_nesting():
    column = {"a": np.array([1, 2]), "b": (np.array([3, 4]), np.array([5, 6]))}
    total = map_column(np.add, column, column)
    np.testing.assert_array_equal(total["a"], [2, 4])
    np.testing.assert_array_equal(total["b"][1], [10, 12])
    assert select(column, 0) == {"a": 1, "b": (3, 5)}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"a": np.zeros(1)}, {"b": np.zeros(1)}, r"a dict of \['a'\] and a dict of \['b'\]"),
        ({"a": np.zeros(1)}, np.zeros(1), r"a dict of \['a'\] and an array"),
        (np.zeros(1), (np.zeros(1),), "an array and a tuple of 1"),
        ((np.zeros(1),), (np.zeros(1),) * 2, "a tuple of 1 and a tuple of 2"),
    ],
)
def test_map_column_refuses_columns_nested_differently(first, second, message):
    with pytest.raises(ValueError, match=message):
        map_column(np.add, first, second)


def test_blank_is_zero_or_an_own_empty_dict():
    np.testing.assert_array_equal(blank((2, 1), np.int8), np.zeros((2, 1), np.int8))
    objects = blank((2,), object)
    assert objects.tolist() == [{}, {}]
    assert objects[0] is not objects[1]
