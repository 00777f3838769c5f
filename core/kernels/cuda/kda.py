"""The CUDA twins of kda.py: a warp a head of a row, and the recurrence of kda_recurrence.py."""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..kda import L2_EPS
from ..quantise import sound_amax
from ..scalars import (
    INF_BITS,
    LOG2E,
    ONE,
    ZERO,
    absolute_bits,
    add,
    div,
    exp2c,
    flt,
    mul,
    pow2,
    q16_value,
    rn,
    row_exponent,
    sigmoid,
    sqrt,
)
from .kda_recurrence import kda_rows as kda_rows
from .target import WARP, device, kernel, threads
from .twins import twin
from .warps import warp_sum, warp_top

i32, i64 = np.int32, np.int64
THREADS = 128
MOST_COUNT = 8  # values of a head that a lane holds


@device
def held_squares(x, count):
    """(the exact sum of squares of a warp's x [count], rounded once, if it is sound)."""
    top, number = i32(0), i32(0)
    for i in range(count):
        here = absolute_bits(x[i])
        top = max(top, here)
        number = max(number, here if here <= INF_BITS else i32(0))
    top = warp_top(top)
    number = warp_top(number) if top > INF_BITS else top
    exponent, squares = row_exponent(flt(number)), i64(0)
    scale = pow2(-exponent)
    for i in range(count):
        digit = i32(q16_value(x[i], scale))
        squares += i64(i32(digit * digit))
    return mul(rn(warp_sum(squares)), pow2(i32(exponent + exponent))), sound_amax(top)


@cache
def prepare_kernel(width):
    """What kda_prepare launches, for heads of so many keys: a warp an item."""
    count = -(-width // WARP)

    def kda_prepare_warp(
        qkv, f, fcol, dt, decay, bound, b, bcol, q, k, a, beta, flags, first, last
    ):  # fmt: skip
        """Item first + the warp's number."""
        item = first + i64(cuda.blockIdx.x) * (cuda.blockDim.x >> 5) + (cuda.threadIdx.x >> 5)
        if item >= last:
            return
        heads, lane = decay.shape[0], cuda.laneid
        row = item // heads
        head = item - row * heads
        own = head * width
        queries, keys = (
            cuda.local.array(count, types.float32),
            cuda.local.array(count, types.float32),
        )
        steps = cuda.local.array(count, types.float32)
        for i in range(count):
            c = own + min(lane + WARP * i, width - 1)
            queries[i], keys[i] = qkv[row, c], qkv[row, heads * width + c]
            steps[i] = add(f[row, fcol + c], dt[c])
        for i in range(count):
            if lane + WARP * i >= width:
                queries[i], keys[i] = ZERO, ZERO
        squares, sound_q = held_squares(queries, count)
        on_q = div(ONE, sqrt(add(squares, L2_EPS)))
        squares, sound_k = held_squares(keys, count)
        on_k, on_head = div(ONE, sqrt(add(squares, L2_EPS))), decay[head]
        smaller = div(ONE, sqrt(rn(i64(width))))
        for i in range(count):
            c = own + lane + WARP * i
            if lane + WARP * i < width:
                q[row, c] = mul(mul(queries[i], on_q), smaller)
                k[row, c] = mul(keys[i], on_k)
                a[row, c] = exp2c(mul(mul(bound, sigmoid(mul(on_head, steps[i]))), LOG2E))
        if lane == 0:
            beta[row, head] = sigmoid(b[row, bcol + head])
            if not (sound_q and sound_k):
                flags[row] = np.uint8(1)

    kda_prepare_warp.__name__ += f"_{width}"
    return kernel(kda_prepare_warp)


def kda_prepare(stream, *arguments):
    """As the CPU's kda_prepare."""
    *given, first, last = arguments
    if last > first:
        block = threads(THREADS)
        shape = (-(-(last - first) * WARP // block), block, stream)
        prepare_kernel(given[3].shape[0] // given[4].shape[0])[shape](*given, first, last)


def kda_rows_as_registered(stream, q, k, qkv, a, beta, states, runs, o, work, first, last):
    """kda_rows with the argument that only the CPU needs."""
    kda_rows(stream, q, k, qkv, a, beta, states, runs, o, first, last)


@device
def gated_values(o, gate, gcol, w, eps, row, own, width, x, count):
    """x [count]: a warp's values of a head, normed and gated; whether they are sound."""
    lane = cuda.laneid
    gates = cuda.local.array(MOST_COUNT, types.float32)
    for i in range(count):
        c = own + min(lane + WARP * i, width - 1)
        x[i], gates[i] = o[row, c], gate[row, gcol + c]
    for i in range(count):
        if lane + WARP * i >= width:
            x[i] = ZERO
    squares, sound = held_squares(x, count)
    r = div(ONE, sqrt(add(div(squares, rn(i64(width))), eps)))
    for i in range(count):
        normed = mul(mul(x[i], r), w[min(lane + WARP * i, width - 1)])
        x[i] = mul(normed, sigmoid(gates[i]))
    return sound


@cache
def gate_kernel(width):
    """What kda_gate launches, for heads of so many values: a warp an item."""
    count = -(-width // WARP)

    def kda_gate_warp(o, gate, gcol, w, eps, out, ocol, flags, first, last):
        """Item first + the warp's number."""
        item = first + i64(cuda.blockIdx.x) * (cuda.blockDim.x >> 5) + (cuda.threadIdx.x >> 5)
        if item >= last:
            return
        heads, lane = o.shape[1] // width, cuda.laneid
        row = item // heads
        own, x = (item - row * heads) * width, cuda.local.array(count, types.float32)
        sound = gated_values(o, gate, gcol, w, eps, row, own, width, x, count)
        for i in range(count):
            if lane + WARP * i < width:
                out[row, ocol + own + lane + WARP * i] = x[i]
        if lane == 0 and not sound:
            flags[row] = np.uint8(1)

    kda_gate_warp.__name__ += f"_{width}"
    return kernel(kda_gate_warp)


def kda_gate(stream, *arguments):
    """As the CPU's kda_gate."""
    *given, first, last = arguments
    if last > first:
        block = threads(THREADS)
        shape = (-(-(last - first) * WARP // block), block, stream)
        assert given[3].shape[0] <= MOST_COUNT * WARP, given[3].shape
        gate_kernel(given[3].shape[0])[shape](*given, first, last)


twin("kda_prepare", kda_prepare)
twin("kda_rows", kda_rows_as_registered)
twin("kda_gate", kda_gate)
