"""The recurrence of the gated delta rule on a GPU, its state in registers.

Four neighbouring lanes make two values: each is one of the four chains over the keys, so it holds
the keys of its remainder modulo 4, and the chains meet by shuffles, (c0 + c1) + (c2 + c3). What a
lane reads of shared memory serves both values: its reads take about as long as its sums.
"""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..scalars import ZERO, add, fma, mul, sub
from .intrinsics import four_of
from .target import device, kernel, threads
from .tensor import copies_done, copies_end, copy_one, put_two, two_of
from .warps import lane_apart

i64 = np.int64
CHAINS = 4
THREADS = 128
BLOCK = threads(THREADS)  # that a block has here
VALUES = THREADS // 2  # of a head, of a block of threads
ROUND = 4  # rows of a run, on average, of which a step may be a round
# Of so many, no two blocks that have rows were put onto one multiprocessor of an H200 while another
# had none; of more, eight pairs of 128. A pair takes 1.4 times as long.
SPREAD = 256
AHEAD = 8  # rows that are copied together while others are computed


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
def state_movers(width):
    """(bring, keep) of one chain's states of two values, which stand in memory from `at` on."""
    keys, apart = width // CHAINS, CHAINS * width

    @device
    def bring(s, t, states, at, begun):
        for i in range(keys):
            s[i], t[i] = ZERO, ZERO
            if begun:
                s[i], t[i] = two_of(states, at + apart * i)

    @device
    def keep(s, t, states, at):
        for i in range(keys):
            put_two(states, at + apart * i, s[i], t[i])

    return bring, keep


@cache
def row_fetcher(width):
    """The part that starts copies of some rows of a head into one side of shared memory.

    A row is decay, key and query by chain, then the block's values, then beta.
    """
    line, record, whole = width // CHAINS + 4, record_of(width), 3 * CHAINS * (width // CHAINS + 4)

    @device
    def column(staged, at, x, start, step, last):
        """A word of AHEAD rows; behind the last there is, that one's again, which nobody reads."""
        for r in range(AHEAD):  # without a branch, so that places are found once
            copy_one(staged, at + r * record, x, start + min(r, last) * step)

    @device
    def fetch(staged, side, start, rows, q, k, qkv, stride, a, beta, row0, heads, head, value0):
        me, to = cuda.threadIdx.x, side * AHEAD * record
        row, last, wide = row0 + start, rows - start - 1, heads * width
        if last >= 0:
            for c in range(me, width, BLOCK):
                at, source = to + (c & 3) * line + (c >> 2), row * wide + head * width + c
                column(staged, at, a, source, wide, last)
                column(staged, at + CHAINS * line, k, source, wide, last)
                column(staged, at + 2 * CHAINS * line, q, source, wide, last)
            if me < BLOCK >> 1 and value0 + me < width:
                value = row * stride + 2 * wide + head * width + value0 + me
                column(staged, to + whole + me, qkv, value, stride, last)
            for r in range(me, min(AHEAD, last + 1), BLOCK):
                copy_one(staged, to + r * record + whole + VALUES, beta, (row + r) * heads + head)
        copies_end()

    return fetch


def record_of(width):
    """Words of a staged row."""
    return 3 * CHAINS * (width // CHAINS + 4) + VALUES + 4


def shares_of(width):
    """Blocks of an item, a head of a run."""
    return -(-width * CHAINS // (2 * BLOCK))


@cache
def item_stepper(width):
    """The part of a block that steps values of one head through the rows of a run, two a lane."""
    keys, (recall, write), fetch = width // CHAINS, chain_loops(width), row_fetcher(width)
    bring, keep = state_movers(width)
    line, record = keys + 4, record_of(width)  # four chains read 16 bytes each, of their own banks
    whole = 3 * CHAINS * (width // CHAINS + 4)

    @device
    def step(staged, q, k, qkv, stride, a, beta, states, slots, heads, runs, o, run, head, value0):
        me = cuda.threadIdx.x
        value, chain = value0 + (me >> 2) * 2, me & 3
        column = min(value, width - 2)
        lane, row0, position0, rows = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 3]
        fetch(staged, 0, 0, rows, q, k, qkv, stride, a, beta, row0, heads, head, value0)
        s, t = cuda.local.array(keys, types.float32), cuda.local.array(keys, types.float32)
        slot = (position0 + slots - 1) % slots
        kept = ((lane * slots + slot) * heads + head) * width * width + chain * width + column
        bring(s, t, states, kept, position0 > 0)
        row, side, first_slot = i64(0), 0, (position0 + max(rows - slots, 0)) % slots
        while row < rows:
            if row & (AHEAD - 1) == 0:
                copies_done(0)
                cuda.syncthreads()
                side = (row // AHEAD) & 1
                fetch(
                    staged, 1 - side, row + AHEAD, rows, q, k, qkv, stride, a, beta, row0, heads,
                    head, value0,
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
                keep(s, t, states, kept + column)
            row += 1

    return step


@cache
def recurrence_kernel(width):
    """The recurrence for heads of so many keys and values."""
    step, shares, room = item_stepper(width), shares_of(width), 2 * AHEAD * record_of(width)

    def kda_rows_block(q, k, qkv, stride, a, beta, states, slots, heads, runs, o, first, last):
        """A share of every so many-th item. All but runs are flat."""
        staged = cuda.shared.array(room, types.float32)
        item, share = first + cuda.blockIdx.x // shares, cuda.blockIdx.x % shares
        while item < last:
            run = item // heads
            if runs[run, 3] > 0:
                cuda.syncthreads()  # nobody reads any more what the item before has left
                step(
                    staged, q, k, qkv, stride, a, beta, states, slots, heads, runs, o, run,
                    item % heads, share * (BLOCK >> 1),
                )  # fmt: skip
            item += cuda.gridDim.x // shares

    kda_rows_block.__name__ += f"_{width}"
    return kernel(kda_rows_block)


def kda_rows(stream, q, k, qkv, a, beta, states, runs, o, first, last):
    """As the CPU's kda_rows, without its work space."""
    slots, heads, width = states.shape[1:4]
    rows, many, shares = q.shape[0], runs.shape[0], shares_of(states.shape[3])
    items = last - first if rows <= ROUND * many else min(last - first, max(1, SPREAD // shares))
    if last > first:
        q, k, flat, a, beta, kept, out = (
            one.reshape(one.size) for one in (q, k, qkv, a, beta, states, o)
        )
        recurrence_kernel(width)[items * shares, BLOCK, stream](
            q, k, flat, qkv.shape[1], a, beta, kept, slots, heads, runs, out, first, last
        )
