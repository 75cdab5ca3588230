"""Arrays laid out so that TensorFlow would rather keep their memory than copy it."""

import numpy as np


def aligned(array, alignment=64):
    """A copy that starts at a multiple of `alignment` bytes."""
    memory = np.empty(array.nbytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    copied = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied
