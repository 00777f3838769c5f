"""The CUDA twins of kda.py: a warp a head of a row; the recurrence with its state in registers.

Four neighbouring lanes make two values: each is one of the four chains over the keys, so it holds
the keys of its remainder modulo 4, and the chains meet by shuffles, (c0 + c1) + (c2 + c3). What a
lane reads of shared memory serves both values: its reads take about as long as its sums.
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
from .target import WARP, device, kernel, lane_apart, threads, warp_sum, warp_top
from .tensor import copies_done, copies_end, copy_one, put_two, two_of
from .twins import twin

i32, i64 = np.int32, np.int64
CHAINS = 4
THREADS = 128
VALUES = THREADS // 2  # of a head, of a block of threads
MOST_COUNT = 8  # values of a head that a lane holds
AHEAD = 8  # rows that are copied together while others are computed


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


@device
def joined(mine):
    """The four chains of a value, one of which this lane has, in each of their lanes."""
    both = add(mine, lane_apart(mine, 1))
    return add(both, lane_apart(both, 2))


@cache
def chain_loops(width):
    """(recall, write) of one chain over its keys, for two values of heads of so many keys.

    recall(s, t, staged, on_a, on_k) decays the keys of both values and sums them by k; write(s, t,
    staged, on_k, on_q, apart, other) adds k times what is apart and sums the result by q. s, t: the
    chain's states, in registers.
    """
    keys = width // CHAINS
    quads = keys if keys % 4 == 0 else 0

    @device
    def recall(s, t, staged, on_a, on_k):
        one, two = ZERO, ZERO
        for i in range(0, quads, 4):
            by, at = four_of(staged, on_a + i), four_of(staged, on_k + i)
            for j in range(4):
                s[i + j], t[i + j] = mul(s[i + j], by[j]), mul(t[i + j], by[j])
                one, two = fma(s[i + j], at[j], one), fma(t[i + j], at[j], two)
        for i in range(quads, keys):
            s[i], t[i] = mul(s[i], staged[on_a + i]), mul(t[i], staged[on_a + i])
            one, two = fma(s[i], staged[on_k + i], one), fma(t[i], staged[on_k + i], two)
        return one, two

    @device
    def write(s, t, staged, on_k, on_q, apart, other):
        one, two = ZERO, ZERO
        for i in range(0, quads, 4):
            at, by = four_of(staged, on_k + i), four_of(staged, on_q + i)
            for j in range(4):
                s[i + j], t[i + j] = fma(at[j], apart, s[i + j]), fma(at[j], other, t[i + j])
                one, two = fma(s[i + j], by[j], one), fma(t[i + j], by[j], two)
        for i in range(quads, keys):
            at, by = staged[on_k + i], staged[on_q + i]
            s[i], t[i] = fma(at, apart, s[i]), fma(at, other, t[i])
            one, two = fma(s[i], by, one), fma(t[i], by, two)
        return one, two

    return recall, write


@cache
def row_fetcher(width):
    """The part that starts copies of some rows of a head into one side of shared memory.

    A row is decay, key and query by chain, then the block's values, then beta.
    """
    line, record, whole = width // CHAINS + 4, record_of(width), 3 * CHAINS * (width // CHAINS + 4)

    @device
    def fetch(staged, side, start, rows, q, k, qkv, stride, a, beta, row0, heads, head):
        me, step = cuda.threadIdx.x, cuda.blockDim.x
        value0, values = cuda.blockIdx.y * (step >> 1), step >> 1
        source = (row0 + start) * heads * width + head * width
        value = (row0 + start) * stride + (2 * heads + head) * width + value0 + me
        share = (row0 + start) * heads + head
        to, left = side * AHEAD * record, min(AHEAD, rows - start)
        while left > 0:
            c = me
            while c < width:
                at = to + (c & 3) * line + (c >> 2)
                copy_one(staged, at, a, source + c)
                copy_one(staged, at + CHAINS * line, k, source + c)
                copy_one(staged, at + 2 * CHAINS * line, q, source + c)
                c += step
            if me < values and value0 + me < width:
                copy_one(staged, to + whole + me, qkv, value)
            if me == values:
                copy_one(staged, to + whole + VALUES, beta, share)
            to, left = to + record, left - 1
            source, value, share = source + heads * width, value + stride, share + heads
        copies_end()

    return fetch


def record_of(width):
    """Words of a staged row."""
    return 3 * CHAINS * (width // CHAINS + 4) + VALUES + 4


@cache
def recurrence_kernel(width):
    """The recurrence for heads of so many keys and values."""
    keys, (recall, write), fetch = width // CHAINS, chain_loops(width), row_fetcher(width)
    line, record = keys + 4, record_of(width)  # four chains read 16 bytes each, of their own banks
    room, whole = 2 * AHEAD * record_of(width), 3 * CHAINS * (width // CHAINS + 4)

    def kda_rows_block(q, k, qkv, stride, a, beta, states, slots, heads, runs, o, first):
        """Item first + blockIdx.x; the values of blockIdx.y, two a lane. All but runs are flat."""
        staged = cuda.shared.array(room, types.float32)
        me, item = cuda.threadIdx.x, first + cuda.blockIdx.x
        run, head, value0 = item // heads, item % heads, cuda.blockIdx.y * (cuda.blockDim.x >> 1)
        value, chain = value0 + (me >> 2) * 2, me & 3
        column = min(value, width - 2)
        lane, row0, position0, rows = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 3]
        if rows <= 0:
            return
        fetch(staged, 0, 0, rows, q, k, qkv, stride, a, beta, row0, heads, head)
        s, t = cuda.local.array(keys, types.float32), cuda.local.array(keys, types.float32)
        slot = (position0 + slots - 1) % slots
        kept = ((lane * slots + slot) * heads + head) * width * width + chain * width + column
        for i in range(keys):
            s[i], t[i] = ZERO, ZERO
            if position0 > 0:
                s[i], t[i] = two_of(states, kept + CHAINS * width * i)
        row, side, first_slot = i64(0), 0, (position0 + max(rows - slots, 0)) % slots
        while row < rows:
            if row & (AHEAD - 1) == 0:
                copies_done(0)
                cuda.syncthreads()
                side = (row // AHEAD) & 1
                fetch(
                    staged, 1 - side, row + AHEAD, rows, q, k, qkv, stride, a, beta, row0, heads,
                    head,
                )  # fmt: skip
            at = (side * AHEAD + (row & (AHEAD - 1))) * record
            on_a, on_v = at + chain * line, at + whole
            on_k, on_q = on_a + CHAINS * line, on_a + 2 * CHAINS * line
            share, mine = staged[on_v + VALUES], on_v + column - value0
            wanted, other = staged[mine], staged[mine + 1]
            one, two = recall(s, t, staged, on_a, on_k)
            one, two = joined(one), joined(two)
            one, two = write(
                s, t, staged, on_k, on_q, mul(share, sub(wanted, one)), mul(share, sub(other, two))
            )
            one, two = joined(one), joined(two)
            if value < width and chain == 0:
                to = ((row0 + row) * heads + head) * width + column
                o[to], o[to + 1] = one, two
            if value < width and row >= rows - slots:
                slot = first_slot + row - max(rows - slots, 0)
                slot = slot - slots if slot >= slots else slot
                kept = ((lane * slots + slot) * heads + head) * width * width + chain * width
                for i in range(keys):
                    put_two(states, kept + CHAINS * width * i + column, s[i], t[i])
            row += 1

    kda_rows_block.__name__ += f"_{width}"
    return kernel(kda_rows_block)


def kda_rows(stream, q, k, qkv, a, beta, states, runs, o, first, last):
    """As the CPU's kda_rows, without its work space."""
    slots, heads, width = states.shape[1:4]
    if last > first:
        block = threads(THREADS)
        grid = (last - first, -(-width * CHAINS // (2 * block)))
        q, k, flat, a, beta, kept, out = (
            one.reshape(one.size) for one in (q, k, qkv, a, beta, states, o)
        )
        recurrence_kernel(width)[grid, block, stream](
            q, k, flat, qkv.shape[1], a, beta, kept, slots, heads, runs, out, first
        )


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
