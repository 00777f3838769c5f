"""The CUDA twin of select.py: pools scored on the tensor cores, a block finds the best of a row."""

from functools import partial

import numpy as np
from numba import cuda
from numba.core import types

from ..scalars import INF_BITS, SIGN_OFF, ZERO, add, bits, fma, mul, pow2, rn
from ..select import BINS, SHIFTS
from ..weigh import LOWEST, in_order
from .fragments import SUMS, place_of, row_sums
from .latent_attend import halves
from .placed import on_device
from .planes import OUTPUTS
from .target import WARP, device, kernel, threads
from .twins import twin
from .warps import block_rank

i32, i64 = np.int32, np.int64
THREADS, WIDE = 256, 1024
BLOCKS, TILES = 512, 2048  # along the pools of a row, at most
AT_ONCE = 8  # keys of a thread
ROOM = WARP // 8 * SUMS

sums_of_rows = row_sums(WARP // 8)
place = device(place_of)


@kernel
def score_pools(
    q, ei, w, wcol, wscale, keys, exponent, positions, lanes, tables, per_page, kpool, pairs, most,
    scores, first,
):  # fmt: skip
    """Row first + blockIdx.y: scores [rows, n] int32 in their order; q and keys [.] int32."""
    row, heads = first + cuda.blockIdx.y, ei.shape[1]
    pools = (positions[row] + 1) // kpool
    if pools <= most:
        return
    for pool in range(cuda.grid(1), pools, cuda.gridsize(1)):
        at = (i64(tables[lanes[row], pool // per_page]) * per_page + pool % per_page) * pairs
        score = ZERO
        for head in range(heads):
            total, q_at = i64(0), (row * heads + head) * pairs
            for p in range(pairs):
                a, b = halves(q[q_at + p]), halves(keys[at + p])
                total += a[0] * b[0] + a[1] * b[1]
            s = mul(rn(total), pow2(i32(i64(ei[row, head]) + exponent)))
            score = fma(mul(w[row, wcol + head], wscale), s if s > ZERO else ZERO, score)
        pattern = bits(add(score, ZERO))
        none = i32(pattern & SIGN_OFF) > INF_BITS
        scores[row - first, pool] = LOWEST if none else in_order(pattern)


@kernel
def score_tiles(
    q, ei, w, wcol, wscale, keys, exponent, positions, lanes, tables, per_page, kpool, pairs, most,
    scores, first,
):  # fmt: skip
    """The same on the tensor cores: a warp a tile of 32 pools, 16 heads at a time, in order."""
    room = cuda.shared.array(ROOM, types.int64)
    places = cuda.shared.array(WARP, types.int64)
    row, heads, lane = first + cuda.blockIdx.y, ei.shape[1], cuda.threadIdx.x
    pools, table = (positions[row] + 1) // kpool, tables[lanes[row]]
    tile = cuda.blockIdx.x if pools > most else pools
    while tile * WARP < pools:
        pool, mine = tile * WARP + lane, min(WARP, pools - tile * WARP)
        at = min(pool, pools - 1)
        places[lane] = i64(table[at // per_page]) * per_page + at % per_page
        score = ZERO
        for head0 in range(0, heads, OUTPUTS):
            group = min(OUTPUTS, heads - head0)
            cuda.syncthreads()
            q_at = (row * heads + head0) * pairs
            sums_of_rows(room, 0, q, q_at, group, keys, places, 0, pairs, mine, 0, pairs >> 4)
            cuda.syncthreads()
            for o in range(group):
                power = pow2(i32(i64(ei[row, head0 + o]) + exponent))
                s = mul(rn(room[place(o, lane)]), power)
                weight = mul(w[row, wcol + head0 + o], wscale)
                score = fma(weight, s if s > ZERO else ZERO, score)
        if pool < pools:
            pattern = bits(add(score, ZERO))
            none = i32(pattern & SIGN_OFF) > INF_BITS
            scores[row - first, pool] = LOWEST if none else in_order(pattern)
        cuda.syncthreads()
        tile += cuda.gridDim.x


@device
def take_keys(keys, row, pools, start, mine):
    """Some keys of a thread, a block apart, whose loads do not wait for one another."""
    for k in range(AT_ONCE):
        mine[k] = keys[row, min(start + k * cuda.blockDim.x, pools - 1)]


@device
def count_digits(keys, row, pools, shift, upper, bins):
    """bins [BINS] shared: how many keys have each digit, of those with `upper` above it."""
    for i in range(cuda.threadIdx.x, BINS, cuda.blockDim.x):
        bins[i] = 0
    cuda.syncthreads()
    above = i32(SHIFTS[0] if shift == SHIFTS[1] else SHIFTS[1])
    mask = i32((1 << (above - shift)) - 1)
    mine = cuda.local.array(AT_ONCE, types.int32)
    for start in range(cuda.threadIdx.x, pools, AT_ONCE * cuda.blockDim.x):
        take_keys(keys, row, pools, start, mine)
        for k in range(AT_ONCE):
            key, there = mine[k], start + k * cuda.blockDim.x < pools
            if there and shift == SHIFTS[0]:
                cuda.atomic.add(bins, (key >> i32(SHIFTS[0])) + BINS // 2, 1)
            elif there and i32(key >> above) == upper:
                cuda.atomic.add(bins, i32(i32(key >> i32(shift)) & mask), 1)
    cuda.syncthreads()


@device
def digit_of(bins, left, found):
    """found [2] shared: the digit where the `left`-th best key is, and how many of it are left."""
    me, each = cuda.threadIdx.x, BINS // WARP
    part = cuda.shared.array(WARP, types.int32)
    if me < WARP:
        total = 0
        for i in range(each):
            total += bins[me * each + i]
        part[me] = total
    cuda.syncthreads()
    if me == 0:
        lane = WARP - 1
        while part[lane] < left:
            left -= part[lane]
            lane -= 1
        digit = (lane + 1) * each - 1
        while bins[digit] < left:
            left -= bins[digit]
            digit -= 1
        found[0], found[1] = digit, left
    cuda.syncthreads()


@partial(kernel, most=WIDE)
def keep_best_block(keys, positions, kpool, most, picked, counts, first):
    """Row first + block: its best pools, ascending; keys [rows, n] int32 of score_pools."""
    bins, found = cuda.shared.array(BINS, types.int32), cuda.shared.array(2, types.int32)
    room = cuda.shared.array(32, types.int32)
    row, me, step = first + cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    at, pools = cuda.blockIdx.x, (positions[row] + 1) // kpool
    if me == 0:
        counts[row] = min(pools, most)
    if pools <= most:
        for i in range(me, pools, step):
            picked[row, i] = i
        return
    least, left = i32(0), i64(most)
    for shift in SHIFTS:
        count_digits(keys, at, pools, shift, least, bins)
        digit_of(bins, left, found)
        digit, left = i32(found[0]), i64(found[1])
        if shift == SHIFTS[0]:
            least = i32(digit - i32(BINS // 2))
        elif shift == SHIFTS[1]:
            least = i32(i32(least << i32(11)) | digit)
        else:
            least = i32(i32(least << i32(10)) | digit)
        cuda.syncthreads()
    count, equals = i64(0), i64(0)
    coming = keys[at, min(me, pools - 1)]
    for start in range(0, pools, step):
        pool, key = start + me, coming
        coming = keys[at, min(pool + step, pools - 1)]  # asked for while others are ranked
        same = pool < pools and key == least
        rank = block_rank(same, room)
        kept = (pool < pools and key > least) or (same and equals + rank[0] < left)
        equals += rank[1]
        rank = block_rank(kept, room)
        if kept:
            picked[row, count + rank[0]] = pool
        count += rank[1]


def select_rows(
    stream, qi, ei, w, wcol, wscale, keys, exponent, positions, lanes, tables, page_rows, kpool,
    most, picked, counts, scores, first, last,
):  # fmt: skip
    """As the CPU's select_rows; scores [>= last - first, pools of the longest row] int32.

    Queries and keys begin at a multiple of 16 bytes.
    """
    if last <= first:
        return
    block, pairs, n = threads(THREADS), keys.shape[2] // 2, scores.shape[1]
    words, flat = qi.reshape(qi.size).view(i32), keys.reshape(keys.size).view(i32)
    given = (
        words, ei, w, wcol, wscale, flat, exponent, positions, lanes, tables, page_rows // kpool,
        kpool, pairs, most, scores, first,
    )  # fmt: skip
    if pairs % (WARP // 2) == 0:
        score_tiles[(min(TILES, -(-n // WARP)), last - first), WARP, stream](*given)
    else:
        score_pools[(min(BLOCKS, -(-n // block)), last - first), block, stream](*given)
    keep_best_block[last - first, threads(WIDE), stream](
        scores, positions, kpool, most, picked, counts, first
    )


def select_rows_as_registered(stream, *arguments):
    """select_rows with scores of its own."""
    *given, first, last = arguments
    tables, page_rows, kpool = given[9:12]
    n = tables.shape[1] * (page_rows // kpool)
    select_rows(stream, *given, on_device(np.zeros((max(last, 1), n), i32)), first, last)


twin("select_rows", select_rows_as_registered)
