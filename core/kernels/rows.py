"""Rows of keys and values in packed pages: written, read back, summed again, and flipped on purpose.

The arenas of a rank, all layers in each:
  keys, values            [layers, pages, kv_heads, page_rows * width] int16
  key_, value_exponents   [layers, pages, kv_heads, page_rows] int8
A page of one head holds its keys as [page_rows / 16][width / 2][16][2], rows as outputs and columns
as inputs, and its values as [width / 16][page_rows / 2][16][2], the other way about: both are what
the innermost loops read (madd.py). `side` is 0 for keys and 1 for values; side s of layer l is
digest layer 2 l + s. Columns of a word are 4; the exponent is the word after the last.
"""

import numpy as np
from numba.extending import register_jitable

from .digest import PARTS, digest_words
from .quantise import q16_row
from .registry import cpu
from .rope import rotate_head
from .team import fetch_add

f32, i16, i64, u64 = np.float32, np.int16, np.int64, np.uint64
ROWS_PART = PARTS["rows"]
KEYS, VALUES = 0, 1


@register_jitable
def key_index(row, column, width):
    """Where a key's value stands in its page and head."""
    return (row // 16) * 16 * width + (column // 2) * 32 + (row % 16) * 2 + column % 2


@register_jitable
def value_index(row, column, page_rows):
    """Where a value's value stands in its page and head."""
    return (column // 16) * 16 * page_rows + (row // 2) * 32 + (column % 16) * 2 + row % 2


@register_jitable
def digest_row(digits, exponent, layer, head, position):
    """Both sums of a row: digits [width] int16, then its exponent; layer is a digest layer."""
    words = digits.view(u64)
    a, b = digest_words(words, ROWS_PART, layer, head, position, 0)
    last = np.empty(1, u64)
    last[0] = u64(i64(exponent))
    c, d = digest_words(last, ROWS_PART, layer, head, position, words.shape[0])
    return a + c, b + d


@register_jitable
def spread(digits, exponent, data, exponents, row, side):
    """Put a row in its place; data, exponents: one page of one head."""
    width, page_rows = digits.shape[0], exponents.shape[0]
    if side == KEYS:
        at = key_index(row, 0, width)
        for c in range(0, width, 2):
            data[at + c * 16] = digits[c]
            data[at + c * 16 + 1] = digits[c + 1]
    else:
        at = value_index(row, 0, page_rows)
        for block in range(width // 16):
            for c in range(16):
                data[at + block * 16 * page_rows + c * 2] = digits[block * 16 + c]
    exponents[row] = exponent


@register_jitable
def gather(data, page_rows, row, side, digits):
    """The row that `spread` put: data of one page of one head -> digits [width]."""
    width = digits.shape[0]
    if side == KEYS:
        at = key_index(row, 0, width)
        for c in range(0, width, 2):
            digits[c] = data[at + c * 16]
            digits[c + 1] = data[at + c * 16 + 1]
    else:
        at = value_index(row, 0, page_rows)
        for block in range(width // 16):
            for c in range(16):
                digits[block * 16 + c] = data[at + block * 16 * page_rows + c * 2]


@cpu
def write_rows(
    qkv, positions, lanes, tables, cos, sin,
    keys, key_exponents, values, value_exponents, layer, head0,
    q, eq, sums, flags, first, last,
):  # fmt: skip
    """Turn, round to Q16 and put in their pages; items first to last, item = row * kv_heads + head.

    qkv [rows, (heads + 2 kv_heads) * width] float32, read only; positions [rows] int64;
    lanes [rows] int64; tables [lanes, entries] int32; cos, sin [n, width / 2] float32;
    layer: of the arenas; head0: the number, in the whole model, of this rank's first kv head.
    q [rows, heads, width] int16 and eq [rows, heads] int8: the queries;
    sums [rows, 2] uint64: the digests of what was written are added (atomically, so that parties
    may share a row); flags [rows] uint8: ORed with 1 where a value was not sound.
    """
    kv_heads, page_rows = key_exponents.shape[2], key_exponents.shape[3]
    heads, width = q.shape[1], q.shape[2]
    group = heads // max(kv_heads, 1)
    total = sums.reshape(sums.size)
    turned, digits = np.empty(width, f32), np.empty(width, i16)
    for item in range(first, last):
        row, head = item // kv_heads, item % kv_heads
        position = positions[row]
        page = tables[lanes[row], position // page_rows]
        for j in range(group + 2):
            if j < group:
                start = (head * group + j) * width
            else:
                start = (heads + (j - group) * kv_heads + head) * width
            turned[:] = qkv[row, start : start + width]
            if j <= group:
                rotate_head(turned, cos[position], sin[position])
            e, flag = q16_row(turned, digits)
            if flag != 0:
                flags[row] = np.uint8(flags[row] | np.uint8(1))
            if j < group:
                q[row, head * group + j] = digits
                eq[row, head * group + j] = e
                continue
            side = j - group
            if side == KEYS:
                data, exponents = keys[layer, page, head], key_exponents[layer, page, head]
            else:
                data, exponents = values[layer, page, head], value_exponents[layer, page, head]
            spread(digits, e, data, exponents, position % page_rows, side)
            a, b = digest_row(digits, e, 2 * layer + side, head0 + head, position)
            fetch_add(total, 2 * row, a)
            fetch_add(total, 2 * row + 1, b)


@cpu
def read_row(keys, key_exponents, values, value_exponents, digest_layer, page, head, row, digits):
    """One row of one head in logical order into digits [width] int16; returns its exponent."""
    layer, side = digest_layer // 2, digest_layer % 2
    if side == KEYS:
        data, exponents = keys[layer, page, head], key_exponents[layer, page, head]
    else:
        data, exponents = values[layer, page, head], value_exponents[layer, page, head]
    gather(data, exponents.shape[0], row, side, digits)
    return i64(exponents[row])


@cpu
def sum_rows(
    keys, key_exponents, values, value_exponents, table, first, last, layer0, layer1, head0, sums
):
    """Add to sums [2] uint64 the digests of rows first to last, from memory.

    table [entries] int32: the pages of the rows' stream; layer0 to layer1: digest layers.
    """
    kv_heads, page_rows = key_exponents.shape[2], key_exponents.shape[3]
    digits = np.empty(keys.shape[3] // page_rows, i16)
    for digest_layer in range(layer0, layer1):
        layer, side = digest_layer // 2, digest_layer % 2
        for position in range(first, last):
            page, row = table[position // page_rows], position % page_rows
            for head in range(kv_heads):
                if side == KEYS:
                    data, exponents = keys[layer, page, head], key_exponents[layer, page, head]
                else:
                    data, exponents = values[layer, page, head], value_exponents[layer, page, head]
                gather(data, page_rows, row, side, digits)
                a, b = digest_row(digits, exponents[row], digest_layer, head0 + head, position)
                sums[0] += a
                sums[1] += b


@cpu
def flip_bit(
    keys, key_exponents, values, value_exponents, digest_layer, page, head, row, column, bit
):
    """Turn one bit over; column == width means the row's exponent (bits 0 to 7)."""
    layer, side = digest_layer // 2, digest_layer % 2
    page_rows = key_exponents.shape[3]
    width = keys.shape[3] // page_rows
    if side == KEYS:
        data, exponents = keys[layer, page, head], key_exponents[layer, page, head]
        at = key_index(row, column, width)
    else:
        data, exponents = values[layer, page, head], value_exponents[layer, page, head]
        at = value_index(row, column, page_rows)
    if column == width:
        exponents[row] ^= np.int8(np.uint8(1 << bit))
    else:
        data[at] ^= i16(np.uint16(1 << bit))
