"""Rows of the GLM as digits where they stand otherwise than one after another; rows added."""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..quantise import sound_amax
from ..scalars import add, flt, pow2, q16_value, row_exponent
from .held import MOST_THREADS, ROOM, held_q16, held_shape
from .quantise import row_threads, row_tops
from .target import device, kernel, threads

THREADS = 256
SEARCHES = 2 * ROOM  # int32 of shared memory for a row's largest


@device
def q16_long(row, digits, room):
    """(exponent, largest pattern of |x|) of a row that a block makes digits of, read twice."""
    width = row.shape[0]
    top, number = row_tops(row, width, room)
    exponent = row_exponent(flt(number))
    scale = pow2(-exponent)
    for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        digits[i] = q16_value(row[i], scale)
    return exponent, top


def q16_of(shape):
    """What makes digits of a row, for a shape of held_shape."""
    return held_q16(*shape) if shape else q16_long


def named(function, shape):
    """The kernel of a function for a shape, under a name of its own."""
    function.__name__ += "_{}_{}_{:d}".format(*shape) if shape else "_long"
    return kernel(function, most=MOST_THREADS)


def block_of(shape, width):
    """Threads of a block that has one row."""
    return shape[0] if shape else row_threads(width)


@cache
def q16_each_kernel(shape):
    """The kernel for rows of a shape of held_shape."""
    q16 = q16_of(shape)

    def q16_each_block(x, each, q, e, flags):
        """Row blockIdx.x of x; its flag is that of row blockIdx.x // each."""
        room, at = cuda.shared.array(SEARCHES, types.int32), cuda.blockIdx.x
        exponent, top = q16(x[at], q[at], room)
        if cuda.threadIdx.x == 0:
            e[at] = exponent
            if not sound_amax(top):
                flags[at // each] = np.uint8(1)

    return named(q16_each_block, shape)


def q16_each(stream, x, each, q, e, flags):
    """q16_rows where a row of the step is `each` rows of x [n, width] and of digits q [n, width].

    e [n] int8; flags [>= n / each] uint8.
    """
    rows, width = x.shape
    if rows:
        shape = held_shape(rows, width)
        launch = (rows, block_of(shape, width), stream)
        q16_each_kernel(shape)[launch](x, each, q, e, flags)


@cache
def q16_slots_kernel(shape):
    """The kernel for rows of a shape of held_shape."""
    q16 = q16_of(shape)

    def q16_slots_block(x, order, chosen, q, e, flags):
        """Slot blockIdx.x; its flag is that of the row that it is of."""
        room, at = cuda.shared.array(SEARCHES, types.int32), cuda.blockIdx.x
        exponent, top = q16(x[at], q[at], room)
        if cuda.threadIdx.x == 0:
            e[at] = exponent
            if not sound_amax(top):
                flags[order[at] // chosen] = np.uint8(1)

    return named(q16_slots_block, shape)


def q16_slots(stream, x, order, chosen, q, e, flags):
    """q16_rows of slots in the order of their experts: x [slots, width]; order [slots] int64."""
    slots, width = x.shape
    if slots:
        shape = held_shape(slots, width)
        launch = (slots, block_of(shape, width), stream)
        q16_slots_kernel(shape)[launch](x, order, chosen, q, e, flags)


@cache
def q16_heads_kernel(shape):
    """The kernel for rows of a shape of held_shape."""
    q16 = q16_of(shape)

    def q16_heads_block(x, width, q, e, flags):
        """Row blockIdx.x, head blockIdx.y: digits of a head's rows stand together."""
        room = cuda.shared.array(SEARCHES, types.int32)
        row, head = cuda.blockIdx.x, cuda.blockIdx.y
        at, start = head * cuda.gridDim.x + row, head * width
        exponent, top = q16(x[row, start : start + width], q[at], room)
        if cuda.threadIdx.x == 0:
            e[at] = exponent
            if not sound_amax(top):
                flags[row] = np.uint8(1)

    return named(q16_heads_block, shape)


def q16_heads(stream, x, heads, width, q, e, flags):
    """Each head's `width` columns of x [rows, stride] as digits q [heads * rows, width], by head.

    e [heads * rows] int8; flags [>= rows] uint8.
    """
    rows = x.shape[0]
    if rows and heads:
        shape = held_shape(rows * heads, width)
        launch = ((rows, heads), block_of(shape, width), stream)
        q16_heads_kernel(shape)[launch](x, width, q, e, flags)


@kernel
def repeat_values(rows, have, of):
    """A thread a value of the rows that are behind have[of]."""
    at, first = cuda.grid(1), have[of]
    row, column = at // rows.shape[1], at % rows.shape[1]
    if first <= row < rows.shape[0]:
        rows[row, column] = rows[row % first, column]


def repeat_rows(stream, rows, have, of):
    """rows[r] = rows[r % have[of]] for the rows of a bucket that nobody asked for.

    rows [n, k] int64; have [.] int64, at least 1. So that they go to no expert of their own.
    """
    width = threads(THREADS)
    if rows.size:
        repeat_values[-(-rows.size // width), width, stream](rows, have, of)


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
