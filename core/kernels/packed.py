"""Where the values of a row stand in a packed page, and the digests of rows where they stand.

A page of one head holds its keys as [page_rows / 16][width / 2][16][2], rows as outputs and columns
as inputs, and its values as [width / 16][page_rows / 2][16][2], the other way about: both are what
the innermost loops read (madd.py). `side` is 0 for keys and 1 for values; side s of layer l is
digest layer 2 l + s. A word is 4 columns; the exponent is the word after the last.
"""

import numpy as np
from numba.extending import register_jitable

from .digest import PARTS, SEED_0, SEED_1, digest_words, mix64, place, word_mix

i64, u32, u64 = np.int64, np.uint32, np.uint64
ROWS_PART = PARTS["rows"]
KEYS, VALUES = 0, 1
BLOCK = 16
LOW_16, SECOND_16 = u64(0xFFFF), u64(0xFFFF0000)
THIRD_16, FOURTH_16 = u64(0xFFFF << 32), u64(0xFFFF << 48)
S16, S32 = u64(16), u64(32)


@register_jitable
def key_index(row, column, width):
    """Where a key's value stands in its page and head."""
    return (row // 16) * 16 * width + (column // 2) * 32 + (row % 16) * 2 + column % 2


@register_jitable
def value_index(row, column, page_rows):
    """Where a value's value stands in its page and head."""
    return (column // 16) * 16 * page_rows + (row // 2) * 32 + (column % 16) * 2 + row % 2


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
def mix_positions(first, mixes):
    """mixes [2, 16] uint64: both lanes' share of the positions first to first + 16."""
    for r in range(BLOCK):
        mixes[0, r] = mix64(u64(first + r) ^ SEED_0)
        mixes[1, r] = mix64(u64(first + r) ^ SEED_1)


@register_jitable
def digest_column(words, at, mixes):
    """Both sums of one word column of 16 rows; at: its place. words [16], mixes [2, 16] uint64."""
    sum_0, sum_1 = u64(0), u64(0)
    mix_0, mix_1 = mixes[0], mixes[1]
    for r in range(BLOCK):
        sum_0 += word_mix(words[r], at, mix_0[r])
        sum_1 += word_mix(words[r], at, mix_1[r])
    return sum_0, sum_1


@register_jitable
def key_column(lines, at, column, words):
    """One word column of 16 keys. lines: the page of one head as uint32; at: their first."""
    low = lines[at + column * 32 : at + column * 32 + 16]
    high = lines[at + column * 32 + 16 : at + column * 32 + 32]
    for r in range(BLOCK):
        words[r] = u64(low[r]) | (u64(high[r]) << S32)


@register_jitable
def value_column(quads, at, words):
    """One word column of 16 values. quads: the page of one head as uint64; at: its first."""
    for r in range(0, BLOCK, 2):
        # Two columns of a row and of the next, by turns; then the two columns after them.
        a, b = quads[at + r * 4], quads[at + r * 4 + 1]
        low = (a & LOW_16) | ((a >> S16) & SECOND_16)
        words[r] = low | ((b & LOW_16) << S32) | ((b << S16) & FOURTH_16)
        high = ((b >> S16) & LOW_16) << S32 | (b & FOURTH_16)
        words[r + 1] = ((a >> S16) & LOW_16) | ((a >> S32) & SECOND_16) | high


@register_jitable
def digest_block(data, exponents, row, side, width, layer, head, mixes, words):
    """Both sums of 16 rows from `row` on; data, exponents: one page of one head; words [16]."""
    page_rows = exponents.shape[0]
    where = place(ROWS_PART, layer, head)
    sum_0, sum_1 = u64(0), u64(0)
    lines, quads = data.view(u32), data.view(u64)
    for column in range(width // 4):
        if side == KEYS:
            key_column(lines, key_index(row, 0, width) // 2, column, words)
        else:
            value_column(quads, value_index(row, column * 4, page_rows) // 4, words)
        a, b = digest_column(words, where | u64(column), mixes)
        sum_0 += a
        sum_1 += b
    for r in range(BLOCK):
        words[r] = u64(i64(exponents[row + r]))
    a, b = digest_column(words, where | u64(width // 4), mixes)
    return sum_0 + a, sum_1 + b
