"""Raw observations become features alike in the graph, compiled or not, and in slow NumPy."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.preprocessing import flatten_observation, num_features
from tfpolicy.spaces import flatten, map_leaves

S = gym.spaces
SPACES = {
    "vector": S.Box(-1, 1, (3,)),
    "scalar": S.Box(-1, 1, ()),
    "matrix": S.Box(-1, 1, (2, 3)),
    "no element": S.Box(-1, 1, (0,)),
    "float64": S.Box(-np.inf, np.inf, (2,), np.float64),
    "float16": S.Box(-1, 1, (2,), np.float16),
    "int32": S.Box(-5, 9, (2, 2), np.int32),
    "bool": S.Box(0, 1, (3,), np.bool_),
    "image": S.Box(0, 255, (3, 2, 2), np.uint8),
    "bytes that are no image": S.Box(0, 7, (3,), np.uint8),
    "discrete": S.Discrete(4),
    "discrete with a start": S.Discrete(3, start=-1),
    "discrete of one": S.Discrete(1, start=9),
    "int32 discrete": S.Discrete(3, dtype=np.int32),
    "multi-discrete of equals": S.MultiDiscrete([3, 3, 3]),
    "multi-discrete": S.MultiDiscrete([2, 5, 3], start=[0, -2, 7]),
    "int8 matrix of choices": S.MultiDiscrete([[2, 3], [4, 2]], dtype=np.int8),
    "uint8 choices of many": S.MultiDiscrete([200, 255], dtype=np.uint8),
    "uint8 discrete": S.Discrete(250, dtype=np.uint8, start=np.uint8(3)),
    "multi-binary": S.MultiBinary(5),
    "multi-binary matrix": S.MultiBinary([2, 3]),
    "dict": S.Dict(
        {
            "z": S.Box(-1, 1, (2,)),
            "a": S.Discrete(3),
            "m": S.Tuple((S.MultiBinary(2), S.Dict({"x": S.Box(0, 255, (2, 2, 1), np.uint8)}))),
        }
    ),
    "tuple": S.Tuple((S.MultiDiscrete([2, 3]), S.Box(-1, 1, (), np.float64))),
}


def features_of(space, value):
    """One leaf's features, spelled out."""
    if isinstance(space, S.Discrete):
        return [float(value == space.start + index) for index in range(space.n)]
    if isinstance(space, S.MultiDiscrete):
        choices = zip(value.ravel(), space.start.ravel(), space.nvec.ravel(), strict=True)
        return [float(v == start + i) for v, start, n in choices for i in range(n)]
    features = [float(x) for x in np.ravel(value)]
    is_image = space.dtype == np.uint8 and space.low.min() == 0 and space.high.min() == 255
    return [x / 255 for x in features] if is_image else features


def leaves_of(space):
    leaves = []
    map_leaves(lambda leaf: leaves.append(leaf), space)
    return leaves


@pytest.fixture(params=SPACES)
def space(request):
    """A copy, so that seeding it does not reach other tests."""
    return copy.deepcopy(SPACES[request.param])


def evaluate(space, batch, jit_compile):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:

        def encode(observation):
            return flatten_observation(space, observation)

        placeholders = map_leaves(
            lambda leaf, column: tf.compat.v1.placeholder(leaf.dtype, [None, *leaf.shape]),
            space,
            batch,
        )
        encode = tf.function(encode, autograph=False, jit_compile=True) if jit_compile else encode
        features = encode(placeholders)
        assert features.dtype == tf.float32 and features.shape.rank == 2
        feeds = zip(flatten(space, placeholders), flatten(space, batch), strict=True)
        return session.run(features, dict(feeds))


@pytest.mark.parametrize("jit_compile", [False, True], ids=["plain", "compiled"])
def test_features_are_those_of_a_slow_reference(space, jit_compile):
    space.seed(3)
    samples = [flatten(space, space.sample()) for _ in range(6)]
    leaves = leaves_of(space)
    expected = np.array(
        [
            [x for leaf, value in zip(leaves, row, strict=True) for x in features_of(leaf, value)]
            for row in samples
        ]
    ).reshape(6, -1)
    columns = iter([np.stack(column) for column in zip(*samples, strict=True)])
    batch = map_leaves(lambda leaf: next(columns).astype(leaf.dtype), space)
    found = evaluate(space, batch, jit_compile)
    assert found.shape == (6, num_features(space)) == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_batch_without_rows_has_features_of_the_same_width(space):
    batch = map_leaves(lambda leaf: np.zeros((0, *leaf.shape), leaf.dtype), space)
    assert evaluate(space, batch, False).shape == (0, num_features(space))


def test_parts_of_a_dict_are_in_the_order_of_the_space_whatever_that_of_the_value():  # e21
    space = SPACES["dict"]
    assert list(space) == ["a", "m", "z"]
    batch = {
        "z": np.float32([[7, 8]]),
        "m": (np.int8([[1, 0]]), {"x": np.full((1, 2, 2, 1), 51, np.uint8)}),
        "a": np.array([2]),
    }
    expected = [[0, 0, 1, 1, 0, 0.2, 0.2, 0.2, 0.2, 7, 8]]
    np.testing.assert_allclose(evaluate(space, batch, False), expected, rtol=1e-6)


def test_features_of_floats_pass_gradients_and_those_of_choices_have_none():
    space = S.Dict({"x": S.Box(-1, 1, (2,)), "n": S.Discrete(3)})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x, n = tf.constant([[0.5, -1.0]]), tf.constant([1], tf.int64)
        features = flatten_observation(space, {"x": x, "n": n})
        to_x, to_n = tf.gradients(tf.reduce_sum(features * 3.0), [x, n])
        np.testing.assert_array_equal(session.run(to_x), [[3, 3]])
        assert to_n is None
