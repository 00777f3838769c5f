"""Rows of keys and values on a GPU: turned, rounded to Q16, put in their pages, summed, flipped.

The arenas are those of the CPU (core/kernels/rows.py), so a page's bytes are the same on either. A
block is one warp, which makes a row of one head: a query, the key or the value of a KV head.
"""

import numpy as np
from numba import cuda
from numba.core import types

from ..digest import PARTS, SEED_0, SEED_1, mix64, place, word_mix
from ..packed import KEYS, key_index, value_index
from ..quantise import sound_amax
from ..scalars import INF_BITS, absolute_bits, add, flt, mul, pow2, q16_value, row_exponent, sub
from .placed import on_device
from .target import WARP, device, kernel
from .twins import twin
from .warps import warp_max, warp_sum

i16, i32, i64, u8, u16, u64 = np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint64
ROWS_PART = PARTS["rows"]
MOST_WIDTH = 256  # of a head


@device
def turned(qkv, row, start, c, half, cos, sin, position, turns):
    """Columns c and c + half of a head, after their turn if the head is one that turns."""
    a, b = qkv[row, start + c], qkv[row, start + c + half]
    if not turns:
        return a, b
    k, s = cos[position, c], sin[position, c]
    return sub(mul(a, k), mul(b, s)), add(mul(b, k), mul(a, s))


@device
def four_digits(digits, at):
    """Four int16 of shared memory as a word."""
    low = u64(u16(digits[at])) | (u64(u16(digits[at + 1])) << u64(16))
    return low | (u64(u16(digits[at + 2])) << u64(32)) | (u64(u16(digits[at + 3])) << u64(48))


@device
def add_row_digest(digits, e, width, layer, head, position, sums, row):
    """sums[row] += the digest of a row of shared digits and its exponent, by a warp."""
    where = place(ROWS_PART, layer, head)
    mix_0, mix_1 = mix64(u64(position) ^ SEED_0), mix64(u64(position) ^ SEED_1)
    sum_0, sum_1 = u64(0), u64(0)
    for column in range(cuda.threadIdx.x, width // 4 + 1, WARP):
        word = four_digits(digits, 4 * column) if column < width // 4 else u64(i64(e))
        sum_0 += word_mix(word, where | u64(column), mix_0)
        sum_1 += word_mix(word, where | u64(column), mix_1)
    if cuda.threadIdx.x <= width // 4:
        cuda.atomic.add(sums, (row, 0), sum_0)
        cuda.atomic.add(sums, (row, 1), sum_1)


@kernel
def write_rows_kernel(
    qkv, positions, lanes, tables, cos, sin,
    keys, key_exponents, values, value_exponents, layer, head0, q, eq, sums, flags, item0,
):  # fmt: skip
    """As write_rows; blockIdx.x: the item, from item0 on; blockIdx.y: which head of it."""
    digits = cuda.shared.array(MOST_WIDTH, types.int16)
    kv_heads, page_rows = key_exponents.shape[2], key_exponents.shape[3]
    heads, width = q.shape[1], q.shape[2]
    group, half = heads // kv_heads, width // 2
    item = item0 + cuda.blockIdx.x
    row, head = item // kv_heads, item % kv_heads
    j, lane = cuda.blockIdx.y, cuda.threadIdx.x
    position = positions[row]
    start = (head * group + j) * width
    if j >= group:
        start = (heads + (j - group) * kv_heads + head) * width
    top, number = i32(0), i32(0)
    for c in range(lane, half, WARP):
        x = turned(qkv, row, start, c, half, cos, sin, position, j <= group)
        for side in range(2):
            here = absolute_bits(x[0] if side == 0 else x[1])
            top = max(top, here)
            number = max(number, here if here <= INF_BITS else i32(0))
    top, number = warp_max(top), warp_max(number)
    e = row_exponent(flt(number))
    scale = pow2(-e)
    if lane == 0 and not sound_amax(top):
        flags[row] = u8(1)
    for c in range(lane, half, WARP):
        x = turned(qkv, row, start, c, half, cos, sin, position, j <= group)
        digits[c] = q16_value(x[0], scale)
        digits[c + half] = q16_value(x[1], scale)
    cuda.syncthreads()
    if j < group:
        for c in range(lane, width, WARP):
            q[row, head * group + j, c] = digits[c]
        if lane == 0:
            eq[row, head * group + j] = e
        return
    side = j - group
    page, at = tables[lanes[row], position // page_rows], position % page_rows
    for c in range(lane, width, WARP):
        if side == KEYS:
            keys[layer, page, head, key_index(at, c, width)] = digits[c]
        else:
            values[layer, page, head, value_index(at, c, page_rows)] = digits[c]
    if lane == 0:
        if side == KEYS:
            key_exponents[layer, page, head, at] = e
        else:
            value_exponents[layer, page, head, at] = e
    add_row_digest(digits, e, width, 2 * layer + side, head0 + head, position, sums, row)


def write_rows(stream, *arguments):
    """As core/kernels/rows.py has it; sums are added to atomically."""
    *given, first, last = arguments
    q, kv_heads = given[12], given[7].shape[2]
    group = q.shape[1] // kv_heads
    assert q.shape[2] <= MOST_WIDTH, q.shape
    if last > first:
        write_rows_kernel[(last - first, group + 2), WARP, stream](*given, first)


@device
def wrapped_sum(value):
    """The sum of the warp's uint64 values modulo 2^64, in every thread of it."""
    return u64(warp_sum(i64(value)))


@device
def digit_at(keys, values, layer, page, head, row, column, width, page_rows, side):
    """A digit of a row in its page, as its unsigned pattern."""
    if side == KEYS:
        return u64(u16(keys[layer, page, head, key_index(row, column, width)]))
    return u64(u16(values[layer, page, head, value_index(row, column, page_rows)]))


@kernel
def sum_rows_kernel(
    keys, key_exponents, values, value_exponents, table, first, last, layer0, head0, sums
):
    """As sum_rows; a thread a row, blockIdx.y a digest layer from layer0 on, blockIdx.z a head."""
    page_rows = key_exponents.shape[3]
    width = keys.shape[3] // page_rows
    position = first + cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    digest_layer, head = layer0 + cuda.blockIdx.y, cuda.blockIdx.z
    layer, side = digest_layer // 2, digest_layer % 2
    sum_0, sum_1 = u64(0), u64(0)
    if position < last:
        page, row = table[position // page_rows], position % page_rows
        where = place(ROWS_PART, digest_layer, head0 + head)
        mix_0, mix_1 = mix64(u64(position) ^ SEED_0), mix64(u64(position) ^ SEED_1)
        for column in range(width // 4 + 1):
            if column < width // 4:
                word = u64(0)
                for c in range(4):
                    digit = digit_at(
                        keys, values, layer, page, head, row, 4 * column + c, width, page_rows, side
                    )
                    word |= digit << u64(16 * c)
            elif side == KEYS:
                word = u64(i64(key_exponents[layer, page, head, row]))
            else:
                word = u64(i64(value_exponents[layer, page, head, row]))
            sum_0 += word_mix(word, where | u64(column), mix_0)
            sum_1 += word_mix(word, where | u64(column), mix_1)
    sum_0, sum_1 = wrapped_sum(sum_0), wrapped_sum(sum_1)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(sums, 0, sum_0)
        cuda.atomic.add(sums, 1, sum_1)


def sum_rows(
    stream, keys, key_exponents, values, value_exponents, table, first, last, layer0, layer1,
    head0, sums,
):  # fmt: skip
    """As core/kernels/rows.py has it."""
    blocks, kv_heads = -(-(last - first) // WARP), keys.shape[2]
    if blocks > 0 and layer1 > layer0 and kv_heads:
        sum_rows_kernel[(blocks, layer1 - layer0, kv_heads), WARP, stream](
            keys, key_exponents, values, value_exponents, table, first, last, layer0, head0, sums
        )


@kernel
def flip_bit_kernel(
    keys, key_exponents, values, value_exponents, digest_layer, page, head, row, column, bit
):
    """As flip_bit; one thread."""
    layer, side = digest_layer // 2, digest_layer % 2
    page_rows = key_exponents.shape[3]
    width = keys.shape[3] // page_rows
    if column == width:
        exponents = key_exponents if side == KEYS else value_exponents
        exponents[layer, page, head, row] ^= np.int8(u8(1 << bit))
    elif side == KEYS:
        keys[layer, page, head, key_index(row, column, width)] ^= i16(u16(1 << bit))
    else:
        values[layer, page, head, value_index(row, column, page_rows)] ^= i16(u16(1 << bit))


def flip_bit(stream, *arguments):
    """As core/kernels/rows.py has it."""
    flip_bit_kernel[1, 1, stream](*arguments)


@kernel
def read_row_kernel(
    keys, key_exponents, values, value_exponents, digest_layer, page, head, row, digits, exponent
):
    """As read_row; a warp."""
    layer, side, page_rows = digest_layer // 2, digest_layer % 2, key_exponents.shape[3]
    width = digits.shape[0]
    for c in range(cuda.threadIdx.x, width, WARP):
        if side == KEYS:
            digits[c] = keys[layer, page, head, key_index(row, c, width)]
        else:
            digits[c] = values[layer, page, head, value_index(row, c, page_rows)]
    if cuda.threadIdx.x == 0:
        if side == KEYS:
            exponent[0] = key_exponents[layer, page, head, row]
        else:
            exponent[0] = value_exponents[layer, page, head, row]


def read_row(stream, *arguments):
    """As core/kernels/rows.py has it; the exponent comes back as an array [1] on the device."""
    exponent = on_device(np.zeros(1, i64))
    read_row_kernel[1, WARP, stream](*arguments, exponent)
    return exponent


twin("write_rows", write_rows)
twin("sum_rows", sum_rows)
twin("read_row", read_row)
twin("flip_bit", flip_bit)
