"""Scores over latent rows become the weights P, in their place, as latent_scores.py has them."""

import numpy as np
from numba import cuda
from numba.core import types

from ..attend_tile import P_ONE
from ..scalars import LOG2E, exp2c, flt, mul, rint, sub, to_int
from ..weigh import LOWEST, in_order
from .intrinsics import high_halves, low_halves
from .latent_scores import HEADS, TILE, seen_by, top_of_row
from .target import WARP, device, kernel
from .tensor import four_words, high_bytes, low_bytes, put_four
from .warps import lane_apart

i32, i64 = np.int32, np.int64


@device
def weight_of(score, j, seen, top):
    """P of row j, and 0 past the rows that are seen."""
    if j >= seen:
        return i32(0)
    return to_int(rint(mul(exp2c(mul(sub(flt(in_order(score)), top), LOG2E)), P_ONE)))


@device
def greatest(tops, at, parts, head, t):
    """A head's greatest score, out of those of all parts; the four lanes of a head share it out."""
    top = LOWEST
    for first in range(t, parts, 32):
        for k in range(8):  # whose loads do not wait for one another
            top = max(top, tops[at * parts + min(first + 4 * k, parts - 1), head])
    return flt(in_order(top_of_row(top)))


@device
def put_bytes(scores, to, p):
    """The bytes of P, p [16] as scores stand, as three operands A."""
    for b in range(3):
        words = cuda.local.array(4, types.int32)
        for i in range(4):
            k = 8 * (i >> 1) + 2 * (i & 1)
            if b < 2:
                left, right = low_halves(p[k], p[k + 1]), low_halves(p[k + 4], p[k + 5])
            else:
                left, right = high_halves(p[k], p[k + 1]), high_halves(p[k + 4], p[k + 5])
            words[i] = high_bytes(left, right) if b == 1 else low_bytes(left, right)
        put_four(scores, to + 128 * b, words[0], words[1], words[2], words[3])


@kernel
def weigh_latents(positions, counts, kpool, scores, tiles, tops, parts, d, first):
    """Scores become weights: a warp a tile, block of heads blockIdx.y, row first + blockIdx.z.

    d [., heads] takes the sums of the weights.
    """
    lane, at, block = cuda.laneid, cuda.blockIdx.z, cuda.blockIdx.y
    tile = i64(cuda.blockIdx.x * (cuda.blockDim.x >> 5) + (cuda.threadIdx.x >> 5))
    seen = seen_by(positions[first + at], counts[first + at], kpool)
    if tile * WARP >= seen:
        return
    g, t = lane >> 2, lane & 3
    head, other = HEADS * block + g, HEADS * block + g + 8
    top, top_other = greatest(tops, at, parts, head, t), greatest(tops, at, parts, other, t)
    to = ((at * tiles + tile) * cuda.gridDim.y + block) * TILE + 4 * lane
    p, total, more = cuda.local.array(16, types.int32), i32(0), i32(0)
    for n in range(4):
        four, j = four_words(scores, to + 128 * n), tile * WARP + 8 * n + 2 * t
        p[4 * n] = weight_of(four[0], j, seen, top)
        p[4 * n + 1] = weight_of(four[1], j + 1, seen, top)
        p[4 * n + 2] = weight_of(four[2], j, seen, top_other)
        p[4 * n + 3] = weight_of(four[3], j + 1, seen, top_other)
        total = i32(total + i32(p[4 * n] + p[4 * n + 1]))
        more = i32(more + i32(p[4 * n + 2] + p[4 * n + 3]))
    put_bytes(scores, to, p)
    for apart in (1, 2):
        total = i32(total + lane_apart(total, apart))
        more = i32(more + lane_apart(more, apart))
    if t == 0:
        cuda.atomic.add(d, (at, head), i64(total))
        cuda.atomic.add(d, (at, other), i64(more))
