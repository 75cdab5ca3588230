"""Batches on the devices: how rows are dealt, counted and shuffled."""

import numpy as np
import pytest
import tensorflow as tf
from aligned_arrays import aligned

from tfpolicy.graph.buffer import DeviceBuffer, epoch_permutations
from tfpolicy.graph.session import GraphSession

SPECS = [tf.TensorSpec([2], tf.float32), tf.TensorSpec([None], tf.int64)]


class Loaded:
    """A buffer on some CPU devices, whose shares can be read."""

    def __init__(self, num_devices):
        devices = [None] if num_devices == 1 else [f"/CPU:{i}" for i in range(num_devices)]
        self.session = GraphSession(num_devices)
        with self.session.building():
            self.buffer = DeviceBuffer(self.session, devices, SPECS, "buffer")
            self.session.initialize(self.buffer.variables)
            self._reads = [
                self.session.callable([], self.buffer.read(index)) for index in range(num_devices)
            ]
        self.session.finalize()

    def load(self, rows, width=3, counts=None):
        leaves = [
            np.arange(rows * 2, dtype=np.float32).reshape(rows, 2),
            np.arange(rows * width).reshape(rows, width),
        ]
        self.buffer.load(leaves, np.ones(rows, int) if counts is None else np.array(counts))
        return leaves

    def shares(self):
        return [read() for read in self._reads]


@pytest.fixture(scope="module")
def loaded():
    made = {number: Loaded(number) for number in (1, 2, 3)}
    yield made
    for each in made.values():
        each.session.close()


def test_a_new_buffer_is_empty():
    made = Loaded(2)
    assert (made.buffer.num_units, made.buffer.num_rows_dropped) == (0, 0)
    assert [[len(leaf) for leaf in share] for share in made.shares()] == [[0, 0], [0, 0]]
    made.session.close()


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("rows", [3, 7, 12])
def test_units_are_dealt_in_stripes_and_the_rest_is_dropped(loaded, number, rows):
    made = loaded[number]
    leaves = made.load(rows)
    kept = rows - rows % number
    assert made.buffer.num_units == rows // number
    assert made.buffer.num_rows_dropped == rows % number
    for index, share in enumerate(made.shares()):
        for found, leaf in zip(share, leaves, strict=True):
            np.testing.assert_array_equal(found, leaf[index:kept:number])
            assert found.dtype == leaf.dtype


def test_what_all_devices_hold_at_an_offset_are_neighbouring_rows(loaded):
    leaves = loaded[3].load(9)
    at_offset = np.stack([share[0] for share in loaded[3].shares()], axis=1)
    np.testing.assert_array_equal(at_offset.reshape(9, 2), leaves[0])


def test_real_rows_of_units_are_counted_by_offset_and_where_dropped(loaded):
    made = loaded[2]
    made.load(7, counts=[4, 2, 5, 1, 3, 3, 2])
    np.testing.assert_array_equal(made.buffer.unit_rows, [6, 6, 6])
    assert made.buffer.num_rows_dropped == 2


def test_a_load_replaces_what_was_there_whatever_its_size_and_width(loaded):
    made = loaded[2]
    for rows, width in ((8, 3), (2, 5), (31, 1)):
        leaves = made.load(rows, width)
        kept = rows - rows % 2
        np.testing.assert_array_equal(made.shares()[1][1], leaves[1][1:kept:2])


def test_fewer_units_than_devices_are_refused_and_change_nothing(loaded):
    made = loaded[3]
    made.load(6)
    before = made.shares()
    with pytest.raises(ValueError, match="at least one row .* each of the 3 towers, got 2"):
        made.load(2)
    tf.nest.map_structure(np.testing.assert_array_equal, made.shares(), before)
    assert made.buffer.num_units == 2


@pytest.mark.parametrize("number", [1, 2])
def test_changing_arrays_after_they_were_loaded_does_not_change_the_buffer(loaded, number):
    made = loaded[number]
    leaves = [aligned(np.ones((64, 2), np.float32)), aligned(np.ones((64, 3), np.int64))]
    made.buffer.load(leaves, np.ones(64, int))
    for leaf in leaves:
        leaf[:] = 7
    for share in made.shares():
        assert all((leaf == 1).all() for leaf in share)


@pytest.mark.parametrize("number", [1, 2])
def test_what_belongs_to_the_whole_batch_is_kept_beside_it(number):
    devices = [None] if number == 1 else [f"/CPU:{i}" for i in range(number)]
    frozen_specs = [tf.TensorSpec([], tf.int64), tf.TensorSpec([2], tf.float64)]
    session = GraphSession(number)
    with session.building():
        buffer = DeviceBuffer(session, devices, SPECS, "buffer", frozen_specs)
        session.initialize(buffer.variables)
        read = session.callable([], buffer.read_frozen())
    session.finalize()
    count, mean = read()
    assert count == 0 and mean.tolist() == [0.0, 0.0]
    leaves = [np.ones((4, 2), np.float32), np.ones((4, 3), np.int64)]
    values = aligned(np.array([1.5, 2.5] * 32))[:2]
    buffer.load(leaves, np.ones(4, int), [np.int64(2**40), values])
    values[:] = 7.0
    count, mean = read()
    assert count == 2**40 and mean.tolist() == [1.5, 2.5]
    session.close()


def test_buffers_are_no_weights_and_no_trainable_variables():
    made = Loaded(2)
    keys = tf.compat.v1.GraphKeys
    for key in (keys.GLOBAL_VARIABLES, keys.TRAINABLE_VARIABLES):
        assert made.session.graph.get_collection(key) == []
    made.session.close()


def permutations(seed, num_epochs, num_units):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(epoch_permutations(seed, num_epochs, num_units))


def test_every_epoch_has_an_order_of_its_own_that_the_seed_decides():
    orders = permutations([1, 2], 4, 50)
    assert orders.shape == (4, 50) and orders.dtype == np.int32
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(50), (4, 1)))
    assert len({tuple(order) for order in orders}) == 4
    np.testing.assert_array_equal(permutations([1, 2], 4, 50), orders)
    assert (permutations([1, 3], 4, 50) != orders).any()


def test_every_unit_comes_up_first_equally_often():
    first = permutations([5, 0], 4000, 8)[:, 0]
    # Expected 500 each; five standard deviations are 105.
    assert np.abs(np.bincount(first, minlength=8) - 500).max() < 105
