"""A row held in the registers of a block's threads: read once, its largest and its digits found.

A thread holds the elements me, me + threads, me + 2 threads, ... of its row. What is found together
goes through shared memory once; `room` there has ROOM int32, and ROOM more for each further search.
Threads, elements of each and whether the last are all there are known when a kernel is compiled.
"""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..quantise import sound_amax
from ..scalars import (
    INF_BITS,
    ZERO,
    absolute_bits,
    add,
    bits,
    flt,
    mul,
    pow2,
    q16_value,
    row_exponent,
)
from .target import SIMULATED, device, threads
from .warps import block_max, block_sum, warp_sum, warp_top

f32, i32 = np.float32, np.int32
# Its last place is 1: a small number added to it is rounded to a whole one, ties to even.
WHOLE, WHOLE_BITS = f32(3 << 22), i32(0x4B400000)
ROOM = 32  # int32 of a search: one a warp
MOST_THREADS = 1024  # of a block: a thread has 64 registers at least
MOST, MOST_PARTLY = 16, 12  # elements that a thread holds, where all are there and where not
CHIP = 264  # rows from which on blocks are smaller, so that more of them fit a chip


def held_shape(rows, width):
    """(threads of a block, elements that each holds, whether all are there) of rows of a width.

    None where a row is too long to be held.
    """
    few = rows <= CHIP
    block = threads(min(MOST_THREADS, max(128, -(-width // (128 if few else 256)) * 32)))
    each = -(-width // block)
    whole = block * each == width
    return (block, each, whole) if each <= (MOST if whole else MOST_PARTLY) else None


if SIMULATED:
    found_max, found_sum = block_max, block_sum
else:

    @device
    def found_max(value, room):
        """The largest int32 over a block, in every thread; nobody may use `room` again."""
        value = warp_top(value)
        if cuda.laneid == 0:
            room[cuda.threadIdx.x >> 5] = value
        cuda.syncthreads()
        return warp_top(room[min(cuda.laneid, (cuda.blockDim.x >> 5) - 1)])

    @device
    def found_sum(value, room):
        """The sum over a block, in every thread; room: an element a warp, nobody's afterwards."""
        value = warp_sum(value)
        if cuda.laneid == 0:
            room[cuda.threadIdx.x >> 5] = value
        cuda.syncthreads()
        mine = room[cuda.laneid] if cuda.laneid < cuda.blockDim.x >> 5 else value - value
        return warp_sum(mine)


@device
def sound_digit(x, scale):
    """q16_value of a row that is sound: no digit is beyond QMAX, none no number."""
    return i32(bits(add(mul(x, scale), WHOLE)) - WHOLE_BITS)


@cache
def held_row(block, each, whole):
    """(largest, digits) of rows of which a thread holds so many elements.

    largest(held, room): (the largest pattern of |x|, the largest that is a number) of the block's
    row, whose elements beyond its width are 0. digits(held, top, number, out, width): writes it as
    Q16 into out [width], these being its largest, and gives the exponent.
    """

    @device
    def largest(held, room):
        top, number = i32(0), i32(0)
        for k in range(each):
            here = absolute_bits(held[k])
            top = max(top, here)
            number = max(number, here if here <= INF_BITS else i32(0))
        top = found_max(top, room)
        return top, found_max(number, room[ROOM:]) if top > INF_BITS else top

    @device
    def digits(held, top, number, out, width):
        exponent, sound = row_exponent(flt(number)), sound_amax(top)
        scale = pow2(-exponent)
        if sound:
            for k in range(each):
                i = cuda.threadIdx.x + k * block
                if whole or i < width:
                    out[i] = sound_digit(held[k], scale)
        else:
            for k in range(each):
                i = cuda.threadIdx.x + k * block
                if whole or i < width:
                    out[i] = q16_value(held[k], scale)
        return exponent

    return largest, digits


@cache
def held_q16(block, each, whole):
    """q16(row, out, room): (exponent, largest pattern of |x|) of a row [width] made Q16 in out."""
    largest, digits = held_row(block, each, whole)

    @device
    def q16(row, out, room):
        held, width = cuda.local.array(each, types.float32), row.shape[0]
        for k in range(each):
            i = cuda.threadIdx.x + k * block
            held[k] = row[i] if whole or i < width else ZERO
        top, number = largest(held, room)
        return digits(held, top, number, out, width), top

    return q16
