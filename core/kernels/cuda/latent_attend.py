"""The CUDA twins of latent_attend.py and latent_parties.py: a block of threads a head of a row.

Scores are made once and stand in shared memory as integers in their order, then as weights P; a
warp makes a score, a thread the sums of two columns. Sums are int64 and exact in any order.
"""

import numpy as np
from numba import cuda
from numba.core import types

from ..attend_tile import P_ONE
from ..latent_attend import head_blocks
from ..madd import OUTPUTS
from ..scalars import INF, LOG2E, bits, div, exp2c, flt, mul, pow2, rint, rn, sub, to_int
from ..weigh import in_order
from .latent_split import attend_split, fits, scratch_shapes
from .placed import on_device
from .target import WARP, device, kernel, threads
from .twins import twin
from .warps import block_max, block_sum, warp_sum

i16, i32, i64 = np.int16, np.int32, np.int64
THREADS = 256


@device
def halves(word):
    """The two int16 of a word."""
    return i64(i16(word)), i64(i32(word) >> i32(16))


@device
def list_places(position, table, picked, count, page_rows, kpool, residue, parties, places):
    """Where the rows lie that a query sees: of its pools, then of the unfinished one.

    places [.] int32 shared: rows of the arena, -1 for those that are not the party's. Returns how
    many there are.
    """
    whole = count * kpool
    seen, tail = whole + (position + 1) % kpool, (position + 1) // kpool * kpool
    for j in range(cuda.threadIdx.x, seen, cuda.blockDim.x):
        at = tail + j - whole
        if j < whole:
            at = i64(picked[j // kpool]) * kpool + j % kpool
        place = i64(table[at // page_rows]) * page_rows + at % page_rows
        places[j] = place if parties == 1 or at % parties == residue else -1
    cuda.syncthreads()
    return seen


@device
def score_places(q, q_at, pairs, latent, places, seen, power, scale, kept, room):
    """kept [seen] = the order of the scores; returns the greatest, in every thread."""
    warp, warps, lane = cuda.threadIdx.x // WARP, cuda.blockDim.x // WARP, cuda.laneid
    least = in_order(bits(-INF))
    top = least
    for j in range(warp, seen, warps):
        place, total = i64(places[j]), i64(0)
        if place >= 0:
            for p in range(lane, pairs, WARP):
                a, b = halves(q[q_at + p]), halves(latent[place * pairs + p])
                total += a[0] * b[0] + a[1] * b[1]
        total = warp_sum(total)
        score = in_order(bits(mul(mul(rn(total), power), scale))) if place >= 0 else least
        top = max(top, score)
        if lane == 0:
            kept[j] = score
    return block_max(top, room)


@device
def weigh_places(places, seen, top, kept, room):
    """kept [seen] = the weights P under a top; returns their sum, in every thread."""
    total = i64(0)
    for j in range(cuda.threadIdx.x, seen, cuda.blockDim.x):
        p = i32(0)
        if places[j] >= 0:
            score = flt(in_order(kept[j]))
            p = to_int(rint(mul(exp2c(mul(sub(score, top), LOG2E)), P_ONE)))
        kept[j] = p
        total += i64(p)
    return block_sum(total, room)


@device
def sum_column_pair(latent, places, seen, pairs, pair, kept):
    """The weighted sums of columns 2 pair and 2 pair + 1."""
    low, high = i64(0), i64(0)
    for j in range(seen):
        weight = i64(kept[j])
        if weight != 0:
            v = halves(latent[i64(places[j]) * pairs + pair])
            low += weight * v[0]
            high += weight * v[1]
    return low, high


@kernel
def attend_head(
    q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, most, picked, counts,
    scale, out, first_row, head0,
):  # fmt: skip
    """Row first_row + blockIdx.x, head head0 + blockIdx.y; q and latent [.] int32."""
    room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
    shared = cuda.shared.array(0, types.int32)
    places, kept = shared[:most], shared[most : 2 * most]
    row, head, heads = first_row + cuda.blockIdx.x, head0 + cuda.blockIdx.y, eq.shape[1]
    pairs, power = out.shape[1] // heads // 2, pow2(i32(i64(eq[row, head]) + exponent))
    seen = list_places(
        positions[row], tables[lanes[row]], picked[row], counts[row], page_rows, kpool, 0, 1, places
    )
    at = (row * heads + head) * pairs
    top = score_places(q, at, pairs, latent, places, seen, power, scale, kept, room)
    below = rn(weigh_places(places, seen, flt(in_order(top)), kept, wide_room))
    for pair in range(cuda.threadIdx.x, pairs, cuda.blockDim.x):
        n = sum_column_pair(latent, places, seen, pairs, pair, kept)
        column = 2 * (head * pairs + pair)
        out[row, column] = mul(div(rn(n[0]), below), pow2(exponent))
        out[row, column + 1] = mul(div(rn(n[1]), below), pow2(exponent))


@kernel
def top_of_head(
    q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, most, picked, counts,
    scale, residue, parties, tops, width, first_row, head0,
):  # fmt: skip
    """A party's greatest score of row first_row + blockIdx.x, head head0 + blockIdx.y."""
    room, shared = cuda.shared.array(32, types.int32), cuda.shared.array(0, types.int32)
    places, kept = shared[:most], shared[most : 2 * most]
    row, head, heads = first_row + cuda.blockIdx.x, head0 + cuda.blockIdx.y, eq.shape[1]
    pairs, power = width // 2, pow2(i32(i64(eq[row, head]) + exponent))
    seen = list_places(
        positions[row], tables[lanes[row]], picked[row], counts[row], page_rows, kpool, residue,
        parties, places,
    )  # fmt: skip
    at = (row * heads + head) * pairs
    top = score_places(q, at, pairs, latent, places, seen, power, scale, kept, room)
    if cuda.threadIdx.x == 0:
        tops[row, head] = flt(in_order(top))


@kernel
def sums_of_head(
    q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, most, picked, counts,
    scale, residue, parties, tops, n, d, first_row, head0,
):  # fmt: skip
    """A party's sums of row first_row + blockIdx.x, head head0 + blockIdx.y, under merged tops."""
    room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
    shared = cuda.shared.array(0, types.int32)
    places, kept = shared[:most], shared[most : 2 * most]
    row, head, heads = first_row + cuda.blockIdx.x, head0 + cuda.blockIdx.y, eq.shape[1]
    pairs, power = n.shape[1] // heads // 2, pow2(i32(i64(eq[row, head]) + exponent))
    seen = list_places(
        positions[row], tables[lanes[row]], picked[row], counts[row], page_rows, kpool, residue,
        parties, places,
    )  # fmt: skip
    at = (row * heads + head) * pairs
    score_places(q, at, pairs, latent, places, seen, power, scale, kept, room)
    below = weigh_places(places, seen, tops[row, head], kept, wide_room)
    for pair in range(cuda.threadIdx.x, pairs, cuda.blockDim.x):
        sums = sum_column_pair(latent, places, seen, pairs, pair, kept)
        n[row, 2 * (head * pairs + pair)] = sums[0]
        n[row, 2 * (head * pairs + pair) + 1] = sums[1]
    if cuda.threadIdx.x == 0:
        d[row, head] = below


@kernel
def close_values(n, d, exponent, out, first):
    """Item first + blockIdx.x."""
    item, heads = first + cuda.blockIdx.x, d.shape[1]
    row, head, width = item // heads, item % heads, n.shape[1] // heads
    below, power = rn(d[row, head]), pow2(exponent)
    for c in range(head * width + cuda.threadIdx.x, (head + 1) * width, cuda.blockDim.x):
        out[row, c] = mul(div(rn(n[row, c]), below), power)


def shapes(stream, heads, most, first, last):
    """(first row, first head, shape) of launches that cover items row * head_blocks + block."""
    blocks, shared = head_blocks(heads), 8 * most
    row, made = first, []
    while row < last:
        block = row % blocks
        rows, items = 1, min(blocks - block, last - row)
        if items == blocks:
            rows = (last - row) // blocks
        head0 = block * OUTPUTS
        mine = min(heads, head0 + items * OUTPUTS) - head0
        made.append((row // blocks, head0, ((rows, mine), threads(THREADS), stream, shared)))
        row += rows * items
    return made


def latent_attend(
    stream, q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts,
    scale, out, first, last,
):  # fmt: skip
    """As the CPU's latent_attend; shared memory holds 8 bytes for every row that is seen.

    Whole rows of whole tiles go over all of the chip, through scratch of their own: a device that
    calls this at every step gives attend_split its scratch itself.
    """
    most, heads, blocks = (picked.shape[1] + 1) * kpool, eq.shape[1], head_blocks(eq.shape[1])
    if last > first and fits(latent.shape[2]) and first % blocks == 0 and last % blocks == 0:
        rows = (last - first) // blocks
        kinds = (i32, i32, i64, i64)
        shaped = zip(scratch_shapes(rows, heads, latent.shape[2], most), kinds, strict=True)
        scratch = tuple(on_device(np.full(shape, -1, kind)) for shape, kind in shaped)
        attend_split(
            stream, q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked,
            counts, scale, out, scratch, first // blocks, last // blocks,
        )  # fmt: skip
        return
    words, rows = q.reshape(q.size).view(i32), latent.reshape(latent.size).view(i32)
    for row, head, shape in shapes(stream, eq.shape[1], most, first, last):
        attend_head[shape](
            words, eq, positions, lanes, tables, rows, exponent, page_rows, kpool, most, picked,
            counts, scale, out, row, head,
        )  # fmt: skip


def latent_tops(
    stream, q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts,
    scale, residue, parties, tops, first, last,
):  # fmt: skip
    """As the CPU's latent_tops."""
    most, width = (picked.shape[1] + 1) * kpool, latent.shape[2]
    words, rows = q.reshape(q.size).view(i32), latent.reshape(latent.size).view(i32)
    for row, head, shape in shapes(stream, eq.shape[1], most, first, last):
        top_of_head[shape](
            words, eq, positions, lanes, tables, rows, exponent, page_rows, kpool, most, picked,
            counts, scale, residue, parties, tops, width, row, head,
        )  # fmt: skip


def latent_sums(
    stream, q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts,
    scale, residue, parties, tops, n, d, first, last,
):  # fmt: skip
    """As the CPU's latent_sums."""
    most = (picked.shape[1] + 1) * kpool
    words, rows = q.reshape(q.size).view(i32), latent.reshape(latent.size).view(i32)
    for row, head, shape in shapes(stream, eq.shape[1], most, first, last):
        sums_of_head[shape](
            words, eq, positions, lanes, tables, rows, exponent, page_rows, kpool, most, picked,
            counts, scale, residue, parties, tops, n, d, row, head,
        )  # fmt: skip


def latent_close(stream, n, d, exponent, out, first, last):
    """As the CPU's latent_close."""
    if last > first:
        close_values[last - first, threads(THREADS), stream](n, d, exponent, out, first)


twin("latent_attend", latent_attend)
twin("latent_tops", latent_tops)
twin("latent_sums", latent_sums)
twin("latent_close", latent_close)
