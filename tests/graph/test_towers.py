"""One loss per device, and what all of them are together."""

import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.config import ModelConfig
from tfpolicy.graph.packing import Packing
from tfpolicy.graph.session import GraphSession
from tfpolicy.graph.towers import FixedColumns, LossOutput, Tower, TowerOutput, TrainBatch, combine
from tfpolicy.models import Model, ModelOutput


class Linear(Model):
    """x·w, and a bias that is never used."""

    def __init__(self, value):
        super().__init__(None, None, 1, ModelConfig(), 0)
        self.unused = tf.compat.v1.get_variable("unused", initializer=[0.0], use_resource=True)
        self.w = tf.compat.v1.get_variable("w", initializer=np.float32(value), use_resource=True)

    def __call__(self, columns):
        outputs = tf.linalg.matvec(columns["x"], self.w)
        return ModelOutput(outputs[:, None], None)


def evaluate(*tensors):
    with tf.compat.v1.Session() as session:
        return session.run(tensors)


def outputs(values):
    return [
        TowerOutput((tf.constant(gradient), tf.constant([gradient])), tf.constant(stats))
        for gradient, stats in values
    ]


# Gradients 1, 2, 4 and (loss, statistic) of three towers with 1, 3 and 4 rows.
THREE = [(1.0, [10.0, 1.0]), (2.0, [20.0, 2.0]), (4.0, [40.0, 4.0])]


def combined(values, counts, reduction):
    with tf.Graph().as_default():
        total = combine(outputs(values), [tf.constant(count) for count in counts], reduction)
        (first, second), stats = evaluate(list(total.gradients), total.stats)
    assert second == [first]
    return float(first), stats.tolist()


def test_means_are_weighted_by_rows():
    # (1·1 + 3·2 + 4·4) / 8, and so on.
    assert combined(THREE, [1, 3, 4], "mean") == (2.875, [28.75, 2.875])


def test_sums_are_added_and_their_statistics_are_still_means():
    assert combined(THREE, [1, 3, 4], "sum") == (7.0, [70.0, 2.875])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_tower_without_rows_does_not_count(reduction):
    expected = combined(THREE[:2], [1, 3], reduction)
    assert combined(THREE, [1, 3, 0], reduction) == expected


def test_one_tower_is_left_as_it_is():
    with tf.Graph().as_default():
        (only,) = outputs(THREE[:1])
        assert combine([only], [tf.constant(3)], "mean") is only


@pytest.fixture
def machine():
    graph_session = GraphSession(2)
    with graph_session.building():
        graph_session.model = Linear([2.0, -1.0])
        graph_session.variables = [graph_session.model.unused, graph_session.model.w]
    graph_session.initialize(graph_session.variables)
    yield graph_session
    graph_session.close()


def trained(machine, frozen=()):
    return [v for v in machine.variables if all(v is not other for other in frozen)]


def tower(machine, loss, device=None, gradients=tf.gradients, frozen=(), **columns):
    specs = {"x": tf.TensorSpec([None, 2], tf.float32), **columns}
    variables = trained(machine, frozen)
    return Tower(
        device, machine.model, Packing(variables, variables), loss, gradients, specs, None,
        compiles_itself=True, frozen=frozen,
    )  # fmt: skip


def run(machine, made, leaves, frozen_values=(), frozen=(), rows=None, compiled=False):
    """The gradients of the trained variables, zeros where there is none, and the statistics."""
    variables = trained(machine, frozen)
    packing = Packing(variables, variables)
    with machine.building():
        weights = packing.pack([variable.read_value() for variable in variables])
        leaves = [tf.constant(leaf) for leaf in leaves]
        frozen_values = [tf.constant(value) for value in frozen_values]
        rows = None if rows is None else tf.constant(rows)
        found = made(weights, {}, leaves, frozen_values, rows, compiled=compiled)
        gradients = packing.unpack(found.gradients)
    return machine.session.run([gradients, found.stats])


X = np.float32([[1, 2], [3, 4]])


def mean_output(machine):
    def loss(batch):
        mean = batch.mean(machine.model(batch).dist_inputs[:, 0])
        return LossOutput(mean, {"twice": 2.0 * mean})

    return loss


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("device", [None, "/CPU:1"])
def test_a_tower_gives_gradients_of_what_the_loss_depends_on(machine, device, compiled):
    made = tower(machine, mean_output(machine), device)
    (unused, gradient), stats = run(machine, made, [X], compiled=compiled)
    assert made.has_gradient == (False, True) and made.stat_names == ("total_loss", "twice")
    # x·w is 0 and 2.
    np.testing.assert_allclose(gradient, X.mean(axis=0))
    np.testing.assert_allclose(stats, [1, 2])
    assert unused.tolist() == [0.0]
    assert isinstance(machine.model.w, tf.Variable)


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_a_tower_takes_the_rows_that_it_is_told(machine, compiled):
    made = tower(machine, mean_output(machine))
    leaf = np.float32([[9, 9], [3, 4], [9, 9], [1, 2]])
    (_, gradient), stats = run(machine, made, [leaf], rows=np.int32([3, 1]), compiled=compiled)
    np.testing.assert_allclose(gradient, X.mean(axis=0))
    np.testing.assert_allclose(stats, [1, 2])


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("device", [None, "/CPU:1"])
def test_a_frozen_variable_is_read_as_what_is_handed_in_and_has_no_gradient(
    machine, device, compiled
):
    def loss(batch):
        outputs = machine.model(batch).dist_inputs[:, 0] + machine.model.unused
        return LossOutput(batch.mean(outputs), {})

    frozen = [machine.model.w]
    made = tower(machine, loss, device, frozen=frozen)
    (gradient,), stats = run(machine, made, [X], [[1.0, 10.0]], frozen, compiled=compiled)
    # x·(1, 10) is 21 and 43.
    assert gradient.tolist() == [1.0] and stats.tolist() == [32.0]
    assert made.has_gradient == (True,)
    assert isinstance(machine.model.w, tf.Variable)


def test_sparse_gradients_become_dense(machine):
    def loss(batch):
        return LossOutput(tf.reduce_sum(tf.gather(machine.model.w, batch["rows"])), {}, "sum")

    made = tower(machine, loss, rows=tf.TensorSpec([None], tf.int64))
    (_, gradient), _ = run(machine, made, [np.int64([1, 1, 1]), X])
    assert made.reduction == "sum"
    np.testing.assert_array_equal(gradient, [0, 3])


def test_a_loss_that_fails_leaves_the_model_with_its_variables(machine):
    def loss(batch):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(machine, tower(machine, loss), [X])
    assert isinstance(machine.model.w, tf.Variable)


def test_a_loss_may_make_its_own_gradients(machine):
    def gradients(loss, variables):
        return [None, 5.0 * tf.ones_like(variables[1])]

    made = tower(machine, lambda b: LossOutput(tf.constant(1.0), {}), gradients=gradients)
    (_, gradient), _ = run(machine, made, [X])
    np.testing.assert_array_equal(gradient, [5, 5])


def batch(max_seq_len=None, **columns):
    columns = FixedColumns({name: tf.constant(value) for name, value in columns.items()})
    return TrainBatch(columns, {}, max_seq_len)


def test_dones_are_the_union_of_both_kinds_of_ends():
    with tf.Graph().as_default():
        made = batch(terminateds=[True, False, False], truncateds=[False, True, False])
        (dones,) = evaluate(made["dones"])
        stored = batch(terminateds=[True], truncateds=[True], dones=[False])
        (kept,) = evaluate(stored["dones"])
    assert dones.tolist() == [True, True, False] and kept.tolist() == [False]


def test_a_column_that_was_not_found_to_be_read_is_named():
    with tf.Graph().as_default():
        made = batch(obs=[1.0], rewards=[2.0])
        assert list(made) == ["obs", "rewards"] and len(made) == 2
        with pytest.raises(KeyError, match="'reward'. Did you mean 'rewards'.*obs, rewards"):
            made["reward"]


def test_means_over_rows_leave_padding_out_whatever_it_holds():
    values = [1.0, 2.0, np.nan, 6.0, np.inf, np.nan]
    with tf.Graph().as_default():
        padded = batch(3, obs=np.zeros((6, 1), np.float32), seq_lens=np.int32([2, 1]))
        plain = batch(obs=np.zeros((3, 1), np.float32))
        assert plain.mask is None
        mask, mean, plain_mean = evaluate(
            padded.mask, padded.mean(tf.constant(values)), plain.mean(tf.constant([1.0, 2.0, 6.0]))
        )
    assert mask.tolist() == [True, True, False, True, False, False]
    assert mean == plain_mean == 3.0


def test_means_are_taken_of_what_has_rows():
    with tf.Graph().as_default():
        padded = batch(3, obs=np.zeros((6, 1), np.float32), seq_lens=np.int32([2, 1]))
        unknown = tf.compat.v1.placeholder_with_default(3.0, None)
        values = {
            "rows": tf.constant([1.0, 2.0, np.nan, 6.0, np.inf, np.nan]),
            "scalar": tf.constant(7.0),
            "of any rank": unknown,
            "counts": tf.constant([1, 1, 9, 4, 9, 9]),
        }
        (means,) = evaluate(padded.means(values))
        assert means == {"rows": 3.0, "scalar": 7.0, "of any rank": 3.0, "counts": 2.0}
        with pytest.raises(ValueError, match=r"statistic 'grid' must be .* got shape \(6, 2\)"):
            padded.means({"grid": tf.zeros([6, 2])})
