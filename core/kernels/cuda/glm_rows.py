"""Rows of the GLM as digits where they stand otherwise than one after another; rows added."""

import numpy as np
from numba import cuda
from numba.core import types

from ..quantise import sound_amax
from ..scalars import add, flt, pow2, q16_value, row_exponent
from .quantise import row_threads, row_tops
from .target import device, kernel, threads

THREADS = 256


@device
def q16_one(row, digits, room):
    """(exponent, whether it is sound) of a row that a block makes digits of."""
    width = row.shape[0]
    top, number = row_tops(row, width, room)
    exponent = row_exponent(flt(number))
    scale = pow2(-exponent)
    for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        digits[i] = q16_value(row[i], scale)
    return exponent, sound_amax(top)


@kernel
def q16_each_block(x, each, q, e, flags):
    """Row blockIdx.x of x; its flag is that of row blockIdx.x // each."""
    room = cuda.shared.array(32, types.int32)
    at = cuda.blockIdx.x
    exponent, sound = q16_one(x[at], q[at], room)
    if cuda.threadIdx.x == 0:
        e[at] = exponent
        if not sound:
            flags[at // each] = np.uint8(1)


def q16_each(stream, x, each, q, e, flags):
    """q16_rows where a row of the step is `each` rows of x [n, width] and of digits q [n, width].

    e [n] int8; flags [>= n / each] uint8.
    """
    if x.shape[0]:
        q16_each_block[x.shape[0], row_threads(x.shape[1]), stream](x, each, q, e, flags)


@kernel
def q16_slots_block(x, order, chosen, q, e, flags):
    """Slot blockIdx.x; its flag is that of the row that it is of."""
    room = cuda.shared.array(32, types.int32)
    at = cuda.blockIdx.x
    exponent, sound = q16_one(x[at], q[at], room)
    if cuda.threadIdx.x == 0:
        e[at] = exponent
        if not sound:
            flags[order[at] // chosen] = np.uint8(1)


def q16_slots(stream, x, order, chosen, q, e, flags):
    """q16_rows of slots in the order of their experts: x [slots, width]; order [slots] int64."""
    if x.shape[0]:
        shape = (x.shape[0], row_threads(x.shape[1]), stream)
        q16_slots_block[shape](x, order, chosen, q, e, flags)


@kernel
def q16_heads_block(x, width, q, e, flags):
    """Row blockIdx.x, head blockIdx.y: digits of a head's rows stand together."""
    room = cuda.shared.array(32, types.int32)
    row, head = cuda.blockIdx.x, cuda.blockIdx.y
    at, start = head * cuda.gridDim.x + row, head * width
    exponent, sound = q16_one(x[row, start : start + width], q[at], room)
    if cuda.threadIdx.x == 0:
        e[at] = exponent
        if not sound:
            flags[row] = np.uint8(1)


def q16_heads(stream, x, heads, width, q, e, flags):
    """Each head's `width` columns of x [rows, stride] as digits q [heads * rows, width], by head.

    e [heads * rows] int8; flags [>= rows] uint8.
    """
    if x.shape[0] and heads:
        shape = ((x.shape[0], heads), row_threads(width), stream)
        q16_heads_block[shape](x, width, q, e, flags)


@kernel
def add_values(onto, y):
    """A thread a value of row blockIdx.y."""
    row, c = cuda.blockIdx.y, cuda.grid(1)
    if c < onto.shape[1]:
        onto[row, c] = add(onto[row, c], y[row, c])


def add_rows(stream, onto, y):
    """onto += y, both [rows, width] float32."""
    width = threads(THREADS)
    if onto.shape[0]:
        add_values[(-(-onto.shape[1] // width), onto.shape[0]), width, stream](onto, y)
