"""Attention over pages on a GPU: a block a query head of a row, exact sums in two passes.

The first pass keeps every score and finds the greatest; the second makes the weights as whole
numbers and sums. Nothing is rescaled, so nothing depends on how the rows are cut. The scores of a
row that sees at most NEAR rows stay in shared memory; those of others in work space of the device.
"""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..attend_tile import LEAST, LOWEST_KEY, P_BITS, P_ONE
from ..scalars import EMIN, LOG2E, SIGN_OFF, bits, div, exp2c, flt, mul, pow2, rint, rn, sub, to_int
from .placed import host, on_device
from .target import device, kernel, threads
from .twins import twin
from .warps import block_max, block_sum

f32, i32, i64 = np.float32, np.int32, np.int64
THREADS = threads(256)
NEAR = 2048  # rows: 16 KiB of shared memory for their scores and weights


@device
def in_order(pattern):
    """A float32 pattern as an integer in the order of the floats, and back."""
    return i32(pattern ^ i32(i32(pattern >> i32(31)) & SIGN_OFF))


@device
def low(word):
    """The first of the two int16 of a word."""
    return i32(i32(word << i32(16)) >> i32(16))


@device
def high(word):
    """The second of the two int16 of a word."""
    return i32(word >> i32(16))


@device
def weight_of(score, top, exponent, most):
    """(P, p in 22 bits) of a row: whole numbers in units of its and of the greatest exponent."""
    p = exp2c(mul(sub(score, top), LOG2E))
    power = pow2(max(i32(P_BITS + i32(exponent - most)), LEAST))
    return to_int(rint(mul(p, power))), i64(to_int(rint(mul(p, P_ONE))))


@cache
def score_pass(half, page_rows, near):
    """Every score of a query head, kept; the greatest, and the greatest exponent of the values."""

    def scored(
        first_of, second_of, mine, scale, row, j, lane, head, layer, visible, tables, table,
        keys, key_exponents, value_exponents, here, far,
    ):  # fmt: skip
        top, most = LOWEST_KEY, i32(EMIN)
        for at in range(cuda.threadIdx.x, visible, THREADS):
            b, r = at // page_rows, at % page_rows
            page = table[b] if near else tables[lane, b]
            base, dot = (r // 16) * 16 * half + r % 16, i64(0)
            for pair in range(half):
                word = keys[layer, page, head, base + 16 * pair]
                # Two products of at most 32639^2 fit int32 together.
                one = i32(low(word) * first_of[pair])
                dot += i64(i32(one + i32(high(word) * second_of[pair])))
            e = i32(mine + i32(key_exponents[layer, page, head, r]))
            s = mul(mul(rn(dot), pow2(e)), scale)
            if near:
                here[at] = s
            else:
                far[row, j, at] = s
            top = max(top, in_order(bits(s)))
            most = max(most, i32(value_exponents[layer, page, head, r]))
        return top, most

    return device(scored)


@cache
def weight_pass(page_rows, near):
    """Every score's weight in its place, zero behind the last row; this thread's part of D."""

    def weighed(
        top, most, row, j, lane, head, layer, visible, tables, table, value_exponents, here, far
    ):
        total, pages = i64(0), (visible + page_rows - 1) // page_rows
        for at in range(cuda.threadIdx.x, pages * page_rows, THREADS):
            weight = i32(0)  # of rows behind the last, whose digits may be anything
            if at < visible:
                b, r = at // page_rows, at % page_rows
                page = table[b] if near else tables[lane, b]
                e = i32(value_exponents[layer, page, head, r])
                weight, p = weight_of(here[at] if near else far[row, j, at], top, e, most)
                total += p
            if near:
                here[at] = flt(weight)
            else:
                far[row, j, at] = flt(weight)
        return total

    return device(weighed)


@cache
def value_pass(pairs, groups, near):
    """This thread's part of one column's sum: every `groups`-th pair of rows, `group` its first."""
    turns = pairs // groups

    def summed(row, j, lane, head, layer, c, group, pages, tables, table, values, here, far):
        inside, total = (c // 16) * 16 * pairs + c % 16, i64(0)
        for b in range(pages):
            page = table[b] if near else tables[lane, b]
            for turn in range(turns):
                i = group + turn * groups
                word, at = values[layer, page, head, inside + 16 * i], 2 * (b * pairs + i)
                one = bits(here[at] if near else far[row, j, at])
                two = bits(here[at + 1] if near else far[row, j, at + 1])
                total += i64(one) * i64(low(word)) + i64(two) * i64(high(word))
        return total

    return device(summed)


@cache
def attend_kernel(width, page_rows, near):
    """The kernel for heads of a width on pages of so many rows; near: NEAR rows seen at most.

    Keys, values and queries come as int32, two columns or two rows a word. far [rows, heads, whole
    pages] float32: work space where rows are not near.
    """
    half, pairs = width // 2, page_rows // 2
    groups = min(max(THREADS // width, 1), pairs)
    room_for, entries = (NEAR, NEAR // page_rows) if near else (1, 1)
    assert pairs % groups == 0 and page_rows % 16 == 0, (width, page_rows)
    scored, weighed = score_pass(half, page_rows, near), weight_pass(page_rows, near)
    summed = value_pass(pairs, groups, near)

    def attend_block(
        q, eq, positions, lanes, tables, keys, key_exponents, values, value_exponents,
        layer, scale, row0, head0, o, column0, far,
    ):  # fmt: skip
        """As attend; the block's row is row0 + blockIdx.x, its query head head0 + blockIdx.y."""
        room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
        sums = cuda.shared.array(THREADS, types.int64)
        first_of = cuda.shared.array(half, types.int32)
        second_of = cuda.shared.array(half, types.int32)
        table = cuda.shared.array(entries, types.int32)
        here = cuda.shared.array(room_for, types.float32)
        me, row, j = cuda.threadIdx.x, row0 + cuda.blockIdx.x, head0 + cuda.blockIdx.y
        head, lane = j // (q.shape[1] // key_exponents.shape[2]), lanes[row]
        visible = positions[row] + 1
        pages = (visible + page_rows - 1) // page_rows
        for c in range(me, half, THREADS):
            first_of[c], second_of[c] = low(q[row, j, c]), high(q[row, j, c])
        if near:
            for b in range(me, pages, THREADS):
                table[b] = tables[lane, b]
        cuda.syncthreads()
        top, most = scored(
            first_of, second_of, i32(eq[row, j]), scale, row, j, lane, head, layer, visible,
            tables, table, keys, key_exponents, value_exponents, here, far,
        )  # fmt: skip
        top, most = flt(in_order(block_max(top, room))), block_max(most, room)
        total = weighed(
            top, most, row, j, lane, head, layer, visible, tables, table, value_exponents, here, far
        )
        below = rn(block_sum(total, wide_room))  # which waits until all weights are written
        for c0 in range(0, width, THREADS):
            c, group, total = c0 + me % width, me // width, i64(0)
            if c < width and group < groups:
                total = summed(
                    row, j, lane, head, layer, c, group, pages, tables, table, values, here, far
                )
            sums[me] = total
            cuda.syncthreads()
            if c < width and group == 0:
                for other in range(1, groups):
                    total += sums[me + other * width]
                o[row, column0 + j * width + c] = mul(div(rn(total), below), pow2(most))
            cuda.syncthreads()

    attend_block.__name__ += f"_{width}_{page_rows}" + "_near" * near
    return kernel(attend_block)


def attend_rows(
    stream, q, eq, positions, lanes, tables, keys, key_exponents, values, value_exponents,
    layer, scale, row0, rows, head0, heads, o, column0, far, near,
):  # fmt: skip
    """Some query heads of some rows; otherwise as core/kernels/attend.py has it.

    q, keys, values: seen as int32. near: whether no row sees more than NEAR rows.
    """
    if rows and heads:
        block = attend_kernel(2 * q.shape[2], key_exponents.shape[3], near)
        block[(rows, heads), THREADS, stream](
            q, eq, positions, lanes, tables, keys, key_exponents, values, value_exponents,
            layer, scale, row0, head0, o, column0, far,
        )  # fmt: skip


def attend(stream, *arguments):
    """As core/kernels/attend.py has it, tile by tile: by turns from near and from far."""
    *given, tiles, first, last, step, o, column0 = arguments
    q, positions, keys, page_rows = given[0], given[2], given[5], given[6].shape[3]
    kv_heads, tiles = keys.shape[2], host(tiles)
    seen = (int(host(positions).max()) // page_rows + 1) * page_rows
    group = q.shape[1] // kv_heads
    far = on_device(np.zeros((*q.shape[:2], seen), f32))
    for at in (0, 5, 7):
        given[at] = given[at].view(i32)
    for item in range(first, last, step):
        row, rows = tiles[item // kv_heads].tolist()
        head, near = item % kv_heads * group, item % 2 == 0 and seen <= NEAR
        attend_rows(stream, *given, row, rows, head, group, o, column0, far, near)


twin("attend", attend)
