"""Columns become inputs at the first read, and specs follow spaces, views and arrays."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.graph.placeholders import (
    LazyColumns,
    array_spec,
    batch_placeholder,
    space_spec,
    view_spec,
)
from tfpolicy.view_requirement import ViewRequirement

S = gym.spaces
F, I64 = tf.float32, tf.int64
SPECS = {
    "obs": {"b": tf.TensorSpec([2], F), "a": (tf.TensorSpec([], I64), tf.TensorSpec([3], F))},
    "rewards": tf.TensorSpec([], F),
    "odd name!": tf.TensorSpec([], F),
    "größe": tf.TensorSpec([], F),
    "_own": tf.TensorSpec([], F),
}


@pytest.fixture
def columns():
    with tf.Graph().as_default() as graph:
        columns = LazyColumns(SPECS, batch_placeholder)
        columns.graph = graph
        yield columns


def test_nothing_is_made_before_it_is_read_and_nothing_twice(columns):
    assert columns.graph.get_operations() == [] and columns.read == {}
    rewards = columns["rewards"]
    assert columns["rewards"] is rewards and columns.get("rewards") is rewards
    assert list(columns.read) == ["rewards"]
    assert [op.name for op in columns.graph.get_operations()] == ["rewards"]
    assert (rewards.dtype, rewards.shape.as_list()) == (F, [None])


def test_nested_columns_are_read_as_structures_with_the_path_in_the_names(columns):
    obs = columns["obs"]
    assert list(obs) == ["b", "a"] and isinstance(obs["a"], tuple)
    shapes = [leaf.shape.as_list() for leaf in (obs["b"], *obs["a"])]
    assert shapes == [[None, 2], [None], [None, 3]]
    names = [op.name for op in columns.graph.get_operations()]
    assert names == ["obs_b", "obs_a_0", "obs_a_1"]


def test_a_name_that_no_graph_allows_is_adapted(columns):
    assert columns["odd name!"].op.name == "odd_name_"
    assert columns["größe"].op.name == "gr__e"
    assert columns["_own"].op.name == "column_own"


def test_iterating_over_the_names_reads_nothing(columns):
    columns.give({"seq_lens": 5})
    assert list(columns) == ["seq_lens", *SPECS] and len(columns) == 1 + len(SPECS)
    assert columns.read == {}


def test_what_is_given_is_no_input(columns):
    columns.give({"seq_lens": 5, "rewards": 6})
    assert (columns["seq_lens"], columns["rewards"]) == (5, 6)
    assert columns.read == {} and columns.graph.get_operations() == []


def test_a_column_that_does_not_exist_names_the_nearest_and_all(columns):
    with pytest.raises(KeyError, match="'reward'. Did you mean 'rewards'.*obs, rewards, odd name!"):
        columns["reward"]
    assert columns.get("reward") is None
    assert columns.read == {}


def test_specs_of_spaces_have_their_structure_shapes_and_dtypes():
    space = S.Dict({"x": S.Box(0, 255, (2, 3), np.uint8), "y": S.Tuple((S.Discrete(3),))})
    assert space_spec(space) == {
        "x": tf.TensorSpec([2, 3], tf.uint8),
        "y": (tf.TensorSpec([], I64),),
    }
    assert space_spec(S.MultiBinary([2, 2])) == tf.TensorSpec([2, 2], tf.int8)


def test_windows_have_an_axis_for_their_offsets():
    data = {"x": tf.TensorSpec([2], F)}
    assert view_spec(ViewRequirement(shift=-1), data) is data
    for shift, width in (("-3:0", 4), ("-4:0:2", 3), ([-1], 1), ([-5, -2], 2)):
        assert view_spec(ViewRequirement(shift=shift), data) == {"x": tf.TensorSpec([width, 2], F)}


def test_specs_of_arrays_leave_out_the_batch():
    columns = {"x": np.zeros((5, 2), np.float32), "y": (np.zeros(5, bool),)}
    assert array_spec(columns) == {
        "x": tf.TensorSpec([2], F),
        "y": (tf.TensorSpec([], tf.bool),),
    }
