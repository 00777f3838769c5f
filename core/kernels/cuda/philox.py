"""The CUDA twin of philox.py, whose random bits are written once for both."""

import numpy as np

from ..philox import random_bits
from .placed import on_device
from .target import kernel
from .twins import twin


@kernel
def philox_kernel(seed, position, choice, result):
    """One thread."""
    result[0] = random_bits(seed, position, choice)


def philox_once(stream, seed, position, choice):
    """The bits, as an array [1] on the device."""
    result = on_device(np.zeros(1, np.uint64))
    philox_kernel[1, 1, stream](np.int64(seed), position, choice, result)
    return result


twin("philox", philox_once)
