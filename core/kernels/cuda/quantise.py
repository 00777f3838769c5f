"""The CUDA twin of quantise.py: a block a row, held in registers where it is not too long."""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..quantise import sound_amax
from ..scalars import INF_BITS, absolute_bits, flt, pow2, q16_value, row_exponent
from .held import MOST_THREADS, ROOM, held_q16, held_shape
from .target import device, kernel, threads
from .twins import twin
from .warps import block_max

i32 = np.int32


@device
def greatest_number(top, number, room):
    """(the largest pattern, the largest that is a number) of a block; alike without a NaN."""
    top = block_max(top, room)
    return top, block_max(number, room) if top > INF_BITS else top


@device
def row_tops(row, width, room):
    """(the largest pattern of |x| in a row, the largest that is a number), in every thread."""
    top, number = i32(0), i32(0)
    for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        here = absolute_bits(row[i])
        top = max(top, here)
        number = max(number, here if here <= INF_BITS else i32(0))
    return greatest_number(top, number, room)


def row_threads(width):
    """Threads of a block that has one row: few elements each, and no more than there are."""
    return threads(min(1024, max(128, -(-width // 128) * 32)))


@kernel
def q16_block(x, q, e, flags, first):
    """Row first + block, read twice."""
    room = cuda.shared.array(32, types.int32)
    at, width = first + cuda.blockIdx.x, x.shape[1]
    row, digits = x[at], q[at]
    top, number = row_tops(row, width, room)
    exponent = row_exponent(flt(number))
    scale = pow2(-exponent)
    for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        digits[i] = q16_value(row[i], scale)
    if cuda.threadIdx.x == 0:
        e[at] = exponent
        if not sound_amax(top):
            flags[at] |= np.uint8(1)


@cache
def q16_kernel(*shape):
    """The kernel for rows of a shape of held_shape."""
    q16, size = held_q16(*shape), 2 * ROOM

    def q16_held(x, q, e, flags, first):
        """Row first + block."""
        room, at = cuda.shared.array(size, types.int32), first + cuda.blockIdx.x
        exponent, top = q16(x[at], q[at], room)
        if cuda.threadIdx.x == 0:
            e[at] = exponent
            if not sound_amax(top):
                flags[at] |= np.uint8(1)

    q16_held.__name__ += "_{}_{}_{:d}".format(*shape)
    return kernel(q16_held, most=MOST_THREADS)


def q16_rows(stream, x, q, e, flags, first, last):
    """As the CPU's q16_rows."""
    if last <= first:
        return
    shape = held_shape(last - first, x.shape[1])
    if shape:
        q16_kernel(*shape)[last - first, shape[0], stream](x, q, e, flags, first)
    else:
        q16_block[last - first, row_threads(x.shape[1]), stream](x, q, e, flags, first)


twin("q16_rows", q16_rows)
