"""The CUDA twins of kda.py: a warp a head of a row; the recurrence with its state in registers.

Four neighbouring lanes make one value: each is one of the four chains over the keys, so it holds
the keys of its remainder modulo 4, and the chains meet by a shuffle, (c0 + c1) + (c2 + c3).
"""

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
    fma,
    mul,
    pow2,
    q16_value,
    rn,
    row_exponent,
    sigmoid,
    sqrt,
    sub,
)
from .intrinsics import four_of
from .target import WARP, device, kernel, lane_value, threads, warp_max, warp_sum
from .twins import twin

i32, i64 = np.int32, np.int64
CHAINS = 4
THREADS = 128


@device
def warp_squares(x, row, start, width):
    """(the exact sum of squares of x[row, start : start + width], rounded once, if it is sound)."""
    top, number = i32(0), i32(0)
    for i in range(cuda.laneid, width, WARP):
        here = absolute_bits(x[row, start + i])
        top = max(top, here)
        number = max(number, here if here <= INF_BITS else i32(0))
    top, number = warp_max(top), warp_max(number)
    exponent, squares = row_exponent(flt(number)), i64(0)
    scale = pow2(-exponent)
    for i in range(cuda.laneid, width, WARP):
        digit = i32(q16_value(x[row, start + i], scale))
        squares += i64(i32(digit * digit))
    return mul(rn(warp_sum(squares)), pow2(i32(exponent + exponent))), sound_amax(top)


@kernel
def kda_prepare_warp(
    qkv, f, fcol, dt, decay, bound, b, bcol, q, k, a, beta, flags, first
):  # fmt: skip
    """Item first + block."""
    item, heads = first + cuda.blockIdx.x, decay.shape[0]
    width, row, head = dt.shape[0] // heads, item // heads, item % heads
    own, lane = head * width, cuda.threadIdx.x
    squares, sound_q = warp_squares(qkv, row, own, width)
    on_q = div(ONE, sqrt(add(squares, L2_EPS)))
    squares, sound_k = warp_squares(qkv, row, heads * width + own, width)
    on_k = div(ONE, sqrt(add(squares, L2_EPS)))
    smaller = div(ONE, sqrt(rn(i64(width))))
    for i in range(own + lane, own + width, WARP):
        q[row, i] = mul(mul(qkv[row, i], on_q), smaller)
        k[row, i] = mul(qkv[row, heads * width + i], on_k)
        s = sigmoid(mul(decay[head], add(f[row, fcol + i], dt[i])))
        a[row, i] = exp2c(mul(mul(bound, s), LOG2E))
    if lane == 0:
        beta[row, head] = sigmoid(b[row, bcol + head])
        if not (sound_q and sound_k):
            flags[row] = np.uint8(1)


def kda_prepare(stream, *arguments):
    """As the CPU's kda_prepare."""
    *given, first, last = arguments
    if last > first:
        kda_prepare_warp[last - first, WARP, stream](*given, first)


@device
def joined(mine, meets):
    """The four chains of a value, whose first lane is `meets`."""
    first = add(lane_value(mine, meets), lane_value(mine, meets + 1))
    return add(first, add(lane_value(mine, meets + 2), lane_value(mine, meets + 3)))


@device
def stage(staged, side, c, line, a, k, q):
    """Put a row's decay, key and query of one channel into shared memory, by chain."""
    at = (side * 3 * CHAINS + (c & 3)) * line + (c >> 2)
    staged[at], staged[at + CHAINS * line], staged[at + 2 * CHAINS * line] = a, k, q


@cache
def chain_loops(width):
    """(recall, write) of one chain over its keys, for heads of so many keys.

    recall(s, staged, on_a, on_k) decays the keys and sums them by k; write(s, staged, on_k, on_q,
    apart) adds k times what is apart and sums the result by q. s: the chain's state, in registers.
    """
    keys = width // CHAINS
    quads = keys // 4 if keys % 4 == 0 else 0

    @device
    def recall(s, staged, on_a, on_k):
        total = ZERO
        for i in range(0, 4 * quads, 4):
            by, at = four_of(staged, on_a + i), four_of(staged, on_k + i)
            s[i], s[i + 1] = mul(s[i], by[0]), mul(s[i + 1], by[1])
            s[i + 2], s[i + 3] = mul(s[i + 2], by[2]), mul(s[i + 3], by[3])
            total = fma(s[i + 1], at[1], fma(s[i], at[0], total))
            total = fma(s[i + 3], at[3], fma(s[i + 2], at[2], total))
        for i in range(4 * quads, keys):
            s[i] = mul(s[i], staged[on_a + i])
            total = fma(s[i], staged[on_k + i], total)
        return total

    @device
    def write(s, staged, on_k, on_q, apart):
        total = ZERO
        for i in range(0, 4 * quads, 4):
            at, by = four_of(staged, on_k + i), four_of(staged, on_q + i)
            s[i], s[i + 1] = fma(at[0], apart, s[i]), fma(at[1], apart, s[i + 1])
            s[i + 2], s[i + 3] = fma(at[2], apart, s[i + 2]), fma(at[3], apart, s[i + 3])
            total = fma(s[i + 1], by[1], fma(s[i], by[0], total))
            total = fma(s[i + 3], by[3], fma(s[i + 2], by[2], total))
        for i in range(4 * quads, keys):
            s[i] = fma(staged[on_k + i], apart, s[i])
            total = fma(s[i], staged[on_q + i], total)
        return total

    return recall, write


@cache
def recurrence_kernel(width):
    """The recurrence for heads of so many keys and values."""
    keys, (recall, write) = width // CHAINS, chain_loops(width)
    line = keys + 4  # four chains read 16 bytes each at once, of banks of their own
    room = 2 * 3 * CHAINS * line

    def kda_rows_block(q, k, qkv, a, beta, states, runs, o, first):
        """Item first + blockIdx.x; the values of blockIdx.y.

        Decays, keys and queries of a row stand in shared memory; those of the next are on their
        way while this one is computed.
        """
        staged = cuda.shared.array(room, types.float32)
        heads, slots = states.shape[2], states.shape[1]
        item, me, step = first + cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
        run, head = item // heads, item % heads
        value = (cuda.blockIdx.y * step + me) >> 2
        column, own = min(value, width - 1), head * width
        lane, row0, position0, rows = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 3]
        if rows <= 0:
            return
        chain, meets, slot = me & 3, cuda.laneid & 28, (position0 - 1) % slots
        s = cuda.local.array(keys, types.float32)
        for i in range(keys):
            key = CHAINS * i + chain
            s[i] = states[lane, slot, head, key, column] if position0 > 0 else ZERO
        for c in range(me, width, step):
            stage(staged, 0, c, line, a[row0, own + c], k[row0, own + c], q[row0, own + c])
        cuda.syncthreads()
        for row in range(row0, row0 + rows):
            side, on, at = (row - row0) & 1, row + 1 < row0 + rows, own + me
            next_a, next_k, next_q = ZERO, ZERO, ZERO
            if on and me < width:
                next_a, next_k, next_q = a[row + 1, at], k[row + 1, at], q[row + 1, at]
            wanted, share = qkv[row, 2 * heads * width + own + column], beta[row, head]
            on_a = (side * 3 * CHAINS + chain) * line
            on_k, on_q = on_a + CHAINS * line, on_a + 2 * CHAINS * line
            known = joined(recall(s, staged, on_a, on_k), meets)
            read = joined(write(s, staged, on_k, on_q, mul(share, sub(wanted, known))), meets)
            if value < width and chain == 0:
                o[row, own + column] = read
            if value < width and row >= row0 + rows - slots:
                slot = (position0 + row - row0) % slots
                for i in range(keys):
                    states[lane, slot, head, CHAINS * i + chain, column] = s[i]
            if on and me < width:
                stage(staged, 1 - side, me, line, next_a, next_k, next_q)
            for c in range(me + step, width if on else 0, step):
                at = own + c
                stage(staged, 1 - side, c, line, a[row + 1, at], k[row + 1, at], q[row + 1, at])
            cuda.syncthreads()

    kda_rows_block.__name__ += f"_{width}"
    return kernel(kda_rows_block)


def kda_rows(stream, q, k, qkv, a, beta, states, runs, o, first, last):
    """As the CPU's kda_rows, without its work space."""
    width = states.shape[3]
    if last > first:
        block = threads(THREADS)
        grid = (last - first, -(-width * CHAINS // block))
        recurrence_kernel(width)[grid, block, stream](q, k, qkv, a, beta, states, runs, o, first)


def kda_rows_as_registered(stream, q, k, qkv, a, beta, states, runs, o, work, first, last):
    """kda_rows with the argument that only the CPU needs."""
    kda_rows(stream, q, k, qkv, a, beta, states, runs, o, first, last)


@kernel
def kda_gate_warp(o, gate, gcol, w, eps, out, ocol, flags, first):
    """Item first + block."""
    width = w.shape[0]
    item, heads = first + cuda.blockIdx.x, o.shape[1] // width
    row, own = item // heads, item % heads * width
    squares, sound = warp_squares(o, row, own, width)
    r = div(ONE, sqrt(add(div(squares, rn(i64(width))), eps)))
    for i in range(cuda.threadIdx.x, width, WARP):
        normed = mul(mul(o[row, own + i], r), w[i])
        out[row, ocol + own + i] = mul(normed, sigmoid(gate[row, gcol + own + i]))
    if cuda.threadIdx.x == 0 and not sound:
        flags[row] = np.uint8(1)


def kda_gate(stream, *arguments):
    """As the CPU's kda_gate."""
    *given, first, last = arguments
    if last > first:
        kda_gate_warp[last - first, WARP, stream](*given, first)


twin("kda_prepare", kda_prepare)
twin("kda_rows", kda_rows_as_registered)
twin("kda_gate", kda_gate)
