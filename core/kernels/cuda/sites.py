"""What surrounds a layer's mixer or unit, each in one launch: a block of threads a row.

mix_streams is hc_write and the norm of all streams that follows it, without weights. read_site is
hc_read and the norm of what was read. A thread holds its values of a row in registers, four columns
of every stream at a time, so memory is passed over once. Rows of x, y and q begin at a multiple of
16 and of 8 bytes: `fits` says whether they can.
"""

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
    fma,
    mul,
    pow2,
    q16_value,
    rn,
    row_exponent,
    sqrt,
)
from ..streams import streams_of
from .intrinsics import four_of
from .quantise import greatest_number
from .streams import MOST_STREAMS
from .target import SIMULATED, WARP, device, kernel
from .tensor import put_floats, put_words
from .warps import block_sum

i32, i64, u8 = np.int32, np.int64, np.uint8
EACH = 2  # fours of columns of a thread
MOST_WIDTH = 768 * EACH * 4  # as many threads as registers are for
MOST_WEIGHTS = MOST_STREAMS * (MOST_STREAMS + 2)
OWN = 4 * EACH


def fits(width, streams):
    """Whether streams of so many columns can be held by a block's threads."""
    most = WARP * EACH * 4 if SIMULATED else MOST_WIDTH
    return width % 4 == 0 and width <= most and streams <= MOST_STREAMS


def threads_of(width):
    """Threads of a row's block."""
    return -(-width // (4 * EACH * WARP)) * WARP


@device
def tops_of(held, count, room):
    """(largest pattern, largest that is a number) of the held values of a block."""
    top, number = i32(0), i32(0)
    for k in range(count):
        here = absolute_bits(held[k])
        top = max(top, here)
        number = max(number, here if here <= INF_BITS else i32(0))
    return greatest_number(top, number, room)


@device
def squares_of(held, count, exponent, room):
    """The sum of squares of a block's held values, exact in their digits and rounded once."""
    scale, squares = pow2(-exponent), i64(0)
    for k in range(count):
        digit = i32(q16_value(held[k], scale))
        squares += i64(i32(digit * digit))
    return mul(rn(block_sum(squares, room)), pow2(i32(exponent + exponent)))


@device
def pair_of(a, b, scale):
    """Two values' digits as a word."""
    low, high = i32(q16_value(a, scale)), i32(q16_value(b, scale))
    return i32(i32(low & i32(0xFFFF)) | i32(high << i32(16)))


@device
def put_digits(q, at, held, start, scale):
    """Four held values as digits, at a place of q [.] int32."""
    left = pair_of(held[start], held[start + 1], scale)
    put_words(q, at, left, pair_of(held[start + 2], held[start + 3], scale))


@cache
def mixer(n):
    """The part that mixes so many streams: a thread's columns of a row, held and put back."""

    @device
    def mix(x, at, y, own, site, width, held):
        me, step = i64(cuda.threadIdx.x), cuda.blockDim.x
        results = cuda.local.array(OWN, types.float32)
        for i in range(EACH):
            near = min(4 * (me + i * step), width - 4)
            result = four_of(y, own + near)
            for j in range(4):
                results[4 * i + j] = result[j]
            for s in range(n):
                four = four_of(x, at + s * width + near)
                for j in range(4):
                    held[4 * (n * i + s) + j] = four[j]
        for i in range(EACH):
            c = 4 * (me + i * step)
            for j in range(4):
                mixed = cuda.local.array(n, types.float32)
                for s in range(n):
                    mixed[s] = mul(site[n + s], results[4 * i + j])
                    for one in range(n):
                        by = site[2 * n + one * n + s]
                        mixed[s] = fma(by, held[4 * (n * i + one) + j], mixed[s])
                for s in range(n):
                    held[4 * (n * i + s) + j] = mixed[s] if c < width else ZERO
            if c < width:
                for s in range(n):
                    k = 4 * (n * i + s)
                    to = at + s * width + c
                    put_floats(x, to, held[k], held[k + 1], held[k + 2], held[k + 3])

    return mix


@cache
def mix_streams_kernel(n):
    """The kernel for so many streams."""
    count, mix = 4 * n * EACH, mixer(n)

    def mix_streams_block(x, sites, y, width, stride, eps, q, e, flags, first):
        """Row first + block; x, y, q [.] flat, q as int32; stride: of y's rows."""
        room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
        row, me, step = first + i64(cuda.blockIdx.x), i64(cuda.threadIdx.x), cuda.blockDim.x
        at, held = row * n * width, cuda.local.array(count, types.float32)
        site = cuda.local.array(MOST_WEIGHTS, types.float32)
        for k in range(n * (n + 2)):
            site[k] = sites[row, k]
        mix(x, at, y, row * stride, site, width, held)
        top, number = tops_of(held, count, room)
        squares = squares_of(held, count, row_exponent(flt(number)), wide_room)
        r = div(ONE, sqrt(add(div(squares, rn(n * width)), eps)))
        made = absolute_bits(mul(flt(number), r))
        made_number = made
        if top >= INF_BITS or r == ZERO:  # else the greatest stays the greatest
            for k in range(count):
                held[k] = mul(held[k], r)
            made, made_number = tops_of(held, count, room)
            r = ONE
        exponent = row_exponent(flt(made_number))
        scale = pow2(-exponent)
        for k in range(count):
            held[k] = mul(held[k], r)
        for i in range(EACH):
            c = 4 * (me + i * step)
            for s in range(n):
                if c < width:
                    put_digits(q, (at + s * width + c) >> 1, held, 4 * (n * i + s), scale)
        if me == 0:
            e[row] = exponent
            if not (sound_amax(top) and sound_amax(made)):
                flags[row] |= u8(1)

    mix_streams_block.__name__ += f"_{n}"
    return kernel(mix_streams_block)


def mix_streams(stream, x, site, y, eps, q, e, flags, first, last):
    """hc_write, then rmsnorm_q16 of x by a weight of ones; where `fits` says so."""
    n = streams_of(site.shape[1])
    width = x.shape[1] // n
    if last > first:
        shape, words = (last - first, threads_of(width), stream), q.reshape(q.size).view(i32)
        flat, result = x.reshape(x.size), y.reshape(y.size)
        mix_streams_kernel(n)[shape](
            flat, site, result, width, y.shape[1], eps, words, e, flags, first
        )


@cache
def read_site_kernel(n):
    """The kernel for so many streams."""

    def read_site_block(x, sites, width, w, eps, q, e, flags, first):
        """Row first + block; x and q [.] flat, q as int32."""
        room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
        row, me, step = first + i64(cuda.blockIdx.x), i64(cuda.threadIdx.x), cuda.blockDim.x
        u, by = cuda.local.array(OWN, types.float32), cuda.local.array(OWN, types.float32)
        for i in range(EACH):
            c = 4 * (me + i * step)
            for j in range(4):
                u[4 * i + j], by[4 * i + j] = ZERO, w[min(c + j, width - 1)]
            for s in range(n):
                four = four_of(x, (row * n + s) * width + min(c, width - 4))
                for j in range(4):
                    u[4 * i + j] = fma(sites[row, s], four[j], u[4 * i + j])
            for j in range(4):
                u[4 * i + j] = u[4 * i + j] if c < width else ZERO
        top, number = tops_of(u, OWN, room)
        squares = squares_of(u, OWN, row_exponent(flt(number)), wide_room)
        r = div(ONE, sqrt(add(div(squares, rn(width)), eps)))
        for i in range(EACH):
            for j in range(4):
                k = 4 * i + j
                u[k] = mul(mul(u[k], r), by[k]) if 4 * (me + i * step) < width else ZERO
        made, made_number = tops_of(u, OWN, room)
        exponent = row_exponent(flt(made_number))
        digits = pow2(-exponent)
        for i in range(EACH):
            c = 4 * (me + i * step)
            if c < width:
                put_digits(q, (row * width + c) >> 1, u, 4 * i, digits)
        if me == 0:
            e[row] = exponent
            if not (sound_amax(top) and sound_amax(made)):
                flags[row] |= u8(1)

    read_site_block.__name__ += f"_{n}"
    return kernel(read_site_block)


def read_site(stream, x, site, w, eps, q, e, flags, first, last):
    """hc_read, then rmsnorm_q16 of what was read; where `fits` says so."""
    n, width = streams_of(site.shape[1]), w.shape[0]
    if last > first:
        shape, words = (last - first, threads_of(width), stream), q.reshape(q.size).view(i32)
        flat = x.reshape(x.size)
        read_site_kernel(n)[shape](flat, site, width, w, eps, words, e, flags, first)
