"""The CUDA twin of norm.py: a block a row."""

import numpy as np
from numba import cuda
from numba.core import types

from ..quantise import sound_amax
from ..scalars import (
    INF_BITS,
    ONE,
    absolute_bits,
    add,
    div,
    flt,
    mul,
    pow2,
    q16_value,
    rn,
    row_exponent,
    sqrt,
)
from .quantise import greatest_number, row_threads, row_tops
from .target import block_sum, device, kernel
from .twins import twin

i32, i64 = np.int32, np.int64


@device
def exact_squares(row, width, exponent, room):
    """The sum of squares of a row, exact in its digits and rounded once, in every thread."""
    scale, squares = pow2(-exponent), i64(0)
    for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        digit = i32(q16_value(row[i], scale))
        squares += i64(i32(digit * digit))
    return mul(rn(block_sum(squares, room)), pow2(i32(exponent + exponent)))


@kernel
def rmsnorm_q16_block(x, w, eps, q, e, flags, first):
    """Row first + block."""
    room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
    at, width = first + cuda.blockIdx.x, x.shape[1]
    row, digits = x[at], q[at]
    top, number = row_tops(row, width, room)
    squares = exact_squares(row, width, row_exponent(flt(number)), wide_room)
    r = div(ONE, sqrt(add(div(squares, rn(width)), eps)))
    made, made_number = i32(0), i32(0)
    for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        here = absolute_bits(mul(mul(row[i], r), w[i]))
        made = max(made, here)
        made_number = max(made_number, here if here <= INF_BITS else i32(0))
    made, made_number = greatest_number(made, made_number, room)
    exponent = row_exponent(flt(made_number))
    scale = pow2(-exponent)
    for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        digits[i] = q16_value(mul(mul(row[i], r), w[i]), scale)
    if cuda.threadIdx.x == 0:
        e[at] = exponent
        if not (sound_amax(top) and sound_amax(made)):
            flags[at] |= np.uint8(1)


def rmsnorm_q16(stream, x, w, eps, q, e, flags, first, last):
    """As the CPU's rmsnorm_q16."""
    if last > first:
        shape = (last - first, row_threads(x.shape[1]), stream)
        rmsnorm_q16_block[shape](x, w, eps, q, e, flags, first)


@kernel
def rmsnorm_block(x, w, eps, y, column, flags, first):
    """Row first + block."""
    room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
    at, width = first + cuda.blockIdx.x, x.shape[1]
    row, out = x[at], y[at]
    top, number = row_tops(row, width, room)
    squares = exact_squares(row, width, row_exponent(flt(number)), wide_room)
    r = div(ONE, sqrt(add(div(squares, rn(width)), eps)))
    for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        out[column + i] = mul(mul(row[i], r), w[i])
    if cuda.threadIdx.x == 0 and not sound_amax(top):
        flags[at] |= np.uint8(1)


def rmsnorm_rows(stream, x, w, eps, y, column, flags, first, last):
    """As the CPU's rmsnorm_rows."""
    if last > first:
        shape = (last - first, row_threads(x.shape[1]), stream)
        rmsnorm_block[shape](x, w, eps, y, column, flags, first)


twin("rmsnorm_q16", rmsnorm_q16)
twin("rmsnorm_rows", rmsnorm_rows)
