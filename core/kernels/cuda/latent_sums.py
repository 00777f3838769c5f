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
from .latent_scores import HEADS, TILE, latent_place, onto_us, onto_uu, seen_by
from .target import WARP, device, kernel
from .tensor import (
    columns_of,
    copies_done,
    copies_end,
    copy_four,
    four_words,
    high_bytes,
    low_bytes,
)

i32, i64 = np.int32, np.int64
MOST_ROWS = 1 << 14
COLUMNS = 128  # of a block of threads
QUARTERS = COLUMNS // 32
LINE = COLUMNS // 2 + 4  # words of a row in shared memory: eight rows' 16 bytes lie in all banks
BLOCKS = 4  # blocks of heads that a block of threads has at most
BYTES = 3 * 128  # words of the weights of a tile
PAIR = 2  # blocks of heads of a warp
SUMS = 16  # of a lane's product: four sums of four values
ALL_SUMS, OPERANDS = PAIR * 4 * SUMS, PAIR * 12
ROOM, SHARES, PLACES = 2 * WARP * LINE, 2 * BLOCKS * BYTES, 2 * WARP


@device
def total_of(sums, at):
    """A weighted sum, from its four parts."""
    low = i64(sums[at]) + (i64(sums[at + 4]) << i64(8))
    return low + (i64(sums[at + 8]) << i64(16)) + (i64(sums[at + 12]) << i64(24))


@device
def put_product(
    sums, m, c, at, part, parts, row, head, heads, column, width, d, power, n, out
):  # fmt: skip
    """Four sums of a product go to their part's place, or if there is one part, divided, to out."""
    for k in range(4):
        total, one = total_of(sums, (4 * m + c) * SUMS + k), head + HEADS * m + 8 * (k >> 1)
        here = one * width + column + 8 * c + (k & 1)
        if one < heads:
            if parts == 1:
                out[row, here] = mul(div(rn(total), rn(d[at, one])), power)
            else:
                n[(at * parts + part) * heads * width + here] = total


@cache
def sums_kernel(width):
    """The kernel for rows of so many values, a multiple of 32."""
    words = width // 2

    def sum_latents(
        positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts, scores, tiles,
        heads, d, parts, n, out, first,
    ):  # fmt: skip
        """Columns from 128 blockIdx.x on; row first + blockIdx.z // parts, tiles of a part."""
        room = cuda.shared.array(ROOM, types.int32)
        shares = cuda.shared.array(SHARES, types.int32)
        places = cuda.shared.array(PLACES, types.int64)
        me, lane, step = cuda.threadIdx.x, cuda.laneid, cuda.blockDim.x
        at, part = cuda.blockIdx.z // parts, cuda.blockIdx.z % parts
        row, blocks = first + at, (heads + HEADS - 1) // HEADS
        unit0 = cuda.blockIdx.y * (step >> 5)
        unit, block0 = unit0 + (me >> 5), unit0 // QUARTERS * PAIR
        quarter, block = unit % QUARTERS, unit // QUARTERS * PAIR
        mine = min(blocks - block0, max(PAIR, (step >> 5) // QUARTERS * PAIR))
        column0 = COLUMNS // 2 * cuda.blockIdx.x
        chunks = min(COLUMNS // 2, words - column0) // 4
        position, count, table = positions[row], counts[row], tables[lanes[row]]
        seen = seen_by(position, count, kpool)
        sums = cuda.local.array(ALL_SUMS, types.int32)
        for k in range(ALL_SUMS):
            sums[k] = 0
        weights = cuda.local.array(OPERANDS, types.int32)
        working = block < blocks and 16 * quarter + column0 < words
        tile, side = i64(part), 0
        for ahead in range(2):
            j = min((tile + ahead * parts) * WARP + lane, seen - 1)
            if me < WARP:
                place = latent_place(j, position, table, picked[row], count, page_rows, kpool)
                places[ahead * WARP + lane] = place * words + column0
        cuda.syncthreads()
        fetched = tile
        while tile * WARP < seen:
            # Of the tile itself the first time, later of the next.
            while fetched <= tile + parts:
                to = (fetched - part) // parts & 1
                if fetched * WARP < seen:
                    for c in range(me, WARP * chunks, step):
                        j, inside = c // chunks, c % chunks * 4
                        copy_four(
                            room, (to * WARP + j) * LINE + inside,
                            latent, places[to * WARP + j] + inside,
                        )  # fmt: skip
                    whole = ((at * tiles + fetched) * blocks + block0) * TILE
                    for c in range(me, mine * BYTES // 4, step):
                        j, inside = c // (BYTES // 4), c % (BYTES // 4) * 4
                        copy_four(
                            shares, (to * BLOCKS + j) * BYTES + inside,
                            scores, whole + j * TILE + inside,
                        )  # fmt: skip
                copies_end()
                fetched += parts
            copies_done(1)
            cuda.syncthreads()
            if me < WARP:
                j = min((tile + 2 * parts) * WARP + lane, seen - 1)
                place = latent_place(j, position, table, picked[row], count, page_rows, kpool)
                places[side * WARP + lane] = place * words + column0
            if working:
                for m in range(PAIR):
                    held = (side * BLOCKS + min(block + m, blocks - 1) - block0) * BYTES + 4 * lane
                    for b in range(3):
                        four = four_words(shares, held + 128 * b)
                        for k in range(4):
                            weights[12 * m + 4 * b + k] = four[k]
                for c in range(4):
                    w = columns_of(room, (side * WARP + lane) * LINE + 16 * quarter + 4 * c)
                    h0, h1 = high_bytes(w[0], w[1]), high_bytes(w[2], w[3])
                    l0, l1 = low_bytes(w[0], w[1]), low_bytes(w[2], w[3])
                    for m in range(PAIR):
                        to, a = (4 * m + c) * SUMS, 12 * m
                        onto_uu(sums, to, weights, a, l0, l1)
                        onto_uu(sums, to + 4, weights, a + 4, l0, l1)
                        onto_uu(sums, to + 8, weights, a + 8, l0, l1)
                        onto_us(sums, to + 12, weights, a + 8, h0, h1)
                        onto_us(sums, to + 4, weights, a, h0, h1)
                        onto_us(sums, to + 8, weights, a + 4, h0, h1)
            cuda.syncthreads()
            tile += parts
            side = 1 - side
        if working:
            head, column = HEADS * block + (lane >> 2), 2 * (column0 + 16 * quarter + (lane & 3))
            to = (at, part, parts, row, head, heads, column, width, d, pow2(exponent), n, out)
            # One by one: sums stand in registers, which have no numbers when the code runs.
            put_product(sums, 0, 0, *to)
            put_product(sums, 0, 1, *to)
            put_product(sums, 0, 2, *to)
            put_product(sums, 0, 3, *to)
            put_product(sums, 1, 0, *to)
            put_product(sums, 1, 1, *to)
            put_product(sums, 1, 2, *to)
            put_product(sums, 1, 3, *to)

    sum_latents.__name__ += f"_{width}"
    return kernel(sum_latents)


@kernel
def close_latents(n, parts, heads, width, d, exponent, out, first):
    """Head blockIdx.x of row first + blockIdx.y: its parts' sums added, and divided."""
    head, at, row = cuda.blockIdx.x, cuda.blockIdx.y, first + cuda.blockIdx.y
    below, power = rn(d[at, head]), pow2(exponent)
    for c in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        total = i64(0)
        for part in range(parts):
            total += n[((at * parts + part) * heads + head) * width + c]
        out[row, head * width + c] = mul(div(rn(total), below), power)
