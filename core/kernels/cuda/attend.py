"""Attention over pages on a GPU: a block a query head of a row, exact sums in two passes.

The first pass keeps every score and finds the greatest; the second makes the weights as whole
numbers, in the place of the scores, and sums. Nothing is rescaled, so nothing depends on the cut.
"""

import numpy as np
from numba import cuda
from numba.core import types

from ..attend_tile import LEAST, LOWEST_KEY, P_BITS, P_ONE
from ..scalars import EMIN, LOG2E, SIGN_OFF, bits, div, exp2c, flt, mul, pow2, rint, rn, sub, to_int
from .placed import host, on_device
from .target import block_max, block_sum, device, kernel, threads
from .twins import twin

f32, i32, i64 = np.float32, np.int32, np.int64
THREADS = threads(256)
MOST_WIDTH = 256  # of a head


@device
def in_order(pattern):
    """A float32 pattern as an integer in the order of the floats, and back."""
    return i32(pattern ^ i32(i32(pattern >> i32(31)) & SIGN_OFF))


@device
def score(keys, layer, page, head, row, half, query):
    """The exact dot product of a query [half] int32 pairs with a row of keys."""
    at = (row // 16) * 32 * half + (row % 16) * 2
    total = i64(0)
    for pair in range(half):
        a, b = keys[layer, page, head, at + 32 * pair], keys[layer, page, head, at + 32 * pair + 1]
        low, high = i32(query[2 * pair]), i32(query[2 * pair + 1])
        # Two products of at most 32639^2 fit int32 together.
        total += i64(i32(i32(i32(a) * low) + i32(i32(b) * high)))
    return total


@kernel
def attend_kernel(
    q, eq, positions, lanes, tables, keys, key_exponents, values, value_exponents,
    layer, scale, row0, head0, o, column0, scores,
):  # fmt: skip
    """As attend; the block's row is row0 + blockIdx.x, its query head head0 + blockIdx.y.

    scores [rows, heads, more than any position + 1] float32: work space.
    """
    room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
    sums = cuda.shared.array(THREADS, types.int64)
    query = cuda.shared.array(MOST_WIDTH, types.int16)
    kv_heads, page_rows = key_exponents.shape[2], key_exponents.shape[3]
    width, me = q.shape[2], cuda.threadIdx.x
    row, j = row0 + cuda.blockIdx.x, head0 + cuda.blockIdx.y
    head, half = j // (q.shape[1] // kv_heads), width // 2
    visible, lane = positions[row] + 1, lanes[row]
    for c in range(me, width, THREADS):
        query[c] = q[row, j, c]
    cuda.syncthreads()
    top, most, mine = LOWEST_KEY, i32(EMIN), i32(eq[row, j])
    for at in range(me, visible, THREADS):
        page, r = tables[lane, at // page_rows], at % page_rows
        dot = rn(score(keys, layer, page, head, r, half, query))
        e = i32(mine + i32(key_exponents[layer, page, head, r]))
        s = mul(mul(dot, pow2(e)), scale)
        scores[row, j, at] = s
        top = max(top, in_order(bits(s)))
        most = max(most, i32(value_exponents[layer, page, head, r]))
    top, most = flt(in_order(block_max(top, room))), block_max(most, room)
    total = i64(0)
    for at in range(me, visible, THREADS):
        page, r = tables[lane, at // page_rows], at % page_rows
        p = exp2c(mul(sub(scores[row, j, at], top), LOG2E))
        total += i64(to_int(rint(mul(p, P_ONE))))
        e = i32(value_exponents[layer, page, head, r])
        power = pow2(max(i32(P_BITS + i32(e - most)), LEAST))
        scores[row, j, at] = flt(to_int(rint(mul(p, power))))
    if me == 0:
        scores[row, j, visible] = f32(0)  # the other row of the last pair
    below = rn(
        block_sum(total, wide_room)
    )  # all threads have written their weights before it is done
    parts = max(THREADS // width, 1)
    for c0 in range(0, width, THREADS):
        c, first = c0 + me % width, me // width
        total = i64(0)
        if c < width and first < parts:
            inside = (c // 16) * 16 * page_rows + (c % 16) * 2
            for pair in range(first, (visible + 1) // 2, parts):
                page, r = tables[lane, 2 * pair // page_rows], 2 * pair % page_rows
                at = inside + r * 16
                a, b = values[layer, page, head, at], values[layer, page, head, at + 1]
                total += i64(bits(scores[row, j, 2 * pair])) * i64(a)
                total += i64(bits(scores[row, j, 2 * pair + 1])) * i64(b)
        sums[me] = total
        cuda.syncthreads()
        if c < width and first == 0:
            for part in range(1, parts):
                total += sums[me + part * width]
            o[row, column0 + j * width + c] = mul(div(rn(total), below), pow2(most))
        cuda.syncthreads()


def attend_rows(
    stream, q, eq, positions, lanes, tables, keys, key_exponents, values, value_exponents,
    layer, scale, row0, rows, head0, heads, o, column0, scores,
):  # fmt: skip
    """Some query heads of some rows; otherwise as core/kernels/attend.py has it."""
    assert q.shape[2] <= MOST_WIDTH, q.shape
    if rows and heads:
        attend_kernel[(rows, heads), THREADS, stream](
            q, eq, positions, lanes, tables, keys, key_exponents, values, value_exponents,
            layer, scale, row0, head0, o, column0, scores,
        )  # fmt: skip


def attend(stream, *arguments):
    """As core/kernels/attend.py has it, tile by tile."""
    *given, tiles, first, last, step, o, column0 = arguments
    q, positions, keys = given[0], given[2], given[5]
    tiles = host(tiles)
    kv_heads, most = keys.shape[2], int(host(positions).max()) + 2
    group = q.shape[1] // kv_heads
    scores = on_device(np.zeros((*q.shape[:2], most), f32))
    for item in range(first, last, step):
        row, rows = tiles[item // kv_heads].tolist()
        head = item % kv_heads * group
        attend_rows(stream, *given, row, rows, head, group, o, column0, scores)


twin("attend", attend)
