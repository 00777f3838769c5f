"""Linear maps of any inputs, whole tiles of weights or not: a thread makes an output of a row."""

from functools import cache

import numpy as np
from numba import cuda

from ..scalars import add, mul, pow2, rn
from .checksum import CHECKED, add_up, counted
from .planes import INPUTS, OUTPUTS, PLANE, TILE
from .target import device, kernel

i32, i64 = np.int32, np.int64


@device
def scaled(total, exponent):
    """RN of an exact sum, times a power of two."""
    return mul(rn(total), pow2(i32(exponent)))


@device
def plain_dot(xq, at, w, block, output, tiles, pairs):
    """The exact product of one row, at pair `at`, with one output of a block."""
    total = i64(0)
    lane, half_outputs = (output & 7) << 2, (output >> 3) << 2
    for k in range(2 * pairs):
        inside = k & 31
        byte = (lane + (inside >> 3)) * 16 + ((inside >> 2) & 1) * 8 + half_outputs + (inside & 3)
        byte += (block * tiles + (k >> 5)) * TILE
        weight = i64(w[byte]) * i64(256) + (i64(w[byte + PLANE]) & i64(255))
        word = i64(xq[at + (k >> 1)])
        value = word >> i64(16) if k & 1 else ((word & i64(0xFFFF)) ^ i64(0x8000)) - i64(0x8000)
        total += weight * value
    return total


@cache
def plain_kernel(checked=False):
    """The kernel for any inputs."""

    def linear_plain(xq, ex, w, ew, pairs, rows, block0, block1, y, stride, column0, onto, check):
        """A thread an output of a row; rows along the grid's y."""
        row, column = cuda.blockIdx.y, block0 * OUTPUTS + cuda.grid(1)
        tiles = (2 * pairs + INPUTS - 1) // INPUTS
        if column < block1 * OUTPUTS:
            block = column >> 4
            total = plain_dot(xq, row * pairs, w, block, column & 15, tiles, pairs)
            value = scaled(total, i64(ex[row]) + i64(ew[column]))
            to = row * stride + column0 + column
            y[to] = add(y[to], value) if onto else value
        elif checked:
            output, total = column - block1 * OUTPUTS, i64(0)
            if output < OUTPUTS:
                total = plain_dot(xq, row * pairs, check[0], i64(0), output, tiles, pairs)
        if checked:
            own = column < block1 * OUTPUTS
            add_up(check[1], counted(i64(0), total, column & 15, own))

    linear_plain.__name__ += CHECKED * checked
    return kernel(linear_plain)
