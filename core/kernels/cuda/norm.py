"""The CUDA twin of norm.py: a block a row, held in registers where it is not too long."""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..quantise import sound_amax
from ..scalars import (
    INF_BITS,
    ONE,
    ZERO,
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
from .held import MOST_THREADS, ROOM, found_sum, held_row, held_shape, sound_digit
from .quantise import greatest_number, row_threads, row_tops
from .target import device, kernel
from .twins import twin
from .warps import block_sum

i32, i64 = np.int32, np.int64
FLOATS = 12  # elements of a thread up to which rows of float32 are held
EARLY = 8  # elements of a thread up to which its weights, too, are held: 1,024 threads at most


@device
def rounded_squares(squares, exponent):
    """The sum of squares of a row, of the exact sum of its digits' squares, rounded once."""
    return mul(rn(squares), pow2(i32(exponent + exponent)))


@device
def over_root(squares, width, eps):
    """1 / sqrt(the mean of squares + eps)."""
    return div(ONE, sqrt(add(div(squares, rn(width)), eps)))


# --- rows held in registers ----------------------------------------------------------------------


@cache
def held_norm(block, each, whole):
    """norm(row, w, eps, held, room, wide_room): the largest pattern of |x| of a row [width].

    held [each]: what is made of the thread's elements of the row, x * r * w, 0 beyond its width.
    """
    largest, _ = held_row(block, each, whole)
    early = each <= EARLY

    @device
    def norm(row, w, eps, held, room, wide_room):
        weights, width = cuda.local.array(each, types.float32), row.shape[0]
        for k in range(each):
            i = cuda.threadIdx.x + k * block
            held[k] = row[i] if whole or i < width else ZERO
            weights[k] = w[i] if early and (whole or i < width) else ZERO
        top, number = largest(held, room)
        exponent, sound = row_exponent(flt(number)), sound_amax(top)
        scale, squares = pow2(-exponent), i64(0)
        if sound:
            for k in range(each):
                digit = sound_digit(held[k], scale)
                squares += i64(i32(digit * digit))
        else:
            for k in range(each):
                digit = i32(q16_value(held[k], scale))
                squares += i64(i32(digit * digit))
        squares = rounded_squares(found_sum(squares, wide_room), exponent)
        r = over_root(squares, width, eps)
        for k in range(each):
            if k == EARLY:  # weights beyond are asked for when those before have been used
                cuda.syncthreads()
            i = cuda.threadIdx.x + k * block
            if whole or i < width:
                held[k] = mul(mul(held[k], r), weights[k] if early else w[i])
            else:  # 0 may meet an r that is no number
                held[k] = ZERO
        return top

    return norm


@cache
def norm_q16_kernel(*shape):
    """The kernel for rows of a shape of held_shape; digits of what it makes."""
    norm, (largest, digits), size = held_norm(*shape), held_row(*shape), 4 * ROOM
    each = shape[1]

    def rmsnorm_q16_held(x, w, eps, q, e, flags, first):
        """Row first + block."""
        room, wide_room = cuda.shared.array(size, types.int32), cuda.shared.array(32, types.int64)
        held, at = cuda.local.array(each, types.float32), first + cuda.blockIdx.x
        top = norm(x[at], w, eps, held, room, wide_room)
        made, number = largest(held, room[2 * ROOM :])
        exponent = digits(held, made, number, q[at], x.shape[1])
        if cuda.threadIdx.x == 0:
            e[at] = exponent
            if not (sound_amax(top) and sound_amax(made)):
                flags[at] |= np.uint8(1)

    rmsnorm_q16_held.__name__ += "_{}_{}_{:d}".format(*shape)
    return kernel(rmsnorm_q16_held, most=MOST_THREADS)


@cache
def norm_kernel(*shape):
    """The kernel for rows of a shape of held_shape; float32 of what it makes."""
    norm, size = held_norm(*shape), 2 * ROOM
    block, each, whole = shape

    def rmsnorm_held(x, w, eps, y, column, flags, first):
        """Row first + block."""
        room, wide_room = cuda.shared.array(size, types.int32), cuda.shared.array(32, types.int64)
        held, at, width = cuda.local.array(each, types.float32), first + cuda.blockIdx.x, x.shape[1]
        top = norm(x[at], w, eps, held, room, wide_room)
        for k in range(each):
            i = cuda.threadIdx.x + k * block
            if whole or i < width:
                y[at, column + i] = held[k]
        if cuda.threadIdx.x == 0 and not sound_amax(top):
            flags[at] |= np.uint8(1)

    rmsnorm_held.__name__ += "_{}_{}_{:d}".format(*shape)
    return kernel(rmsnorm_held, most=MOST_THREADS)


# --- rows that are longer ------------------------------------------------------------------------


@device
def exact_squares(row, width, exponent, room):
    """The sum of squares of a row, exact in its digits and rounded once, in every thread."""
    scale, squares = pow2(-exponent), i64(0)
    for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        digit = i32(q16_value(row[i], scale))
        squares += i64(i32(digit * digit))
    return rounded_squares(block_sum(squares, room), exponent)


@kernel
def rmsnorm_q16_block(x, w, eps, q, e, flags, first):
    """Row first + block."""
    room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
    at, width = first + cuda.blockIdx.x, x.shape[1]
    row, digits = x[at], q[at]
    top, number = row_tops(row, width, room)
    squares = exact_squares(row, width, row_exponent(flt(number)), wide_room)
    r = over_root(squares, width, eps)
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


@kernel
def rmsnorm_block(x, w, eps, y, column, flags, first):
    """Row first + block."""
    room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
    at, width = first + cuda.blockIdx.x, x.shape[1]
    row, out = x[at], y[at]
    top, number = row_tops(row, width, room)
    squares = exact_squares(row, width, row_exponent(flt(number)), wide_room)
    r = over_root(squares, width, eps)
    for i in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        out[column + i] = mul(mul(row[i], r), w[i])
    if cuda.threadIdx.x == 0 and not sound_amax(top):
        flags[at] |= np.uint8(1)


# --- launches ------------------------------------------------------------------------------------


def rmsnorm_q16(stream, x, w, eps, q, e, flags, first, last):
    """As the CPU's rmsnorm_q16."""
    if last <= first:
        return
    rows, shape = last - first, held_shape(last - first, x.shape[1])
    if shape:
        norm_q16_kernel(*shape)[rows, shape[0], stream](x, w, eps, q, e, flags, first)
    else:
        long = (rows, row_threads(x.shape[1]), stream)
        rmsnorm_q16_block[long](x, w, eps, q, e, flags, first)


def rmsnorm_rows(stream, x, w, eps, y, column, flags, first, last):
    """As the CPU's rmsnorm_rows."""
    if last <= first:
        return
    rows, shape = last - first, held_shape(last - first, x.shape[1])
    if shape and shape[1] <= FLOATS:
        norm_kernel(*shape)[rows, shape[0], stream](x, w, eps, y, column, flags, first)
    else:
        long = (rows, row_threads(x.shape[1]), stream)
        rmsnorm_block[long](x, w, eps, y, column, flags, first)


twin("rmsnorm_q16", rmsnorm_q16)
twin("rmsnorm_rows", rmsnorm_rows)
