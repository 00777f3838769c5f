"""Philox4x32-10 inside a kernel on a GPU."""

import numpy as np

from ..philox import M32, MULTIPLIER_0, MULTIPLIER_1, S32, WEYL_0, WEYL_1
from .placed import on_device
from .target import device, kernel
from .twins import twin

u64 = np.uint64


@device
def philox(seed, position, choice):
    """As core/kernels/philox.py has it."""
    key_0, key_1 = u64(seed) & M32, u64(seed) >> S32
    a, b, c, d = u64(position) & M32, u64(choice) & M32, u64(0), u64(0)
    for _ in range(10):
        p, q = MULTIPLIER_0 * a, MULTIPLIER_1 * c
        a, b, c, d = (q >> S32) ^ b ^ key_0, q & M32, (p >> S32) ^ d ^ key_1, p & M32
        key_0, key_1 = (key_0 + WEYL_0) & M32, (key_1 + WEYL_1) & M32
    return a | (b << S32)


@kernel
def philox_kernel(seed, position, choice, result):
    """One thread."""
    result[0] = philox(seed, position, choice)


def philox_once(stream, seed, position, choice):
    """The bits, as an array [1] on the device."""
    result = on_device(np.zeros(1, u64))
    philox_kernel[1, 1, stream](np.int64(seed), position, choice, result)
    return result


twin("philox", philox_once)
