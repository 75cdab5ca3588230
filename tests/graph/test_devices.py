"""Where towers are."""

import pytest
import tensorflow as tf

from tfpolicy.graph.devices import num_gpus_present, tower_devices


@pytest.mark.parametrize(
    ("num_gpus", "fake_gpus", "devices"),
    [
        (0, False, [None]),
        (0, True, [None]),
        (1, True, [None]),
        (2, True, ["/CPU:0", "/CPU:1"]),
        (4, True, ["/CPU:0", "/CPU:1", "/CPU:2", "/CPU:3"]),
    ],
)
def test_towers_without_gpus_are_on_the_cpu(num_gpus, fake_gpus, devices):
    assert tower_devices(num_gpus, fake_gpus) == devices


def test_every_gpu_that_is_there_can_have_a_tower():
    present = num_gpus_present()
    assert present == len(tf.config.list_physical_devices("GPU"))
    for number in range(1, present + 1):
        assert tower_devices(number, False) == [f"/GPU:{index}" for index in range(number)]


def test_more_gpus_than_there_are_is_one_error_that_says_what_else_to_do():  # c14
    present = num_gpus_present()
    with pytest.raises(ValueError) as caught:
        tower_devices(present + 2, False)
    text = str(caught.value)
    assert f"`num_gpus` is {present + 2}" in text and f"TensorFlow sees {present}" in text
    assert "`fake_gpus=True`" in text
