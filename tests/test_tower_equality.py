"""Any number of towers makes the update of one, and says what it left out."""

import collections
import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, THREE, TINY, Regression, ppo_batch, regression_batch, small_policy

from tfpolicy.callbacks import DefaultCallbacks
from tfpolicy.graph.buffer import epoch_permutations
from tfpolicy.graph.seeds import SeedStream
from tfpolicy.models import ModelOutput

MINIBATCH = 12
ROWS = 120
CLIP = 0.5


class Towers:
    """Policies alike but for their number of towers, all reset to the same state."""

    def __init__(self, make):
        self._make = make
        self._made = {}
        self._start = None

    def __call__(self, number):
        if number not in self._made:
            self._made[number] = self._make(num_gpus=number, fake_gpus=True)
        policy = self._made[number]
        self._start = self._start or policy.get_state()
        policy.set_state(self._start)
        return policy

    def close(self):
        for policy in self._made.values():
            policy.close()


class Watching(DefaultCallbacks):
    """Counts rows and, if told to, changes what is learned."""

    zeroes_targets = False

    def on_learn_on_batch(self, *, policy, train_batch, result, **kwargs):
        result["rows"] = train_batch.count
        if self.zeroes_targets:
            train_batch["value_targets"][:] = 0.0


def ppo(**config):
    config = {
        "callbacks": Watching,
        "train_batch_size": ROWS,
        "sgd_minibatch_size": MINIBATCH,
        "grad_clip": CLIP,
        "num_multi_gpu_tower_stacks": 2,
        **config,
    }
    return small_policy("ppo", **config)


@pytest.fixture(scope="module")
def towers():
    made = Towers(ppo)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain():
    """One tower that takes advantages as they are."""
    with ppo(standardize_advantages=False) as policy:
        yield policy


@pytest.fixture(scope="module")
def summing_towers():
    def make(**config):
        config = {
            "model": TINY,
            "seed": 1,
            "reduction": "sum",
            "lr": 0.01,
            "train_batch_size": 60,
            **config,
        }
        return Regression(OBS, THREE, config)

    made = Towers(make)
    yield made
    made.close()


def assert_same_weights(policy, weights, atol=1e-6):
    found = policy.get_weights()
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        np.testing.assert_allclose(found[name], weight, rtol=0, atol=atol, err_msg=name)


def assert_same_result(found, expected):
    """Of learning: the same layout, and the same numbers to float tolerance."""
    assert found.keys() == expected.keys()
    assert found["learner_stats"].keys() == expected["learner_stats"].keys()
    assert all(type(value) is float for value in found["learner_stats"].values())
    assert found["learner_stats"] == pytest.approx(expected["learner_stats"], rel=1e-4, abs=1e-5)
    assert found["num_rows"] == expected["num_rows"]
    assert found["num_rows_dropped"] == expected["num_rows_dropped"]


def loop_over_loaded(policy, number):
    """Learns from each full minibatch of the loaded batch in turn."""
    size = MINIBATCH // number
    loaded = policy.get_num_samples_loaded_into_buffer()
    offsets = range(0, loaded - size + 1, size)
    return [policy.learn_on_loaded_batch(offset) for offset in offsets]


def assert_means(result, looped):
    """Statistics are means over minibatches; the explained variance is made of other means."""
    stats = [r["learner_stats"] for r in looped]
    names = stats[0].keys() - {"vf_explained_var"}
    means = {name: np.mean([each[name] for each in stats]) for name in names}
    found = {name: result["learner_stats"][name] for name in names}
    assert found == pytest.approx(means, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_ten_minibatches_of_several_towers_equal_those_of_one(towers, number):  # c10, j1, j7
    results = {}
    for count in (1, number):
        policy = towers(count)
        assert policy.load_batch_into_buffer(ppo_batch(ROWS)) == ROWS // count
        results[count] = loop_over_loaded(policy, count)
    assert len(results[1]) == 10
    for one, several in zip(results[1], results[number], strict=True):
        assert_same_result(several, one)
        assert several["num_rows"] == MINIBATCH
        # Clipping was at work.
        assert one["learner_stats"]["grad_gnorm"] > 2 * CLIP
    assert_same_weights(towers._made[number], towers._made[1].get_weights())


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 30])
def test_learning_from_any_number_of_rows_is_the_same_for_any_number_of_towers(
    towers, number, rows
):  # j2
    batch = ppo_batch(rows, seed=rows)
    expected = [towers(1).learn_on_batch(batch), towers._made[1].learn_on_batch(batch)]
    weights = towers._made[1].get_weights()
    policy = towers(number)
    found = [policy.learn_on_batch(batch) for _ in range(2)]
    for one, several in zip(expected, found, strict=True):
        assert_same_result(several, one)
        assert (several["num_rows"], several["num_rows_dropped"]) == (rows, 0)
    assert_same_weights(policy, weights)


@pytest.mark.parametrize("number", [1, 3])
def test_learning_is_computing_and_applying_gradients_in_turn(towers, number):  # j2
    batches = [ppo_batch(rows, seed=rows) for rows in (10, 2)]
    policy = towers(number)
    learned = [policy.learn_on_batch(batch) for batch in batches]
    weights = policy.get_weights()
    policy = towers(number)
    for batch, result in zip(batches, learned, strict=True):
        gradients, computed = policy.compute_gradients(batch)
        assert_same_result(computed, result)
        policy.apply_gradients(gradients)
    assert_same_weights(policy, weights, atol=1e-7)


@pytest.mark.parametrize("number", [1, 2])
def test_gradients_are_clipped_once_by_their_norm_over_all_towers(towers, number):  # c7, j1
    gradients, result = towers(number).compute_gradients(ppo_batch(40))
    norm = np.sqrt(sum(np.sum(np.square(gradient)) for gradient in gradients))
    assert result["learner_stats"]["grad_gnorm"] > 2 * CLIP
    assert norm == pytest.approx(CLIP, rel=1e-5)


def test_gradients_below_the_limit_are_left_alone(summing_towers):
    # No `grad_clip`: the reported norm is that of the gradients themselves.
    gradients, result = summing_towers(3).compute_gradients(regression_batch(20))
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in gradients if g is not None))
    assert result["learner_stats"]["grad_gnorm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_a_summed_loss_is_summed_over_the_towers(summing_towers, rows):  # c10
    batch = regression_batch(rows, seed=rows)
    expected = summing_towers(1).learn_on_batch(batch)
    weights = summing_towers._made[1].get_weights()
    assert_same_result(summing_towers(3).learn_on_batch(batch), expected)
    assert_same_weights(summing_towers._made[3], weights)
    assert expected["learner_stats"]["total_loss"] == pytest.approx(
        rows * expected["learner_stats"]["vf_loss"], rel=1e-5
    )


def test_twice_the_rows_have_twice_the_summed_gradient(summing_towers):
    batch = regression_batch(3)
    twice = {name: np.concatenate([column, column]) for name, column in batch.items()}
    once, _ = summing_towers(3).compute_gradients(batch)
    doubled, _ = summing_towers(3).compute_gradients(twice)
    for first, second in zip(once, doubled, strict=True):
        if first is not None:
            np.testing.assert_allclose(second, 2 * first, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("number", [1, 3])
def test_missing_gradients_stay_aligned_with_their_variables(summing_towers, number):
    policy = summing_towers(number)
    before = policy.get_weights()
    gradients, _ = policy.compute_gradients(regression_batch(9))
    depends = {name: "value" in name for name in before}
    names = list(policy.trainable_names)
    assert {name: g is not None for name, g in zip(names, gradients, strict=True)} == depends
    policy.apply_gradients(gradients)
    after = policy.get_weights()
    for name, gradient in zip(names, gradients, strict=True):
        # Plain gradient descent with a rate of 0.01.
        expected = before[name] if gradient is None else before[name] - 0.01 * gradient
        np.testing.assert_allclose(after[name], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("number", [1, 2])
def test_learning_on_the_buffer_is_the_loop_over_the_same_permutation(towers, number):
    batch, epochs = ppo_batch(62), 3
    policy = towers(number)
    stream = SeedStream(0, "reproduced")
    stream.set_state(policy.get_state()["random"]["shuffling"])
    num_units = policy.load_batch_into_buffer(batch)
    result = policy.learn_on_buffer(epochs)
    weights = policy.get_weights()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        orders = session.run(epoch_permutations(stream.next(), epochs, num_units))

    policy = towers(number)
    for order in orders:
        # Row r lies on device r % n at offset r // n; every device takes the same offsets.
        rows = (order[:, None] * number + np.arange(number)).ravel()
        policy.load_batch_into_buffer({name: column[rows] for name, column in batch.items()})
        looped = loop_over_loaded(policy, number)
    assert_same_weights(policy, weights)
    assert_means(result, looped)
    # 5 minibatches of 12, and the rest of the last epoch.
    assert (result["num_rows"], result["num_rows_dropped"]) == (60, 2)


@pytest.mark.parametrize("number", [1, 2])
def test_without_shuffling_the_buffer_is_learned_from_in_order(towers, number):
    policy = towers(number)
    policy.load_batch_into_buffer(ppo_batch(62))
    result = policy.learn_on_buffer(num_sgd_iter=2, shuffle=False)
    weights = policy.get_weights()
    policy = towers(number)
    loop_over_loaded(policy, number)
    looped = loop_over_loaded(policy, number)
    assert_same_weights(policy, weights)
    assert_means(result, looped)


def test_every_call_shuffles_anew_and_a_restored_policy_shuffles_alike(towers):
    policy = towers(1)
    policy.load_batch_into_buffer(ppo_batch(60))
    policy.learn_on_buffer(1)
    middle = policy.get_state()
    policy.learn_on_buffer(1)
    second = policy.get_weights()
    policy.set_state(middle)
    policy.learn_on_buffer(1)
    assert_same_weights(policy, second, atol=0)
    # The first permutation from where the second one started.
    policy.set_state({**middle, "random": towers._start["random"]})
    policy.learn_on_buffer(1)
    assert any(np.abs(second[name] - w).max() > 1e-5 for name, w in policy.get_weights().items())


@pytest.mark.parametrize("number", [1, 2])
def test_compiled_towers_make_the_same_updates(number):
    def learn(**config):
        config = {"train_batch_size": 24, "sgd_minibatch_size": 8, "grad_clip": CLIP, **config}
        with Regression(OBS, THREE, {"model": TINY, "seed": 1, "lr": 0.3, **config}) as policy:
            policy.load_batch_into_buffer(regression_batch(24))
            results = [
                policy.learn_on_buffer(2),
                policy.learn_on_loaded_batch(8 // (config.get("num_gpus") or 1)),
                policy.learn_on_batch(regression_batch(5)),
            ]
            return results, policy.get_weights()

    towers = {"num_gpus": number, "fake_gpus": True}
    expected, weights = learn(jit_compile=False, **towers)
    assert all(result["learner_stats"]["grad_gnorm"] > CLIP for result in expected)
    found, compiled_weights = learn(jit_compile=True, **towers)
    for compiled, interpreted in zip(found, expected, strict=True):
        assert_same_result(compiled, interpreted)
    for name, weight in weights.items():
        np.testing.assert_allclose(compiled_weights[name], weight, rtol=0, atol=1e-6)


def test_compiled_ppo_makes_the_same_updates():
    one = {"num_gpus": 1, "fake_gpus": True}
    with ppo(jit_compile=False, **one) as policy, ppo(jit_compile=True, **one) as compiled:
        policy.load_batch_into_buffer(ppo_batch(60))
        expected = policy.learn_on_buffer(2)
        weights = policy.get_weights()
        compiled.load_batch_into_buffer(ppo_batch(60))
        assert_same_result(compiled.learn_on_buffer(2), expected)
        assert_same_weights(compiled, weights)


@pytest.mark.parametrize("number", [0, 2])
def test_a_model_that_names_a_device_can_be_compiled(number):
    weights = None
    for compiled in (False, True):
        config = {"jit_compile": compiled, "num_gpus": number, "fake_gpus": True}
        with small_policy("ppo", model={"custom_model": on_the_cpu}, **config) as policy:
            policy.load_batch_into_buffer(ppo_batch(ROWS))
            policy.learn_on_buffer(1, shuffle=False)
            weights = weights or policy.get_weights()
            assert_same_weights(policy, weights, atol=1e-5)


def on_the_cpu(columns):
    """A network whose matrix product, bias and activation TensorFlow would fuse on a CPU."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        value = rng.normal(0, 0.5, shape).astype(np.float32)
        return tf.compat.v1.get_variable(name, initializer=value, use_resource=True)

    with tf.device("/CPU:0"):
        hidden = tf.nn.bias_add(columns["obs"] @ weight("kernel", 4, 8), weight("bias", 8))
        outputs = tf.nn.relu(hidden) @ weight("out", 8, 4)
    return ModelOutput(outputs[:, :-1], outputs[:, -1])


@pytest.mark.parametrize("network", [{}, {"use_lstm": True, "lstm_cell_size": 8}])
def test_compiling_and_towers_leave_acting_as_it_is(network):
    obs = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
    kernels, acted = [], []
    for learning in ({}, {"jit_compile": True}, {"jit_compile": True, "num_gpus": 2}):
        model = {**TINY, **network}
        defaults = {"jit_compile": False, "num_gpus": 0, "fake_gpus": True}
        with small_policy("ppo", model=model, **{**defaults, **learning}) as policy:
            states = [np.stack([state] * 5) for state in policy.get_initial_state()]
            actions, after, extras = policy.compute_actions(obs, states, explore=False)
            acted.append([actions, *after, *extras.values()])
            kernels.append(kernels_of_acting(policy, [obs, *states]))
    assert kernels[0] == kernels[1] == kernels[2]
    for others in acted[1:]:
        for expected, found in zip(acted[0], others, strict=True):
            np.testing.assert_array_equal(found, expected)


def kernels_of_acting(policy, feeds):
    """How many of which kind run, after all that TensorFlow makes of the graph."""
    actor = policy._actor
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    told = tf.compat.v1.RunMetadata()
    fed = dict(zip(actor.feeds, feeds, strict=True))
    policy.get_session().run(actor.greedy_fetches, fed, options=options, run_metadata=told)
    return collections.Counter(node.op for graph in told.partition_graphs for node in graph.node)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_rows_left_over_by_the_towers_are_dropped_and_counted(towers, number):  # c17, j4
    policy = towers(number)
    kept = 50 // number
    assert policy.load_batch_into_buffer(ppo_batch(50)) == kept
    assert policy.get_num_samples_loaded_into_buffer() == kept
    result = policy.learn_on_loaded_batch()
    assert (result["num_rows"], result["num_rows_dropped"]) == (MINIBATCH, 50 % number)
    result = policy.learn_on_buffer(2)
    learned = kept // (MINIBATCH // number) * MINIBATCH
    assert (result["num_rows"], result["num_rows_dropped"]) == (learned, 50 - learned)


@pytest.mark.parametrize("number", [1, 3])
def test_what_is_loaded_is_what_every_device_learns_from_at_an_offset(towers, plain, number):
    start = plain.get_state()
    # Rows 24 to 35 are those of the third minibatch, whichever devices they lie on.
    batch = ppo_batch(50)
    part = {name: column[24:36] for name, column in batch.items()}
    policy = towers(number)
    policy.load_batch_into_buffer(batch)
    found = policy.learn_on_loaded_batch(24 // number)
    advantages = batch["advantages"]
    part["advantages"] = ((part["advantages"] - advantages.mean()) / advantages.std()).astype("f4")
    expected = plain.learn_on_batch(part)
    plain.set_state(start)
    assert found["learner_stats"] == pytest.approx(expected["learner_stats"], rel=1e-4, abs=1e-5)


def test_a_batch_smaller_than_a_minibatch_is_one_minibatch(towers):  # c5
    for number in (1, 2):
        policy = towers(number)
        assert policy.load_batch_into_buffer(ppo_batch(5)) == 5 // number
        for result in (policy.learn_on_loaded_batch(), policy.learn_on_buffer(1)):
            assert (result["num_rows"], result["num_rows_dropped"]) == (5 - 5 % number, 5 % number)


def test_the_last_minibatch_of_a_loop_has_what_is_left(towers):
    policy = towers(2)
    policy.load_batch_into_buffer(ppo_batch(20))
    assert policy.learn_on_loaded_batch(6)["num_rows"] == 8
    assert policy.learn_on_loaded_batch(9)["num_rows"] == 2


def test_fewer_rows_than_towers_cannot_be_loaded_and_leave_the_buffer_as_it_was(towers):
    policy = towers(3)
    policy.load_batch_into_buffer(ppo_batch(30))
    with pytest.raises(ValueError, match="at least one row .* each of the 3 towers, got 2"):
        policy.load_batch_into_buffer(ppo_batch(2))
    assert policy.get_num_samples_loaded_into_buffer() == 10
    assert policy.learn_on_loaded_batch(6)["num_rows"] == 12


@pytest.mark.parametrize("number", [1, 2])
def test_buffers_hold_batches_of_their_own(towers, number):
    batches, results = [ppo_batch(24, seed) for seed in (1, 2)], []
    for index, batch in enumerate(batches):
        policy = towers(number)
        policy.load_batch_into_buffer(batch, buffer_index=index)
        results.append(policy.learn_on_buffer(1, shuffle=False, buffer_index=index))
    policy = towers(number)
    for index, batch in enumerate(batches):
        policy.load_batch_into_buffer(batch, buffer_index=index)
    for index, expected in enumerate(results):
        policy.set_state(towers._start)
        found = policy.learn_on_buffer(1, shuffle=False, buffer_index=index)
        assert found["learner_stats"] == expected["learner_stats"]


@pytest.mark.parametrize("number", [1, 2])
def test_the_next_batch_may_be_loaded_while_one_is_learned_from(towers, number):
    batches = [ppo_batch(240, seed) for seed in (1, 2)]

    def learned(load):
        policy = towers(number)
        policy.load_batch_into_buffer(batches[0], buffer_index=0)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            loading = load(pool, policy)
            first = policy.learn_on_buffer(20, buffer_index=0)
            concurrent.futures.wait([loading])
            assert loading.result() == 240 // number
        return first, policy.learn_on_buffer(2, buffer_index=1), policy.get_weights()

    def before(pool, policy):
        loading = pool.submit(policy.load_batch_into_buffer, batches[1], 1)
        concurrent.futures.wait([loading])
        return loading

    def meanwhile(pool, policy):
        return pool.submit(policy.load_batch_into_buffer, batches[1], 1)

    *expected, weights = learned(before)
    *found, found_weights = learned(meanwhile)
    assert found == expected
    for name, value in weights.items():
        np.testing.assert_array_equal(found_weights[name], value)


def test_a_loaded_batch_is_replaced_by_a_longer_and_by_a_shorter_one(towers):
    policy = towers(2)
    for rows in (24, 120, 14):
        assert policy.load_batch_into_buffer(ppo_batch(rows)) == rows // 2
        assert policy.learn_on_buffer(1)["num_rows"] == rows // MINIBATCH * MINIBATCH


@pytest.mark.parametrize("number", [1, 2])
def test_callbacks_get_a_copy_of_what_is_learned_from_also_when_it_is_loaded(
    towers, number, monkeypatch
):
    batch = ppo_batch(24)
    targets = batch["value_targets"].copy()
    expected = towers(1).learn_on_batch({**batch, "value_targets": np.zeros(24, np.float32)})
    policy = towers(number)
    monkeypatch.setattr(Watching, "zeroes_targets", True)
    found = policy.learn_on_batch(batch)
    policy.load_batch_into_buffer(batch)
    results = [found, policy.learn_on_loaded_batch(), policy.learn_on_buffer(1)]
    assert [result["custom_metrics"] for result in results] == [{"rows": 24}] * 3
    np.testing.assert_array_equal(batch["value_targets"], targets)
    assert_same_result(found, expected)


def test_the_divisibility_of_batches_is_the_number_of_towers(towers):
    assert [towers(number).batch_divisibility_req for number in (1, 2, 3)] == [1, 2, 3]


def test_a_minibatch_needs_a_row_for_every_tower():
    with pytest.raises(ValueError, match="each of the 4 towers .*, got 3"):
        ppo(sgd_minibatch_size=3, num_gpus=4, fake_gpus=True)


def test_more_gpus_than_there_are_is_one_clear_error():  # c14
    present = len(tf.config.list_physical_devices("GPU"))
    with pytest.raises(ValueError, match=f"TensorFlow sees {present} .*`fake_gpus=True`"):
        ppo(num_gpus=present + 1, fake_gpus=False)
