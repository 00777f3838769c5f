"""The CUDA twin of pools.py: a warp a pool, then the ring takes the raw rows."""

import numpy as np
from numba import cuda

from ..digest import SEED_0, SEED_1, mix64, place, word_mix
from ..pools import GATE, KEY
from ..scalars import ZERO, add, div, exp, fma, pow2, q16_value, sub
from .rows import wrapped_sum
from .target import WARP, device, kernel, threads
from .twins import twin

u16, u64 = np.uint16, np.uint64
THREADS = 128


@device
def raw_at(ik, ig, gcol, ring, lane, row0, position0, position, i):
    """(key, gate) of a position of a run, channel i: of its rows, or of the ring before them."""
    if position >= position0:
        row = row0 + position - position0
        return ik[row, i], ig[row, gcol + i]
    slot = position % ring.shape[1]
    return ring[lane, slot, KEY, i], ring[lane, slot, GATE, i]


@device
def key_digit(ik, ig, gcol, ape, ring, lane, row0, position0, position, scale, i):
    """Channel i of the pool that ends at a position."""
    kpool, start = ape.shape[0], position + 1 - ape.shape[0]
    greatest = ZERO
    for j in range(kpool):
        raw = raw_at(ik, ig, gcol, ring, lane, row0, position0, start + j, i)
        g = add(raw[1], ape[j, i])
        if j == 0 or g > greatest or g != g:
            greatest = g
    below, above = ZERO, ZERO
    for j in range(kpool):
        raw = raw_at(ik, ig, gcol, ring, lane, row0, position0, start + j, i)
        p = exp(sub(add(raw[1], ape[j, i]), greatest))
        below = add(below, p)
        above = fma(p, raw[0], above)
    return q16_value(div(above, below), scale)


@kernel
def pool_keys(
    ik, ig, gcol, ape, exponent, ring, runs, tables, keys, page_rows, part, layer, sums, first
):  # fmt: skip
    """Run first + blockIdx.x: of the pools that it completes those from blockIdx.y on in steps."""
    run, kpool, width = first + cuda.blockIdx.x, ape.shape[0], ape.shape[1]
    lane, row0, position0, rows = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 3]
    where, scale = place(part, layer, 0), pow2(-exponent)
    pool = position0 // kpool + cuda.blockIdx.y
    while (pool + 1) * kpool <= position0 + rows:
        position = (pool + 1) * kpool - 1
        page, at = tables[lane, position // page_rows], position % page_rows // kpool
        mix_0, mix_1 = mix64(u64(position) ^ SEED_0), mix64(u64(position) ^ SEED_1)
        sum_0, sum_1 = u64(0), u64(0)
        for w in range(cuda.threadIdx.x, width // 4, WARP):
            word = u64(0)
            for c in range(4):
                i = 4 * w + c
                digit = key_digit(
                    ik, ig, gcol, ape, ring, lane, row0, position0, position, scale, i
                )
                keys[page, at, i] = digit
                word |= u64(u16(digit)) << u64(16 * c)
            sum_0 += word_mix(word, where | u64(w), mix_0)
            sum_1 += word_mix(word, where | u64(w), mix_1)
        sum_0, sum_1 = wrapped_sum(sum_0), wrapped_sum(sum_1)
        if cuda.threadIdx.x == 0:
            row = row0 + position - position0
            cuda.atomic.add(sums, (row, 0), sum_0)
            cuda.atomic.add(sums, (row, 1), sum_1)
        pool += cuda.gridDim.y


@kernel
def pool_keep(ik, ig, gcol, ring, runs, first):
    """The ring takes the last rows of run first + blockIdx.y."""
    run, i, ring_rows = first + cuda.blockIdx.y, cuda.grid(1), ring.shape[1]
    if i < ring.shape[3]:
        lane, row0, position0, rows = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 3]
        for at in range(max(0, rows - ring_rows), rows):
            slot = (position0 + at) % ring_rows
            ring[lane, slot, KEY, i] = ik[row0 + at, i]
            ring[lane, slot, GATE, i] = ig[row0 + at, gcol + i]


def pool_rows(
    stream, ik, ig, gcol, ape, exponent, ring, runs, tables, keys, page_rows, part, layer, sums,
    first, last,
):  # fmt: skip
    """As the CPU's pool_rows."""
    if last > first:
        kpool, width = ape.shape
        each = -(-ik.shape[0] // (last - first))
        grid = (last - first, min(1 + each // kpool, 1024))
        pool_keys[grid, WARP, stream](
            ik, ig, gcol, ape, exponent, ring, runs, tables, keys, page_rows, part, layer, sums,
            first,
        )  # fmt: skip
        block = threads(THREADS)
        pool_keep[(-(-width // block), last - first), block, stream](
            ik, ig, gcol, ring, runs, first
        )


twin("pool_rows", pool_rows)
