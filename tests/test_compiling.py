"""What is compiled is compiled once."""

import sys

import pytest
from small_policies import ppo_batch, recurrent_batch, recurrent_policy, small_policy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

ROWS = 64


def num_compiled():
    """How many pieces of code were made while this process ran: no file is mapped there."""
    with open("/proc/self/maps") as maps:
        return sum(" r-xp " in line and len(line.split()) < 6 for line in maps)


def policy(**config):
    return small_policy(sgd_minibatch_size=16, train_batch_size=ROWS, jit_compile=True, **config)


@pytest.mark.parametrize("towers", [1, 2])
def test_other_minibatches_and_batches_of_the_same_size_compile_nothing(towers):
    with policy(num_gpus=towers, fake_gpus=True) as made:
        made.load_batch_into_buffer(ppo_batch(ROWS))
        before = num_compiled()
        made.learn_on_buffer(2)
        made.learn_on_loaded_batch(0)
        compiled = num_compiled()
        assert compiled > before
        for offset in (8, 16):
            made.learn_on_loaded_batch(offset)
        made.load_batch_into_buffer(ppo_batch(ROWS, seed=1))
        for shuffle in (True, False):
            made.learn_on_buffer(2, shuffle=shuffle)
        made.set_coefficient("kl_coeff", 0.7)
        made.learn_on_loaded_batch(0)
        # A smaller minibatch at the end of the buffer is one of another size.
        assert num_compiled() == compiled
        made.learn_on_loaded_batch(ROWS // towers - 1)
        assert num_compiled() > compiled


def test_several_towers_compile_the_same_for_a_minibatch_and_for_all_epochs():
    with policy(num_gpus=2, fake_gpus=True) as made:
        made.load_batch_into_buffer(ppo_batch(ROWS))
        made.learn_on_loaded_batch(0)
        compiled = num_compiled()
        for num_epochs in (1, 3):
            made.learn_on_buffer(num_epochs)
        assert num_compiled() == compiled


def test_batches_of_other_numbers_of_sequences_compile_nothing():
    with recurrent_policy(sgd_minibatch_size=10, train_batch_size=40, jit_compile=True) as made:
        made.load_batch_into_buffer(recurrent_batch([5, 3, 5, 1]))
        made.learn_on_buffer(2)
        compiled = num_compiled()
        made.load_batch_into_buffer(recurrent_batch([2, 5, 5, 4, 5, 1]))
        made.learn_on_buffer(1)
        assert num_compiled() == compiled


def test_what_is_fed_is_never_compiled():
    with policy() as made:
        before = num_compiled()
        for rows in (3, 7):
            made.learn_on_batch(ppo_batch(rows))
            made.compute_gradients(ppo_batch(rows))
        assert num_compiled() == before
