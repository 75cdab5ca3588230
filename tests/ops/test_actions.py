"""The maps of actions in the graph are those of `tfpolicy.spaces`."""

import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tfpolicy import spaces
from tfpolicy.ops import actions as ops

INF = np.inf
PAIRS = [
    pytest.param(ops.unsquash_action, spaces.unsquash_action, id="unsquash"),
    pytest.param(ops.clip_action, spaces.clip_action, id="clip"),
]
RNG = np.random.default_rng(0)
FLOAT_BOXES = [
    Box(-1, 1, (3,)),
    Box(-2, 2, (3,)),
    Box(0.001, 1000, (3,)),
    Box(-INF, INF, (3,)),
    Box(np.array([-2, -INF, 0], np.float32), np.array([4, 1, INF], np.float32)),
    Box(-3e38, 3e38, (3,)),
    Box(5, 5, (3,)),
    Box(-0.1, 0.7, (3,), np.float64),
    Box(-0.1, 0.7, (3,), np.float16),
]
INTEGER_BOXES = [Box(-3, 4, (3,), dtype) for dtype in (np.int8, np.int16, np.int32, np.int64)] + [
    Box(1, 200, (3,), np.uint8),
    Box(-(2**31), 2**31 - 1, (3,), np.int32),
    Box(0, 1, (3,), bool),
]


def run(function, values, space):
    """Evaluates a function of nested actions, fed through placeholders of free batch size."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = tf.nest.map_structure(
            lambda v: tf.compat.v1.placeholder(v.dtype, [None, *v.shape[1:]]), values
        )
        feeds = dict(zip(tf.nest.flatten(inputs), tf.nest.flatten(values), strict=True))
        return session.run(function(inputs, space), feeds)


@pytest.mark.filterwarnings("ignore:overflow")  # On the host, to infinity, which is then clipped.
@pytest.mark.parametrize(("in_graph", "on_host"), PAIRS)
@pytest.mark.parametrize("space", FLOAT_BOXES + INTEGER_BOXES, ids=str)
def test_results_equal_those_on_the_host_bit_by_bit(space, in_graph, on_host):
    ends = np.array([[-1, 1, 0], [-5, 0.5, 2.5], [-300, 300, 1.5]])
    action = np.concatenate([ends, RNG.uniform(-1, 1, (100, 3))]).astype(np.float32)
    result = run(in_graph, action, space)
    assert result.dtype == space.dtype
    np.testing.assert_array_equal(result, on_host(action, space))
    assert all(row in space for row in result)


@pytest.mark.parametrize(("in_graph", "on_host"), PAIRS)
@pytest.mark.parametrize("space", INTEGER_BOXES[:5], ids=str)
def test_integer_actions_of_another_dtype_are_clipped_and_cast(space, in_graph, on_host):
    action = np.array([[-1000, 0, 1000]], np.int64)
    result = run(in_graph, action, space)
    assert result.dtype == space.dtype
    np.testing.assert_array_equal(result, on_host(action, space))


@pytest.mark.parametrize(("in_graph", "on_host"), PAIRS)
@pytest.mark.parametrize("space", [Box(0, 1, (2,), bool), Box(1, 1, (2,), bool)], ids=str)
def test_truth_values_stay_such_within_their_bounds(space, in_graph, on_host):
    action = np.array([[True, False]])
    result = run(in_graph, action, space)
    np.testing.assert_array_equal(result, on_host(action, space))
    np.testing.assert_array_equal(result, action | space.low)
    assert result.dtype == bool


@pytest.mark.parametrize("space", FLOAT_BOXES + INTEGER_BOXES, ids=str)
def test_normalized_actions_equal_those_on_the_host_up_to_rounding(space):
    space.seed(0)
    action = np.stack([space.sample() for _ in range(20)])
    result = run(ops.normalize_action, action, space)
    assert result.dtype == space.dtype
    expected = spaces.normalize_action(action, space)
    rounding = np.finfo(space.dtype).eps if space.dtype.kind == "f" else 0
    np.testing.assert_allclose(result, expected, rtol=2 * rounding, atol=rounding)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("clip", [True, False])
def test_the_environment_gets_unsquashed_or_else_clipped_or_else_plain_actions(normalized, clip):
    space, action = Box(0, 4, (1,), np.float64), np.array([[0.5], [9]], np.float32)
    result = run(lambda a, s: ops.environment_action(a, s, normalized, clip), action, space)
    expected = [[3], [4]] if normalized else [[0.5], [4]] if clip else [[0.5], [9]]
    np.testing.assert_array_equal(result, np.array(expected, np.float64))
    assert result.dtype == np.float64


def test_nested_actions_are_mapped_leaf_by_leaf():  # e10
    space = Dict(
        steer=Box(-5, 5, (2,)),
        gear=Tuple([Discrete(3, start=1), MultiDiscrete([2, 2], dtype=np.int32)]),
        lights=MultiBinary(2),
    )
    action = {
        "gear": (np.array([1, 3]), np.array([[0, 1], [1, 1]])),
        "lights": np.array([[0, 1], [1, 0]], np.int8),
        "steer": np.array([[-1, 0.5], [0, 7]], np.float32),
    }
    result = run(ops.unsquash_action, action, space)
    np.testing.assert_equal(result, spaces.unsquash_action(action, space))
    np.testing.assert_array_equal(result["steer"], [[-5, 2.5], [0, 5]])
    assert all(single in space for single in spaces.unbatch(result))


def test_a_normalized_box_costs_two_ops_and_their_constants():
    with tf.Graph().as_default() as graph:
        ops.unsquash_action(tf.compat.v1.placeholder(tf.float32, [None, 3]), Box(-1, 1, (3,)))
        kinds = sorted(op.type for op in graph.get_operations() if op.type != "Const")
    assert kinds == ["Maximum", "Minimum", "Placeholder"]


def test_gradients_flow_where_nothing_is_clipped():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        action = tf.constant([[0.5, 3.0]])
        (gradient,) = tf.gradients(ops.unsquash_action(action, Box(-4, 4, (2,))), action)
        np.testing.assert_array_equal(session.run(gradient), [[4, 0]])


@pytest.mark.parametrize("act", [ops.unsquash_action, ops.clip_action])
@pytest.mark.parametrize(
    ("action", "space", "error", "message"),
    [
        (np.zeros((2, 3)), Box(-1, 1, (4,)), ValueError, r"expected \(B, 4\) .* got \(2, 3\)"),
        (np.zeros(4), Box(-1, 1, (4,)), ValueError, r"expected \(B, 4\) .* got \(4,\)"),
        (np.zeros(4), Discrete(4), TypeError, "expected integers .* got float64"),
    ],
)
def test_actions_that_do_not_fit_are_refused(act, action, space, error, message):
    with tf.Graph().as_default(), pytest.raises(error, match=message):
        act(tf.constant(action), space)
