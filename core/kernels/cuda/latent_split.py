"""Attention over latent rows, dealt over the whole chip: scores, weighted sums, and their close.

A warp scores 32 latent rows against 16 heads on the tensor cores. A block then weighs 128 rows for
8 heads: P has three bytes, a product of two rows by one of them is one instruction, and 128 rows
keep an int32 sum: 2^15 * 255 * 128 < 2^31. Partial sums are int64 and meet in the last launch.
"""

import numpy as np
from numba import cuda
from numba.core import types

from ..attend_tile import P_ONE
from ..scalars import LOG2E, div, exp2c, flt, mul, pow2, rint, rn, sub, to_int
from ..scalars import bits as bits_of
from ..weigh import LOWEST, in_order
from .fragments import SUMS, place_of, row_sums
from .intrinsics import dot_high, dot_low, high_halves, low_halves
from .target import WARP, device, kernel, threads, warp_max, warp_sum

i32, i64 = np.int32, np.int64
HEADS = 16  # of a warp that scores
WEIGHED = 8  # heads of a block that weighs
CHUNK = 128  # rows of a block that weighs
PAIRS = CHUNK // 2
ROOM = WARP // 8 * SUMS  # sums of a warp that scores
AHEAD = 4  # pairs of rows whose loads stand before their products
LOADED = 2 * AHEAD
SIX = 6 * WEIGHED  # sums of a thread that weighs: of two columns, by three bytes
MOST_WIDTH = 512
THREADS = 256

sums_of_rows = row_sums(WARP // 8)
place = device(place_of)


def fits(width):
    """Whether rows of so many values can be attended here."""
    return width % 32 == 0 and width <= MOST_WIDTH


def scratch_shapes(rows, heads, width, most):
    """(scores int32, tops int32, n int64, d int64): shapes for so many rows of a step.

    most: rows of latents that a row sees at most.
    """
    tiles, chunks = -(-most // WARP), -(-most // CHUNK)
    return (
        (rows, heads, tiles * WARP), (rows, heads, tiles),
        (rows, chunks, heads, width), (rows, chunks, heads),
    )  # fmt: skip


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


@kernel
def score_tile(
    q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts, scale,
    pairs, scores, tops, first,
):  # fmt: skip
    """One warp: tile blockIdx.x of rows, heads from 16 blockIdx.y on, row first + blockIdx.z."""
    room = cuda.shared.array(ROOM, types.int64)
    places = cuda.shared.array(WARP, types.int64)
    lane, at, row = cuda.threadIdx.x, cuda.blockIdx.z, first + cuda.blockIdx.z
    position, count, heads = positions[row], counts[row], eq.shape[1]
    head0, j = HEADS * cuda.blockIdx.y, WARP * cuda.blockIdx.x + lane
    seen = seen_by(position, count, kpool)
    rows = min(WARP, seen - WARP * cuda.blockIdx.x)
    if rows <= 0:
        return
    places[lane] = 0
    if lane < rows:
        table = tables[lanes[row]]
        places[lane] = latent_place(j, position, table, picked[row], count, page_rows, kpool)
    cuda.syncthreads()
    mine, q_at = min(HEADS, heads - head0), (row * heads + head0) * pairs
    sums_of_rows(room, 0, q, q_at, mine, latent, places, 0, pairs, rows, 0, pairs >> 4)
    cuda.syncthreads()
    for o in range(mine):
        power = pow2(i32(i64(eq[row, head0 + o]) + exponent))
        score = in_order(bits_of(mul(mul(rn(room[place(o, lane)]), power), scale)))
        score = score if lane < rows else LOWEST
        scores[at, head0 + o, j] = score
        top = warp_max(score)
        if lane == 0:
            tops[at, head0 + o, cuda.blockIdx.x] = top


@device
def weight_of(scores, at, head, j, seen, top):
    """P of row j, and 0 past the rows that are seen."""
    if j >= seen:
        return i32(0)
    score = flt(in_order(scores[at, head, j]))
    return to_int(rint(mul(exp2c(mul(sub(score, top), LOG2E)), P_ONE)))


@device
def weigh_chunk(scores, tops, at, head, seen, start, low, high, slot):
    """The bytes of P of a chunk's pairs of rows, low [8, PAIRS] two of each and high the third."""
    lane, top = cuda.laneid, LOWEST
    for tile in range(lane, (seen + WARP - 1) // WARP, WARP):
        top = max(top, tops[at, head, tile])
    greatest, total = flt(in_order(warp_max(top))), i64(0)
    for pair in range(lane, PAIRS, WARP):
        j = start + 2 * pair
        a = weight_of(scores, at, head, j, seen, greatest)
        b = weight_of(scores, at, head, j + 1, seen, greatest)
        total += i64(a) + i64(b)
        ones = (i64(a) & i64(255)) | ((i64(b) & i64(255)) << i64(8))
        more = ((i64(a) >> i64(8)) & i64(255)) | (i64(b) & i64(0xFF00))
        most = (i64(a) >> i64(16)) | ((i64(b) >> i64(16)) << i64(8))
        both = ones | (more << i64(16))
        low[slot, pair] = i32(both - ((both >> i64(31)) << i64(32)))
        high[slot, pair] = i32(most)
    return warp_sum(total)


@kernel
def weigh_block(
    positions, lanes, tables, latent, page_rows, kpool, picked, counts, pairs, scores, tops, n, d,
    first,
):  # fmt: skip
    """Chunk blockIdx.x of rows, heads from 8 blockIdx.y on, row first + blockIdx.z."""
    low = cuda.shared.array((WEIGHED, PAIRS), types.int32)
    high = cuda.shared.array((WEIGHED, PAIRS), types.int32)
    places = cuda.shared.array(CHUNK, types.int64)
    at, row, me = cuda.blockIdx.z, first + cuda.blockIdx.z, cuda.threadIdx.x
    position, count, heads = positions[row], counts[row], n.shape[2]
    head0, start = WEIGHED * cuda.blockIdx.y, CHUNK * cuda.blockIdx.x
    seen = seen_by(position, count, kpool)
    if start >= seen:
        return
    table, mine = tables[lanes[row]], min(WEIGHED, heads - head0)
    for i in range(me, CHUNK, cuda.blockDim.x):
        j = min(start + i, seen - 1)
        places[i] = latent_place(j, position, table, picked[row], count, page_rows, kpool) * pairs
    for slot in range(me >> 5, WEIGHED, cuda.blockDim.x >> 5):
        head = min(head0 + slot, heads - 1)
        total = weigh_chunk(scores, tops, at, head, seen, start, low, high, slot)
        if cuda.laneid == 0 and slot < mine:
            d[at, cuda.blockIdx.x, head] = total
    cuda.syncthreads()
    last = min(PAIRS, (seen - start + 1) >> 1)
    for c in range(me, pairs, cuda.blockDim.x):
        sums = cuda.local.array(SIX, types.int32)
        for k in range(SIX):
            sums[k] = 0
        words = cuda.local.array(LOADED, types.int32)
        for first_pair in range(0, last, AHEAD):
            for k in range(LOADED):
                words[k] = latent[places[2 * first_pair + k] + c]
            for k in range(AHEAD):
                left = low_halves(words[2 * k], words[2 * k + 1])
                right = high_halves(words[2 * k], words[2 * k + 1])
                for slot in range(WEIGHED):
                    two, third = low[slot, first_pair + k], high[slot, first_pair + k]
                    sums[6 * slot] = dot_low(left, two, sums[6 * slot])
                    sums[6 * slot + 1] = dot_high(left, two, sums[6 * slot + 1])
                    sums[6 * slot + 2] = dot_low(left, third, sums[6 * slot + 2])
                    sums[6 * slot + 3] = dot_low(right, two, sums[6 * slot + 3])
                    sums[6 * slot + 4] = dot_high(right, two, sums[6 * slot + 4])
                    sums[6 * slot + 5] = dot_low(right, third, sums[6 * slot + 5])
        for slot in range(WEIGHED):
            if slot < mine:
                k, to = 6 * slot, head0 + slot
                n[at, cuda.blockIdx.x, to, 2 * c] = joined(sums[k], sums[k + 1], sums[k + 2])
                n[at, cuda.blockIdx.x, to, 2 * c + 1] = joined(
                    sums[k + 3], sums[k + 4], sums[k + 5]
                )


@device
def joined(ones, more, most):
    """The sum of the three bytes' sums."""
    return i64(ones) + (i64(more) << i64(8)) + (i64(most) << i64(16))


@kernel
def close_head(positions, counts, kpool, n, d, exponent, out, first):
    """Head blockIdx.x of row first + blockIdx.y: its chunks' sums added, and divided."""
    head, at, row = cuda.blockIdx.x, cuda.blockIdx.y, first + cuda.blockIdx.y
    seen, width = seen_by(positions[row], counts[row], kpool), n.shape[3]
    chunks, below = (seen + CHUNK - 1) // CHUNK, i64(0)
    for chunk in range(chunks):
        below += d[at, chunk, head]
    for c in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        total = i64(0)
        for chunk in range(chunks):
            total += n[at, chunk, head, c]
        out[row, head * width + c] = mul(div(rn(total), rn(below)), pow2(exponent))


def attend_split(
    stream, q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts,
    scale, out, scratch, first, last,
):  # fmt: skip
    """As latent_attend of rows first to last; scratch: arrays of scratch_shapes, of any content.

    latent and q begin at a multiple of 16 bytes.
    """
    scores, tops, n, d = scratch
    heads, pairs = eq.shape[1], latent.shape[2] // 2
    words, flat = q.reshape(q.size).view(i32), latent.reshape(latent.size).view(i32)
    rows, block = last - first, threads(THREADS)
    score_tile[(tops.shape[2], -(-heads // HEADS), rows), WARP, stream](
        words, eq, positions, lanes, tables, flat, exponent, page_rows, kpool, picked, counts,
        scale, pairs, scores, tops, first,
    )  # fmt: skip
    weigh_block[(d.shape[1], -(-heads // WEIGHED), rows), block, stream](
        positions, lanes, tables, flat, page_rows, kpool, picked, counts, pairs, scores, tops, n,
        d, first,
    )  # fmt: skip
    close_head[(heads, rows), block, stream](positions, counts, kpool, n, d, exponent, out, first)
