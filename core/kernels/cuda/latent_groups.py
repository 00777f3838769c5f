"""Heads over latent rows where four warps multiply together: scores, and sums under the weights.

As latent_scores.py and latent_sums.py have it, 64 heads by 32 rows, or by 64 columns, at a time.
Rows come to shared memory as they lie and are laid out there once more, high bytes apart from low.
"""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..scalars import bits, mul, pow2, rn
from ..weigh import LOWEST, in_order
from .latent_group_code import WORDS, operand_at, operands_laid, products, products_done
from .latent_scores import (
    HEADS,
    PLACES,
    TILE,
    fetch_rows,
    take_query,
    top_of_row,
)
from .latent_sums import COLUMNS, LINE, total_of
from .target import WARP, device, kernel
from .tensor import (
    columns_of,
    copies_done,
    copies_end,
    copy_four,
    copy_one,
    four_words,
    high_bytes,
    low_bytes,
    put_four,
)

i32, i64 = np.int32, np.int64
SCORES, SCORE_PARTS = 16, 48  # sums of a lane: of one part of its scores, of all three
STEP_BYTES = WARP * 32  # of an operand of 32 rows by 32 inputs
PART, SUMS = 32, 128  # sums of a lane over columns: by one power of two, by all
PLANE, SIDE = COLUMNS * 8, 2 * COLUMNS * 8  # words of a tile's high bytes, of all its bytes
STAGES = 3
ROOM, LAID, AT_HAND = STAGES * WARP * LINE, 2 * SIDE, 4 * WARP
OPERANDS = 12


def score_plan(steps):
    """Of each 32 inputs: high by high, high by low, low by low, low by high."""
    plane, plan = steps * STEP_BYTES, []
    for s in range(steps):
        high, low = STEP_BYTES * s, plane + STEP_BYTES * s
        plan += [
            (0, "ss", 4 * s, high), (SCORES, "su", 4 * s, low),
            (2 * SCORES, "uu", 4 * (steps + s), low), (SCORES, "us", 4 * (steps + s), high),
        ]  # fmt: skip
    return tuple(plan)


def sum_plan():
    """Three bytes of the weights by the low, and by the high, bytes of the rows."""
    low = [(PART * b, "uu", 4 * b, 4 * PLANE) for b in range(3)]
    high = [(PART * (b + 1), "us", 4 * b, 0) for b in (2, 0, 1)]
    return (*low, *high)


@device
def lay_rows(room, line, laid, steps):
    """32 rows as two planes of operands, 32 inputs one after another; a warp has 8 rows."""
    lane, group = cuda.laneid, cuda.threadIdx.x >> 5
    plane, row, t = steps * 4 * WORDS, lane >> 2, lane & 3
    to = laid + group * WORDS + 4 * row + t
    for s in range(steps):
        w = four_words(room, (8 * group + row) * line + 16 * s + 4 * t)
        at = to + s * 4 * WORDS
        room[at], room[at + 32] = high_bytes(w[0], w[1]), high_bytes(w[2], w[3])
        room[at + plane], room[at + plane + 32] = low_bytes(w[0], w[1]), low_bytes(w[2], w[3])
    operands_laid()


@device
def group_score(sums, at, power, scale):
    """A score in its order, from the sums of its three parts."""
    total = (i64(sums[at]) << i64(16)) + (i64(sums[at + SCORES]) << i64(8))
    return in_order(bits(mul(mul(rn(total + i64(sums[at + 2 * SCORES])), power), scale)))


@cache
def group_score_kernel(width):
    """As score_kernel, a block of four warps."""
    steps, words, line = width // 32, width // 2, width // 2 + 16
    held, laid = 8 * steps, WARP * (width // 2 + 16)
    multiply, wait = (
        products(WARP, score_plan(steps), SCORE_PARTS, held),
        products_done(SCORE_PARTS),
    )

    def group_scores(
        q, eq, latent, exponent, saw, scale, places, scores, tiles, tops, first
    ):  # fmt: skip
        """As score_latents; saw [.]: how many rows are seen."""
        room = cuda.shared.array(0, types.int32)
        at_hand = cuda.shared.array(PLACES, types.int32)
        me, lane, at = cuda.threadIdx.x, cuda.laneid, i64(cuda.blockIdx.z)
        row, heads, parts = first + at, eq.shape[1], i64(cuda.gridDim.x)
        blocks = (heads + HEADS - 1) // HEADS
        own = cuda.blockIdx.y * 4 + (me >> 5)
        block, g, t = min(own, blocks - 1), lane >> 2, lane & 3
        seen = i64(saw[at])
        last = (seen + WARP - 1) // WARP  # tiles
        tile, hand, listed = i64(cuda.blockIdx.x), 0, at * tiles * WARP
        if me < WARP and tile < last:
            at_hand[me] = places[listed + tile * WARP + me]
        cuda.syncthreads()
        fetch_rows(room, 0, at_hand, latent, places, listed, tile, parts, last, 0, words, line)
        head, other = min(HEADS * block + g, heads - 1), min(HEADS * block + g + 8, heads - 1)
        asked = cuda.local.array(held, types.int32)
        high, low = asked[: 4 * steps], asked[4 * steps :]
        here, there = (row * heads + head) * words, (row * heads + other) * words
        for s in range(steps):
            take_query(q, here + 16 * s + 4 * t, there + 16 * s + 4 * t, s, high, low)
        on_head = pow2(i32(i64(eq[row, head]) + exponent))
        on_other = pow2(i32(i64(eq[row, other]) + exponent))
        top, top_other = LOWEST, LOWEST
        operand = operand_at(room, laid)
        while tile < last:
            copies_done(0)
            cuda.syncthreads()
            lay_rows(room, line, laid, steps)
            cuda.syncthreads()
            hand = 1 - hand
            fetch_rows(
                room, 0, at_hand, latent, places, listed, tile + parts, parts, last, hand, words,
                line,
            )  # fmt: skip
            sums = cuda.local.array(SCORE_PARTS, types.int32)
            for k in range(SCORE_PARTS):
                sums[k] = 0
            multiply(sums, asked, operand)
            wait(sums)
            for n in range(4):
                j, k = tile * WARP + 8 * n + 2 * t, 4 * n
                a = group_score(sums, k, on_head, scale) if j < seen else LOWEST
                b = group_score(sums, k + 1, on_head, scale) if j + 1 < seen else LOWEST
                c = group_score(sums, k + 2, on_other, scale) if j < seen else LOWEST
                e = group_score(sums, k + 3, on_other, scale) if j + 1 < seen else LOWEST
                top, top_other = max(top, max(a, b)), max(top_other, max(c, e))
                if own < blocks:
                    to = ((at * tiles + tile) * blocks + block) * TILE
                    put_four(scores, to + 128 * n + 4 * lane, a, b, c, e)
            tile += parts
        top, top_other = top_of_row(top), top_of_row(top_other)
        if t == 0 and own < blocks:
            to = at * parts + cuda.blockIdx.x
            tops[to, HEADS * block + g], tops[to, HEADS * block + g + 8] = top, top_other

    group_scores.__name__ += f"_{width}"
    return kernel(group_scores, 4 * (laid + 2 * steps * 4 * WORDS))


@device
def lay_columns(room, stage, laid, to):
    """128 columns of 32 rows as two planes of operands; a warp has 16 columns."""
    lane, warp = cuda.laneid, cuda.threadIdx.x >> 5
    for one in range(2):
        group = 2 * warp + one
        w = columns_of(room, (stage * WARP + lane) * LINE + 4 * group)
        at = to + group * WORDS + lane
        laid[at], laid[at + 32] = high_bytes(w[0], w[1]), high_bytes(w[2], w[3])
        laid[at + PLANE], laid[at + PLANE + 32] = low_bytes(w[0], w[1]), low_bytes(w[2], w[3])
    operands_laid()


@device
def fetch_columns(room, at_hand, latent, places, listed, tile, parts, last, stage, hand, words, c0):
    """Start the copies of a tile, whose places are at hand, and of a later one's places."""
    me, c, step = cuda.threadIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    while c < WARP * COLUMNS // 8 and tile < last:
        j, inside = c // (COLUMNS // 8), c % (COLUMNS // 8) * 4
        source = i64(at_hand[hand * WARP + j]) * words + c0 + inside
        copy_four(room, (stage * WARP + j) * LINE + inside, latent, source)
        c += step
    if me < WARP and tile + 2 * parts < last:
        where = listed + (tile + 2 * parts) * WARP + me
        copy_one(at_hand, ((hand + 2) & 3) * WARP + me, places, where)
    copies_end()


@device
def take_weights(scores, at, weights):
    """A tile's three operands of weights."""
    for b in range(3):
        four = four_words(scores, at + 128 * b)
        for k in range(4):
            weights[4 * b + k] = four[k]


@device
def put_eight(sums, i, at, part, parts, row, head, heads, column, width, n, out):
    """Sums of 8 columns go to their part's place, or if there is one part, rounded, to out."""
    for k in range(4):
        total, one = total_of(sums, 4 * i + k, PART), head + 8 * (k >> 1)
        here = one * width + column + 8 * i + (k & 1)
        if one < heads:
            if parts == 1:
                out[row, here] = rn(total)
            else:
                n[(at * parts + part) * heads * width + here] = total


@cache
def group_sums_kernel(width):
    """As sums_kernel, a block of eight warps; rows of a multiple of 128 values."""
    words = width // 2
    slices = width // COLUMNS
    multiply, wait = products(64, sum_plan(), SUMS, OPERANDS), products_done(SUMS)

    def group_sums(
        latent, saw, places, scores, tiles, heads, parts, n, out, first
    ):  # fmt: skip
        """As sum_latents; slices and blocks of heads along the grid's x, parts along y."""
        room = cuda.shared.array(ROOM, types.int32)
        laid = cuda.shared.array(LAID, types.int32)
        at_hand = cuda.shared.array(AT_HAND, types.int32)
        me, lane, warp = cuda.threadIdx.x, cuda.laneid, cuda.threadIdx.x >> 5
        at, part = i64(cuda.blockIdx.z), i64(cuda.blockIdx.y)
        row, blocks = first + at, (heads + HEADS - 1) // HEADS
        across = i64(cuda.blockIdx.x)
        own, c0 = across // slices * 4 + (warp & 3), across % slices * COLUMNS // 2
        seen = i64(saw[at])
        last = (seen + WARP - 1) // WARP  # tiles
        tile, stage, hand, side = part, 0, 0, 0
        listed, apart = at * tiles * WARP, blocks * TILE
        whole = at * tiles * apart + min(own, blocks - 1) * TILE + 4 * lane
        if me < WARP:
            for ahead in range(2):
                if tile + ahead * parts < last:
                    at_hand[ahead * WARP + me] = places[listed + (tile + ahead * parts) * WARP + me]
        cuda.syncthreads()
        for ahead in range(2):
            fetch_columns(
                room, at_hand, latent, places, listed, tile + ahead * parts, parts, last, ahead,
                ahead, words, c0,
            )  # fmt: skip
        sums = cuda.local.array(SUMS, types.int32)
        for k in range(SUMS):
            sums[k] = 0
        weights = cuda.local.array(OPERANDS, types.int32)
        coming = cuda.local.array(OPERANDS, types.int32)
        take_weights(scores, whole + min(tile, last - 1) * apart, weights)
        operand = operand_at(laid, (warp >> 2) * 8 * WORDS)
        copies_done(1)
        cuda.syncthreads()
        lay_columns(room, 0, laid, 0)
        cuda.syncthreads()
        while tile < last:
            free, following = stage + 2 if stage == 0 else stage - 1, 0 if stage == 2 else stage + 1
            fetch_columns(
                room, at_hand, latent, places, listed, tile + 2 * parts, parts, last, free,
                (hand + 2) & 3, words, c0,
            )  # fmt: skip
            take_weights(scores, whole + min(tile + parts, last - 1) * apart, coming)
            multiply(sums, weights, operand + side * (SIDE // 4))
            copies_done(1)
            cuda.syncthreads()
            side = 1 - side
            lay_columns(room, following, laid, side * SIDE)
            wait(sums)
            for k in range(OPERANDS):
                weights[k] = coming[k]
            cuda.syncthreads()
            tile, stage, hand = tile + parts, following, (hand + 1) & 3
        head, column = HEADS * own + (lane >> 2), 2 * (c0 + (lane & 3)) + 64 * (warp >> 2)
        to = (at, part, parts, row, head, heads, column, width, n, out)
        # One by one: sums stand in registers, which have no numbers when the code runs.
        put_eight(sums, 0, *to)
        put_eight(sums, 1, *to)
        put_eight(sums, 2, *to)
        put_eight(sums, 3, *to)
        put_eight(sums, 4, *to)
        put_eight(sums, 5, *to)
        put_eight(sums, 6, *to)
        put_eight(sums, 7, *to)

    group_sums.__name__ += f"_{width}"
    return kernel(group_sums)
