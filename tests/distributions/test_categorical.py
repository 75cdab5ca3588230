import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from tfpolicy.distributions import Categorical, MultiCategorical, distribution_for
from tfpolicy.ops.masking import MASKED_LOGIT

FLOAT32_MIN = np.finfo(np.float32).min


def softmax_values(logits, other, action):
    """log p(a), H(p) and KL(p ‖ q) of one choice, slow on purpose and in float64."""
    log_p, log_q = (scipy.special.log_softmax(np.float64(z)) for z in (logits, other))
    p, q = np.exp(log_p), np.exp(log_q)
    return log_p[action], scipy.stats.entropy(p), scipy.stats.entropy(p, q)


def test_three_choices_by_hand(evaluate):
    # p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2)
    inputs, other = np.log([[2.0, 1.0, 1.0]]), np.log([[1.0, 1.0, 2.0]])

    def values(x, y):
        p = Categorical(x, Discrete(3))
        return p.log_prob([2]), p.entropy(), p.kl(Categorical(y, Discrete(3))), p.mode()

    logp, entropy, kl, mode = evaluate(values, inputs, other)
    np.testing.assert_allclose(logp, [np.log(0.25)], rtol=1e-6)
    np.testing.assert_allclose(entropy, [1.5 * np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(kl, [0.25 * np.log(2)], rtol=1e-6)
    np.testing.assert_array_equal(mode, [0])


def test_start_shifts_actions_only(evaluate):
    def values(x, seed):
        plain, shifted = Categorical(x, Discrete(4)), Categorical(x, Discrete(4, start=-7))
        actions = plain.sample(seed)
        return (
            (actions - 7, shifted.sample(seed)),
            (plain.mode() - 7, shifted.mode()),
            (plain.log_prob(actions), shifted.log_prob(actions - 7)),
        )

    inputs = np.random.default_rng(0).normal(size=(50, 4))
    for plain, shifted in evaluate(values, inputs, np.int32([1, 2])):
        np.testing.assert_array_equal(plain, shifted)


def test_frequencies_of_samples_are_the_probabilities(evaluate):
    p = np.array([0.05, 0.15, 0.8])
    inputs = np.tile(np.log(p), (20000, 1))
    actions = evaluate(lambda x, s: Categorical(x, Discrete(3)).sample(s), inputs, np.int32([0, 1]))
    assert scipy.stats.chisquare(np.bincount(actions), 20000 * p).pvalue > 1e-3


@pytest.mark.parametrize("masked", [-1e8, -1e9, FLOAT32_MIN])
def test_masked_choices_agree_with_tfp(evaluate, masked):  # i18
    rng = np.random.default_rng(0)
    inputs, other = rng.normal(size=(2, 8, 5)).astype(np.float32)
    inputs[:, 1] = other[:, 1] = other[:, 3] = masked
    inputs[:, 3] = masked

    def values(x, y):
        p, q = (Categorical(z, Discrete(5)) for z in (x, y))
        p_ref, q_ref = (tfp.distributions.Categorical(z) for z in (x, y))
        actions = np.arange(8) % 2 * 2
        return (
            (p.log_prob(actions), p_ref.log_prob(actions)),
            (p.entropy(), p_ref.entropy()),
            (p.kl(q), p_ref.kl_divergence(q_ref)),
        )

    for value, expected in evaluate(values, inputs, other):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("masked", [-1e9, FLOAT32_MIN, -np.inf])
def test_masked_choices_are_never_taken_and_get_no_gradient(evaluate, masked):  # e15, i18
    inputs = np.tile(np.float32([0.5, masked, 0.5, masked, 9.0]), (3000, 1))

    def values(x, seed):
        p = Categorical(x, Discrete(5))
        actions = p.sample(seed)
        values = p.log_prob(actions), p.entropy(), p.kl(Categorical(0.5 * x, Discrete(5)))
        return actions, p.mode(), values, [tf.gradients(value, x)[0] for value in values]

    actions, mode, numbers, gradients = evaluate(values, inputs, np.int32([5, 6]))
    assert not np.isin(actions, [1, 3]).any() and (mode == 4).all()
    assert np.isfinite(numbers).all() and np.isfinite(gradients).all()
    assert not np.array(gradients)[:, :, [1, 3]].any()


def test_a_row_that_allows_one_choice_has_no_entropy(evaluate):
    p = evaluate(lambda x: Categorical(x, Discrete(3)).entropy(), [[-1e9, 0.3, -1e9]])
    np.testing.assert_array_equal(p, [0.0])


def test_kl_to_a_policy_that_masks_more_is_large_but_finite(evaluate):
    def kl(x, y):
        return Categorical(x, Discrete(2)).kl(Categorical(y, Discrete(2)))

    value = evaluate(kl, [[0.0, 0.0]], [[0.0, -np.inf]])
    np.testing.assert_allclose(value, [5e8], rtol=1e-3)


def test_action_outside_the_space_is_an_error(evaluate):
    for action in (2, -1):
        with pytest.raises(tf.errors.InvalidArgumentError):
            evaluate(lambda x, a=action: Categorical(x, Discrete(2)).log_prob([a]), [[0.0, 0.0]])


def test_float_actions_are_rounded_not_cut(evaluate):
    def logp(x, a):
        return Categorical(x, Discrete(3)).log_prob(a)

    inputs = np.random.default_rng(0).normal(size=(2, 3))
    np.testing.assert_array_equal(
        evaluate(logp, inputs, np.float32([0.9999999, 2.0000002])),
        evaluate(logp, inputs, np.int64([1, 2])),
    )


@pytest.mark.parametrize(
    "space",
    [
        MultiDiscrete([2, 2]),  # c19
        MultiDiscrete([2, 5, 3], start=[0, -2, 7]),
        MultiDiscrete([[2, 3], [4, 2]]),
        Box(np.int8([-100, 0]), np.int8([100, 4]), dtype=np.int8),  # high - low exceeds int8
        Box(3, 5, (2, 2), np.uint8),
        Box(np.array([0, 1]), np.array([1, 1]), dtype=np.bool_),
    ],
    ids=str,
)
def test_several_choices_are_the_sum_of_single_ones(evaluate, space):  # i16
    if isinstance(space, MultiDiscrete):
        counts, starts = space.nvec.ravel(), space.start.ravel()
    else:
        starts = space.low.ravel().astype(int)
        counts = space.high.ravel().astype(int) - starts + 1
    rng = np.random.default_rng(0)
    inputs, other = rng.normal(size=(2, 6, sum(counts)))
    indices = rng.integers(0, counts, (6, len(counts)))
    actions = (indices + starts).reshape(6, *space.shape).astype(space.dtype)

    def values(x, y, a):
        p, q = MultiCategorical(x, space), MultiCategorical(y, space)
        return p.log_prob(a), p.entropy(), p.kl(q), p.mode()

    *numbers, mode = evaluate(values, inputs, other, actions)
    ends = np.cumsum(counts)[:-1]
    parts = [np.split(z, ends, axis=1) for z in (inputs, other)]
    expected = np.zeros((6, 3))
    for b in range(6):
        for k in range(len(counts)):
            expected[b] += softmax_values(parts[0][k][b], parts[1][k][b], indices[b, k])
    np.testing.assert_allclose(np.transpose(numbers), expected, rtol=1e-4)
    best = np.stack([part.argmax(axis=1) for part in parts[0]], axis=1) + starts
    np.testing.assert_array_equal(mode, best.reshape(6, *space.shape))


def test_choices_of_unequal_size_are_drawn_from_their_own_probabilities(evaluate):
    space = MultiDiscrete([2, 4], start=[5, -1])
    p = [np.array([0.3, 0.7]), np.array([0.1, 0.2, 0.3, 0.4])]
    inputs = np.tile(np.log(np.concatenate(p)), (20000, 1))
    actions = evaluate(lambda x, s: MultiCategorical(x, space).sample(s), inputs, np.int32([0, 1]))
    for k, start in enumerate([5, -1]):
        frequencies = np.bincount(actions[:, k] - start, minlength=len(p[k]))
        assert scipy.stats.chisquare(frequencies, 20000 * p[k]).pvalue > 1e-3


def test_padded_choices_are_not_taken_even_if_all_real_ones_are_masked(evaluate):
    space = MultiDiscrete([2, 4])
    inputs = np.full((2000, 6), FLOAT32_MIN)
    actions = evaluate(lambda x, s: MultiCategorical(x, space).sample(s), inputs, np.int32([0, 1]))
    assert set(actions[:, 0]) == {0, 1} and set(actions[:, 1]) == {0, 1, 2, 3}


def test_logits_have_one_row_per_choice(evaluate):
    inputs = np.arange(10).reshape(2, 5)
    logits = evaluate(lambda x: MultiCategorical(x, MultiDiscrete([2, 3])).logits, inputs)
    np.testing.assert_array_equal(
        logits, [[[0, 1, -np.inf], [2, 3, 4]], [[5, 6, -np.inf], [7, 8, 9]]]
    )


def test_number_of_ops_does_not_grow_with_the_number_of_choices():
    def ops(nvec):
        with tf.Graph().as_default() as graph:
            space = MultiDiscrete(nvec)
            p = MultiCategorical(tf.zeros([1, sum(nvec)]), space)
            p.log_prob(p.sample([1, 2]))
            return len(graph.get_operations())

    assert ops([2, 3]) == ops([2, 3] * 20)


@pytest.mark.parametrize(
    "family, space, message",
    [
        (Categorical, MultiDiscrete([2]), "Categorical expects a Discrete space, got MultiDiscr"),
        (MultiCategorical, Discrete(2), "expects a MultiDiscrete or an integer Box, got Discrete"),
        (MultiCategorical, Box(0, 1, (2,)), "expects a MultiDiscrete or an integer Box, got Box"),
        (MultiCategorical, Box(0, 255, (84, 84), np.uint8), "at most 4096 .* needs 1806336"),
        (MultiCategorical, Box(-(2**62), 2**62, (1,), np.int64), "at most 4096"),
    ],
)
def test_spaces_that_do_not_fit_are_refused(family, space, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        family(tf.zeros([1, 2]), space)


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete([3])], ids=str)
def test_temperature_divides_the_logits(evaluate, space):
    # Logits (0, 2, 4) at temperature 2 are (0, 1, 2).
    hot, plain = distribution_for(space, None, {"temperature": 2.0}), distribution_for(space)
    actions = np.array([2]).reshape(1, *space.shape)
    logp, expected = evaluate(
        lambda x: (hot(x).log_prob(actions), plain(x / 2.0).log_prob(actions)), [[0.0, 2.0, 4.0]]
    )
    np.testing.assert_allclose(logp, [2 - np.log(1 + np.e + np.e**2)], rtol=1e-6)
    np.testing.assert_array_equal(logp, expected)


def test_masked_choices_stay_masked_at_the_highest_temperature(evaluate):
    distribution = distribution_for(Discrete(3), None, {"temperature": 1e4})
    logits = np.tile([3.0, MASKED_LOGIT, -5.0], (10000, 1))
    actions, entropy = evaluate(
        lambda x: (distribution(x).sample(tf.constant([0, 1])), distribution(x).entropy()), logits
    )
    assert set(actions) == {0, 2}
    np.testing.assert_allclose(entropy, np.log(2), rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), 1e5])
def test_bad_temperatures_are_refused(temperature):
    distribution = distribution_for(Discrete(3), None, {"temperature": temperature})
    with tf.Graph().as_default(), pytest.raises(ValueError, match="`temperature`: expected a pos"):
        distribution(tf.zeros([1, 3]))
