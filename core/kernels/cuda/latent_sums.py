"""Sums of latent rows under the weights P of their heads, on the tensor cores.

P has three unsigned bytes, a value two (the high one signed): six products, kept as four sums by
the power of two that they are to be shifted by. A row adds less than 2 * 255 * 255 to a sum, so
int32 holds those of MOST_ROWS rows. A warp has 32 heads by 32 columns; rows pass by in shared
memory 32 at a time, those after them being on their way.
"""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..scalars import div, mul, pow2, rn
from .latent_scores import HEADS, TILE, onto_us, onto_uu, seen_by
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
)

i32, i64 = np.int32, np.int64
MOST_ROWS = 1 << 14
COLUMNS = 128  # of a block of threads
QUARTERS = COLUMNS // 32
CHUNKS = COLUMNS // 8  # pieces of 16 bytes of a row
LINE = COLUMNS // 2 + 4  # words of a row in shared memory: eight rows' 16 bytes lie in all banks
BLOCKS = 4  # blocks of heads that a block of threads has at most
BYTES = 3 * 128  # words of the weights of a tile
PAIR = 2  # blocks of heads of a warp
AT_ONCE = 8  # parts that are added together
SUMS = 16  # of a lane's product: four sums of four values
ALL_SUMS, OPERANDS = PAIR * 4 * SUMS, PAIR * 12
STAGES = 3  # tiles that are in shared memory, or on their way there
ROOM, SHARES, PLACES = STAGES * WARP * LINE, STAGES * BLOCKS * BYTES, 4 * WARP


@device
def total_of(sums, at, apart):
    """A weighted sum, from its four parts, so far apart."""
    low = i64(sums[at]) + (i64(sums[at + apart]) << i64(8))
    return low + (i64(sums[at + 2 * apart]) << i64(16)) + (i64(sums[at + 3 * apart]) << i64(24))


@device
def put_product(sums, m, c, at, part, parts, row, head, heads, column, width, n, out):
    """Four sums of a product go to their part's place, or if there is one part, rounded, to out."""
    for k in range(4):
        total, one = total_of(sums, (4 * m + c) * SUMS + k, 4), head + HEADS * m + 8 * (k >> 1)
        here = one * width + column + 8 * c + (k & 1)
        if one < heads:
            if parts == 1:
                out[row, here] = rn(total)
            else:
                n[(at * parts + part) * heads * width + here] = total


@device
def fetch_tile(
    room, shares, at_hand, latent, places, listed, scores, whole, apart, mine, column0, chunks,
    words, tile, parts, last, side, place,
):  # fmt: skip
    """Start the copies of a tile, whose places are at hand, and of a later one's places."""
    me, c, step = cuda.threadIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    while c < WARP * CHUNKS and tile < last:
        j, inside = c // CHUNKS, c % CHUNKS * 4
        if inside < chunks * 4:
            source = i64(at_hand[place * WARP + j]) * words + column0 + inside
            copy_four(room, (side * WARP + j) * LINE + inside, latent, source)
        c += step
    c = me
    while c < mine * BYTES // 4 and tile < last:
        j, inside = c // (BYTES // 4), c % (BYTES // 4) * 4
        source = whole + tile * apart + j * TILE + inside
        copy_four(shares, (side * BLOCKS + j) * BYTES + inside, scores, source)
        c += step
    if me < WARP and tile + 2 * parts < last:
        where = listed + (tile + 2 * parts) * WARP + me
        copy_one(at_hand, ((place + 2) & 3) * WARP + me, places, where)
    copies_end()


@device
def multiply_tile(sums, room, at, shares, own, other):
    """A warp's 32 heads, whose weights stand at `own` and `other`, by 32 columns of a tile."""
    weights = cuda.local.array(OPERANDS, types.int32)
    for b in range(3):
        here, there = four_words(shares, own + 128 * b), four_words(shares, other + 128 * b)
        for k in range(4):
            weights[4 * b + k], weights[12 + 4 * b + k] = here[k], there[k]
    for c in range(4):
        w = columns_of(room, at + 4 * c)
        h0, h1 = high_bytes(w[0], w[1]), high_bytes(w[2], w[3])
        l0, l1 = low_bytes(w[0], w[1]), low_bytes(w[2], w[3])
        # Products onto one sum stand apart, so that none waits for the one before it.
        for m in range(PAIR):
            first_sum, a = (4 * m + c) * SUMS, 12 * m
            onto_uu(sums, first_sum, weights, a, l0, l1)
            onto_uu(sums, first_sum + 4, weights, a + 4, l0, l1)
            onto_uu(sums, first_sum + 8, weights, a + 8, l0, l1)
        for m in range(PAIR):
            first_sum, a = (4 * m + c) * SUMS, 12 * m
            onto_us(sums, first_sum + 4, weights, a, h0, h1)
            onto_us(sums, first_sum + 8, weights, a + 4, h0, h1)
            onto_us(sums, first_sum + 12, weights, a + 8, h0, h1)


@device
def put_products(sums, *to):
    """All sums of a warp; one by one, as registers have no numbers when the code runs."""
    put_product(sums, 0, 0, *to)
    put_product(sums, 0, 1, *to)
    put_product(sums, 0, 2, *to)
    put_product(sums, 0, 3, *to)
    put_product(sums, 1, 0, *to)
    put_product(sums, 1, 1, *to)
    put_product(sums, 1, 2, *to)
    put_product(sums, 1, 3, *to)


@cache
def sums_kernel(width):
    """The kernel for rows of so many values, a multiple of 32."""
    words = width // 2

    def sum_latents(
        positions, latent, kpool, counts, places, scores, tiles, heads, parts, n, out, first
    ):  # fmt: skip
        """Columns from 128 blockIdx.x on; row first + blockIdx.z // parts, tiles of a part."""
        room = cuda.shared.array(ROOM, types.int32)
        shares = cuda.shared.array(SHARES, types.int32)
        at_hand = cuda.shared.array(PLACES, types.int32)
        me, lane, warps = cuda.threadIdx.x, cuda.laneid, cuda.blockDim.x >> 5
        at, part = i64(cuda.blockIdx.z // parts), i64(cuda.blockIdx.z % parts)
        row, blocks = first + at, (heads + HEADS - 1) // HEADS
        unit0 = cuda.blockIdx.y * warps
        unit, block0 = unit0 + (me >> 5), unit0 // QUARTERS * PAIR
        quarter, block = unit % QUARTERS, unit // QUARTERS * PAIR
        mine = min(blocks - block0, max(PAIR, warps // QUARTERS * PAIR))
        column0 = COLUMNS // 2 * cuda.blockIdx.x
        chunks = min(COLUMNS // 2, words - column0) // 4
        seen = seen_by(positions[row], counts[row], kpool)
        last = (seen + WARP - 1) // WARP  # tiles
        sums, tile, side, place = cuda.local.array(ALL_SUMS, types.int32), part, 0, 0
        for k in range(ALL_SUMS):
            sums[k] = 0
        working = block < blocks and 16 * quarter + column0 < words
        listed, apart = at * tiles * WARP, blocks * TILE
        whole = at * tiles * apart + block0 * TILE
        if me < WARP:
            for ahead in range(2):
                if tile + ahead * parts < last:
                    where = listed + (tile + ahead * parts) * WARP
                    at_hand[ahead * WARP + me] = places[where + me]
        cuda.syncthreads()
        for ahead in range(2):
            fetch_tile(
                room, shares, at_hand, latent, places, listed, scores, whole, apart, mine,
                column0, chunks, words, tile + ahead * parts, parts, last, ahead, ahead,
            )  # fmt: skip
        while tile < last:
            copies_done(1)
            cuda.syncthreads()
            free = side + 2 if side == 0 else side - 1
            fetch_tile(
                room, shares, at_hand, latent, places, listed, scores, whole, apart, mine,
                column0, chunks, words, tile + 2 * parts, parts, last, free, (place + 2) & 3,
            )  # fmt: skip
            if working:
                own = (side * BLOCKS + block - block0) * BYTES + 4 * lane
                other = (side * BLOCKS + min(block + 1, blocks - 1) - block0) * BYTES + 4 * lane
                columns = (side * WARP + lane) * LINE + 16 * quarter
                multiply_tile(sums, room, columns, shares, own, other)
            side = 0 if side == 2 else side + 1
            tile, place = tile + parts, (place + 1) & 3
        if working:
            head, column = HEADS * block + (lane >> 2), 2 * (column0 + 16 * quarter + (lane & 3))
            put_products(sums, at, part, parts, row, head, heads, column, width, n, out)

    sum_latents.__name__ += f"_{width}"
    return kernel(sum_latents)


@kernel
def close_latents(n, parts, heads, width, d, exponent, out, first):
    """Head blockIdx.x of row first + blockIdx.y: its parts' sums added and rounded, and divided."""
    head, at, row = cuda.blockIdx.x, cuda.blockIdx.y, first + cuda.blockIdx.y
    below, power = rn(d[at, head]), pow2(exponent)
    for c in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        share, total = out[row, head * width + c], i64(0)
        for first_part in range(0, parts if parts > 1 else 0, AT_ONCE):
            for k in range(AT_ONCE):  # whose loads do not wait for one another
                part = min(first_part + k, parts - 1)
                value = n[((at * parts + part) * heads + head) * width + c]
                total += value if first_part + k < parts else i64(0)
        share = rn(total) if parts > 1 else share
        out[row, head * width + c] = mul(div(share, below), power)
