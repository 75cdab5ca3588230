"""What is compiled is compiled once."""

import os
import subprocess
import sys
from pathlib import Path

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


LEARNING = """
import hashlib
from small_policies import ppo_batch, small_policy
with small_policy(sgd_minibatch_size=16, train_batch_size=64, jit_compile=True) as made:
    made.load_batch_into_buffer(ppo_batch(64))
    made.learn_on_buffer(2)
    weights = b"".join(value.tobytes() for value in made.get_weights().values())
print(hashlib.sha256(weights).hexdigest())
"""


@pytest.mark.slow
def test_what_xla_compiled_can_be_kept_for_the_next_process(tmp_path):
    kept = tmp_path / "kept"

    def learn(flags):
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        environment = {**os.environ, "PYTHONPATH": path, "TF_XLA_FLAGS": flags}
        command = [sys.executable, "-c", LEARNING]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return done.stdout

    def files():
        return {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}

    flags = f"--tf_xla_persistent_cache_directory={kept}"
    learned = learn(flags)
    written = files()
    assert len(written) == 1
    assert learn(flags) == learn("") == learned
    assert files() == written
