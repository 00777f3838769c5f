"""Scores of heads over the latent rows that they see, on the tensor cores.

A warp has 16 heads in registers; 32 latent rows at a time pass by in shared memory. Both are int16
as two bytes, so a score is four products of bytes. Scores stand in scratch as the lanes of a warp
hold them: of a tile of 32 rows by a block of 16 heads word 128 n + 4 (4 g + t) + c has row 8 n + 2
t + (c & 1) and head g + 8 (c >> 1). The weights P take their place as bytes: word 128 b + 4 lane +
i has byte b of rows 2 t, 2 t + 1, 8 + 2 t, 9 + 2 t of head g, of head g + 8, then of both 16 rows
on: operand A of a product over 32 rows.
"""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..scalars import bits as bits_of
from ..scalars import mul, pow2, rn
from ..weigh import LOWEST, in_order
from .target import WARP, device, kernel
from .tensor import (
    copies_done,
    copies_end,
    copy_four,
    copy_one,
    four_words,
    high_bytes,
    low_bytes,
    product_ss,
    product_su,
    product_us,
    product_uu,
    put_four,
)
from .warps import lane_apart

i32, i64 = np.int32, np.int64
HEADS = 16  # of a warp
TILE = HEADS * WARP  # scores of a warp's tile
SUMS = 12  # of a lane: high, middle and low ones of four scores
ALL_SUMS = 4 * SUMS
PLACES = 2 * WARP


@device
def seen_by(position, count, kpool):
    """How many latent rows a query sees: its pools' and those of the unfinished one."""
    return count * kpool + (position + 1) % kpool


@device
def latent_place(j, position, table, picked, count, page_rows, kpool):
    """Where the row j that a query sees lies in the arena."""
    whole = count * kpool
    at = (position + 1) // kpool * kpool + j - whole
    if j < whole:
        at = i64(picked[j // kpool]) * kpool + j % kpool
    return i64(table[at // page_rows]) * page_rows + at % page_rows


def onto(product):
    """The part that adds a product to sums [.] at a place; a [.] has operand A."""

    @device
    def add_product(sums, at, a, start, b0, b1):
        made = product(
            a[start], a[start + 1], a[start + 2], a[start + 3], b0, b1,
            sums[at], sums[at + 1], sums[at + 2], sums[at + 3],
        )  # fmt: skip
        sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = made[0], made[1], made[2], made[3]

    return add_product


onto_ss, onto_su, onto_us, onto_uu = map(onto, (product_ss, product_su, product_us, product_uu))


@device
def take_query(q, at, other, s, high, low):
    """32 inputs of a lane's two heads as bytes: operand A, number s of them."""
    a, b = four_words(q, at), four_words(q, other)
    high[4 * s], low[4 * s] = high_bytes(a[0], a[1]), low_bytes(a[0], a[1])
    high[4 * s + 1], low[4 * s + 1] = high_bytes(b[0], b[1]), low_bytes(b[0], b[1])
    high[4 * s + 2], low[4 * s + 2] = high_bytes(a[2], a[3]), low_bytes(a[2], a[3])
    high[4 * s + 3], low[4 * s + 3] = high_bytes(b[2], b[3]), low_bytes(b[2], b[3])


@device
def score_of(sums, at, power, scale):
    """A score in its order, from the sums of its three parts."""
    total = (i64(sums[at]) << i64(16)) + (i64(sums[at + 4]) << i64(8)) + i64(sums[at + 8])
    return in_order(bits_of(mul(mul(rn(total), power), scale)))


@device
def top_of_row(value):
    """The largest of the four lanes that share a head."""
    value = max(value, lane_apart(value, 1))
    return max(value, lane_apart(value, 2))


@kernel
def list_latents(
    positions, lanes, tables, page_rows, kpool, picked, counts, tiles, places, d, first
):  # fmt: skip
    """places [., 32 tiles]: where rows lie that row first + blockIdx.y sees; d [., heads]: zeros.

    Whole tiles are listed: what a row does not see is its last row again.
    """
    at, j, row = cuda.blockIdx.y, i64(cuda.grid(1)), first + cuda.blockIdx.y
    position, count, table = positions[row], counts[row], tables[lanes[row]]
    seen = seen_by(position, count, kpool)
    if j < (seen + WARP - 1) // WARP * WARP:
        place = latent_place(
            min(j, seen - 1), position, table, picked[row], count, page_rows, kpool
        )
        places[at * tiles * WARP + j] = i32(place)
    if j < d.shape[1]:
        d[at, j] = 0


@device
def fetch_rows(
    room, to, at_hand, latent, places, listed, tile, parts, last, side, words, line
):  # fmt: skip
    """Start the copies of a tile, whose places are at hand, and of the next one's places."""
    me, c, step, chunks = cuda.threadIdx.x, cuda.threadIdx.x, cuda.blockDim.x, words // 4
    while c < WARP * chunks and tile < last:
        j, inside = c // chunks, c % chunks * 4
        source = i64(at_hand[side * WARP + j]) * words + inside
        copy_four(room, to + j * line + inside, latent, source)
        c += step
    if me < WARP and tile + parts < last:
        where = listed + (tile + parts) * WARP + me
        copy_one(at_hand, (1 - side) * WARP + me, places, where)
    copies_end()


@cache
def tile_products(width):
    """The part that multiplies a warp's heads by a tile of rows of so many values."""
    steps, line = width // 32, width // 2 + 16

    @device
    def multiply(sums, room, start, high, low):
        rows_high = cuda.local.array(8, types.int32)
        rows_low = cuda.local.array(8, types.int32)
        for s in range(steps):
            for n in range(4):
                w = four_words(room, start + 8 * n * line + 16 * s)
                rows_high[2 * n], rows_low[2 * n] = high_bytes(w[0], w[1]), low_bytes(w[0], w[1])
                rows_high[2 * n + 1] = high_bytes(w[2], w[3])
                rows_low[2 * n + 1] = low_bytes(w[2], w[3])
            # Products onto one sum stand apart, so that none waits for the one before it.
            for n in range(4):
                a, b = rows_high[2 * n], rows_high[2 * n + 1]
                onto_ss(sums, SUMS * n, high, 4 * s, a, b)
                onto_us(sums, SUMS * n + 4, low, 4 * s, a, b)
            for n in range(4):
                a, b = rows_low[2 * n], rows_low[2 * n + 1]
                onto_uu(sums, SUMS * n + 8, low, 4 * s, a, b)
                onto_su(sums, SUMS * n + 4, high, 4 * s, a, b)

    return multiply


@device
def put_scores(sums, first, seen, on_head, on_other, scale, scores, to, mine):
    """A lane's scores into their place, of rows from `first` on; the greatest of each head."""
    top, top_other = LOWEST, LOWEST
    for n in range(4):
        j, k = first + 8 * n, SUMS * n
        a = score_of(sums, k, on_head, scale) if j < seen else LOWEST
        b = score_of(sums, k + 1, on_head, scale) if j + 1 < seen else LOWEST
        c = score_of(sums, k + 2, on_other, scale) if j < seen else LOWEST
        e = score_of(sums, k + 3, on_other, scale) if j + 1 < seen else LOWEST
        top, top_other = max(top, max(a, b)), max(top_other, max(c, e))
        if mine:
            put_four(scores, to + 128 * n, a, b, c, e)
    return top, top_other


@cache
def score_kernel(width):
    """The kernel for rows of so many values, a multiple of 32."""
    steps, words, line = width // 32, width // 2, width // 2 + 16
    held, multiply = 4 * (width // 32), tile_products(width)

    def score_latents(
        q, eq, positions, latent, exponent, kpool, counts, scale, places, scores, tiles, tops,
        first,
    ):  # fmt: skip
        """Tiles of part blockIdx.x, a warp a block of heads, row first + blockIdx.z.

        q, latent, places, scores [.] int32; tops [., heads]: the greatest scores by part.
        """
        room = cuda.shared.array(0, types.int32)
        at_hand = cuda.shared.array(PLACES, types.int32)
        me, lane, at = cuda.threadIdx.x, cuda.laneid, i64(cuda.blockIdx.z)
        row, heads, parts = first + at, eq.shape[1], i64(cuda.gridDim.x)
        blocks = (heads + HEADS - 1) // HEADS
        own = cuda.blockIdx.y * (cuda.blockDim.x >> 5) + (me >> 5)
        block, g, t = min(own, blocks - 1), lane >> 2, lane & 3
        seen = seen_by(positions[row], counts[row], kpool)
        last = (seen + WARP - 1) // WARP  # tiles
        tile, side, listed = i64(cuda.blockIdx.x), 0, at * tiles * WARP
        if me < WARP and tile < last:
            at_hand[me] = places[listed + tile * WARP + me]
        cuda.syncthreads()
        fetch_rows(room, 0, at_hand, latent, places, listed, tile, parts, last, 0, words, line)
        head, other = min(HEADS * block + g, heads - 1), min(HEADS * block + g + 8, heads - 1)
        high, low = cuda.local.array(held, types.int32), cuda.local.array(held, types.int32)
        here, there = (row * heads + head) * words, (row * heads + other) * words
        for s in range(steps):
            take_query(q, here + 16 * s + 4 * t, there + 16 * s + 4 * t, s, high, low)
        on_head = pow2(i32(i64(eq[row, head]) + exponent))
        on_other = pow2(i32(i64(eq[row, other]) + exponent))
        top, top_other = LOWEST, LOWEST
        while tile < last:
            copies_done(0)
            cuda.syncthreads()
            other_side = (1 - side) * WARP * line
            fetch_rows(
                room, other_side, at_hand, latent, places, listed, tile + parts, parts, last,
                1 - side, words, line,
            )  # fmt: skip
            sums = cuda.local.array(ALL_SUMS, types.int32)
            for k in range(ALL_SUMS):
                sums[k] = 0
            multiply(sums, room, side * WARP * line + g * line + 4 * t, high, low)
            to = ((at * tiles + tile) * blocks + block) * TILE + 4 * lane
            found = put_scores(
                sums, tile * WARP + 2 * t, seen, on_head, on_other, scale, scores, to, own < blocks
            )
            top, top_other = max(top, found[0]), max(top_other, found[1])
            tile, side = tile + parts, 1 - side
        top, top_other = top_of_row(top), top_of_row(top_other)
        if t == 0 and own < blocks:
            to = at * parts + cuda.blockIdx.x
            tops[to, HEADS * block + g], tops[to, HEADS * block + g + 8] = top, top_other

    score_latents.__name__ += f"_{width}"
    return kernel(score_latents, 2 * WARP * line * 4)
