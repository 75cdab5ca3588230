"""Joint distributions over nested spaces."""

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tfpolicy.distributions import Joint, distribution_for
from tfpolicy.ops.masking import MASKED_LOGIT
from tfpolicy.spaces import flatten, leaf_spaces, unbatch, unflatten

ROWS = 6
# The keys are not in alphabetical order, as the order is the space's.
SPACES = {
    "pair": Tuple([Discrete(9), Box(0, 1, (1,))]),  # e12
    "dict": Dict(OrderedDict(z=Box(-1, 1, (2, 2)), a=Discrete(3, start=-1))),
    "deep": Dict(
        OrderedDict(
            move=Tuple([Discrete(2), Dict(x=MultiDiscrete([2, 3]), w=Box(-1, 1, (), np.float64))]),
            flags=MultiBinary(3),
            gear=Box(-1, 2, (2,), np.int8),
        )
    ),
    "single": Dict(only=Discrete(4)),
}


@pytest.fixture(params=SPACES)
def space(request):
    return SPACES[request.param]


def inputs_for(space, rows=ROWS, seed=0):
    size = distribution_for(space).num_inputs
    return np.random.default_rng(seed).normal(0, 1, (rows, size)).astype(np.float32)


def draw(evaluate, space, inputs, seed=(1, 2)):
    distribution = distribution_for(space)
    return evaluate(lambda x, s: distribution(x).sample(s), inputs, np.int32(seed))


def test_actions_have_the_structure_of_the_space(space, evaluate):  # e10
    distribution = distribution_for(space)
    modes = evaluate(lambda x: distribution(x).mode(), inputs_for(space))
    for actions in (draw(evaluate, space, inputs_for(space)), modes):
        expected = unflatten(space, [0] * len(leaf_spaces(space, "a")))
        tf.nest.assert_same_structure(expected, actions)
        pairs = zip(leaf_spaces(space, "a").values(), flatten(space, actions), strict=True)
        for leaf, column in pairs:
            assert column.shape == (ROWS, *leaf.shape)
            assert column.dtype == (np.float32 if leaf.dtype.kind == "f" else leaf.dtype)
        # All but Gaussian leaves are within their bounds, and unbatching inverts stacking.
        rows = unbatch(actions)
        assert len(rows) == ROWS
        for row in rows:
            for leaf, value in zip(
                leaf_spaces(space, "a").values(), flatten(space, row), strict=True
            ):
                assert leaf.dtype.kind == "f" or value in leaf


def test_values_are_sums_over_the_leaves(space, evaluate):
    distribution = distribution_for(space)
    inputs, other = inputs_for(space), inputs_for(space, seed=1)
    actions = draw(evaluate, space, inputs)
    leaves = list(leaf_spaces(space, "a").values())
    alone = [distribution_for(leaf) for leaf in leaves]
    cuts = np.cumsum([each.num_inputs for each in alone])[:-1]

    def values(x, y, *columns):
        p, q = distribution(x), distribution(y)
        joint = p.log_prob(unflatten(space, columns)), p.entropy(), p.kl(q)
        parts = [
            (each(px).log_prob(a), each(px).entropy(), each(px).kl(each(py)))
            for each, px, py, a in zip(
                alone, np_split(x, cuts), np_split(y, cuts), columns, strict=True
            )
        ]
        return joint, parts

    joint, parts = evaluate(values, inputs, other, *flatten(space, actions))
    for value, *terms in zip(joint, *parts, strict=True):
        assert value.shape == (ROWS,) and value.dtype == np.float32
        np.testing.assert_allclose(value, np.sum(terms, axis=0), rtol=1e-5, atol=1e-5)


def np_split(x, cuts):
    edges = [0, *cuts, x.shape[1]]
    return [x[:, a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)]


def test_a_pair_worked_out_by_hand(evaluate):
    # Logits (0, log 3): P = (1/4, 3/4). Mean 1, σ = e⁰ = 1, at 1: log density -½ log 2π.
    space = Tuple([Discrete(2), Box(-1, 1, (1,))])
    distribution = distribution_for(space)
    inputs = np.array([[0.0, np.log(3.0), 1.0, 0.0]])
    logp, entropy = evaluate(
        lambda x: (
            distribution(x).log_prob((np.array([1]), np.array([[1.0]]))),
            distribution(x).entropy(),
        ),
        inputs,
    )
    half_log_2pi = 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(logp, [np.log(0.75) - half_log_2pi], rtol=1e-6)
    discrete = 0.25 * np.log(4) + 0.75 * np.log(4 / 3)
    np.testing.assert_allclose(entropy, [discrete + half_log_2pi + 0.5], rtol=1e-6)


def test_leaves_are_drawn_independently(evaluate):
    space = Tuple([Discrete(2), Discrete(2), Box(-1, 1, (1,))])
    actions = draw(evaluate, space, np.zeros((8000, 6), np.float32))
    columns = np.stack([np.asarray(leaf, np.float64).reshape(-1) for leaf in actions])
    assert np.abs(np.corrcoef(columns) - np.eye(3)).max() < 5 / np.sqrt(8000)


def test_the_seed_alone_decides_the_sample(space, evaluate):
    inputs = inputs_for(space, 200)
    first, again, other = (draw(evaluate, space, inputs, seed) for seed in [(1, 2), (1, 2), (1, 3)])
    first, again, other = (flatten(space, actions) for actions in (first, again, other))
    for left, right in zip(first, again, strict=True):
        np.testing.assert_array_equal(left, right)
    assert any((left != right).any() for left, right in zip(first, other, strict=True))


def test_masked_and_extreme_leaves_have_finite_values_and_gradients(evaluate):  # e12, i18
    space = SPACES["pair"]
    distribution = distribution_for(space)
    inputs = np.full((2, 11), MASKED_LOGIT, np.float32)
    inputs[:, 3] = 1.0
    inputs[:, 9:] = [[1e9, 1e9], [-1e9, -1e9]]
    actions = evaluate(lambda x: distribution(x).mode(), inputs)
    np.testing.assert_array_equal(actions[0], [3, 3])

    def values(x, *leaves):
        p = distribution(x)
        terms = p.log_prob(leaves), p.entropy(), p.kl(distribution(0.9 * x))
        return *terms, *tf.gradients(terms, x)

    for value in evaluate(values, inputs, *actions):
        assert np.isfinite(value).all()


def test_keys_in_another_order_are_the_same_action(evaluate):
    space = SPACES["dict"]
    actions = draw(evaluate, space, inputs_for(space))
    assert list(actions) == ["z", "a"]
    distribution = distribution_for(space)
    first, second = evaluate(
        lambda x, z, a: [
            distribution(x).log_prob(each) for each in ({"z": z, "a": a}, {"a": a, "z": z})
        ],
        inputs_for(space),
        actions["z"],
        actions["a"],
    )
    np.testing.assert_array_equal(first, second)


def test_actions_of_another_structure_are_refused():
    distribution = distribution_for(SPACES["dict"])
    with tf.Graph().as_default():
        p = distribution(tf.zeros([2, distribution.num_inputs]))
        assert isinstance(p, Joint)
        with pytest.raises(KeyError, match=r"`actions`: .* \['a'\] are missing"):
            p.log_prob({"z": tf.zeros([2, 2, 2])})
        with pytest.raises(ValueError, match=r"`actions`: expected .2, 2, 2. for Box"):
            p.log_prob({"z": tf.zeros([2, 4]), "a": tf.zeros([2], tf.int64)})


def test_inputs_of_another_width_and_other_joints_are_refused():
    pair, single = distribution_for(SPACES["pair"]), distribution_for(SPACES["single"])
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match=r"`inputs`: expected .B, 11. for Tuple"):
            pair(tf.zeros([3, 12]))
        with pytest.raises(TypeError, match="`other` must be a Beta"):
            beta = distribution_for(SPACES["pair"], "beta")
            beta(tf.zeros([1, 11])).kl(pair(tf.zeros([1, 11])))
        assert single(tf.zeros([1, 4])).mode().keys() == {"only"}


def test_compiled_values_equal_plain_ones(evaluate, evaluate_compiled):
    space = SPACES["deep"]
    distribution = distribution_for(space)

    def values(x, y):
        p = distribution(x)
        return p.log_prob(p.mode()), p.entropy(), p.kl(distribution(y))

    arrays = inputs_for(space), inputs_for(space, seed=1)
    plain, compiled = evaluate(values, *arrays), evaluate_compiled(values, *arrays)
    for left, right in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
