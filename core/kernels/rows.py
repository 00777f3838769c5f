"""Rows of keys and values in packed pages: written, read back, summed again, flipped on purpose.

The arenas of a rank, all layers in each, a page's rows as packed.py has them:
  keys, values            [layers, pages, kv_heads, page_rows * width] int16
  key_, value_exponents   [layers, pages, kv_heads, page_rows] int8
`head0` is the number, in the whole model, of the rank's first kv head.
"""

import numpy as np
from numba.extending import register_jitable

from . import meaning
from .digest import digest_of, row_words
from .packed import (
    BLOCK,
    KEYS,
    ROWS_PART,
    digest_block,
    digest_row,
    gather,
    key_index,
    mix_positions,
    spread,
    value_index,
)
from .quantise import hard_rows, q16_row
from .registry import cpu, register
from .rope import rope_tables, rotate_head
from .team import fetch_add

f32, i16, i64, u64 = np.float32, np.int16, np.int64, np.uint64
ARENAS = (
    "keys, values [layers, pages, kv_heads, page_rows * width] int16; "
    "key_exponents, value_exponents [layers, pages, kv_heads, page_rows] int8"
)

# --- the meaning ---------------------------------------------------------------------------------


def row_view(data, page_rows, layer, page, head, row, side):
    """One row's digits, in order, as a view that can be written; its shape is two-dimensional."""
    one, width = data[layer, page, head], data.shape[3] // page_rows
    if side == KEYS:
        return one.reshape(page_rows // 16, width // 2, 16, 2)[row // 16, :, row % 16]
    return one.reshape(width // 16, page_rows // 2, 16, 2)[:, row // 2, :, row % 2]


def row_digest(digits, exponent, layer, head, position):
    """The digest of one row, uint64 [2]; layer is a digest layer."""
    words = np.append(row_words(digits), np.array([exponent], i64).view(u64))
    columns = np.arange(words.size, dtype=u64)
    return np.array(digest_of(words, ROWS_PART, layer, head, position, columns), u64)


def write_rows_meaning(
    qkv, positions, lanes, tables, cos, sin,
    keys, key_exponents, values, value_exponents, layer, head0,
    q, eq, sums, flags, first, last,
):  # fmt: skip
    """As write_rows."""
    kv_heads, page_rows = key_exponents.shape[2:]
    heads, width = q.shape[1:]
    group = heads // kv_heads
    for row, head in (divmod(item, kv_heads) for item in range(first, last)):
        own = slice(head * group, (head + 1) * group)
        x = qkv[row].reshape(-1, width)
        x = np.concatenate([x[own], x[heads + head :: kv_heads][:2]])
        a, b = x[:-1, : width // 2].copy(), x[:-1, width // 2 :].copy()
        c, s = cos[positions[row]], sin[positions[row]]
        with np.errstate(all="ignore"):
            x[:-1] = np.concatenate([a * c - b * s, b * c + a * s], axis=1)
        digits, exponents, unsound = meaning.q16(x)
        flags[row] |= np.uint8(unsound.any())
        q[row, own], eq[row, own] = digits[:-2], exponents[:-2]
        page, at = tables[lanes[row], positions[row] // page_rows], positions[row] % page_rows
        for side, data, e in ((0, keys, key_exponents), (1, values, value_exponents)):
            j = group + side
            view = row_view(data, page_rows, layer, page, head, at, side)
            view[...] = digits[j].reshape(view.shape)
            e[layer, page, head, at] = exponents[j]
            sums[row] += row_digest(
                digits[j], exponents[j], 2 * layer + side, head0 + head, positions[row]
            )


def read_row_meaning(
    keys, key_exponents, values, value_exponents, digest_layer, page, head, row, digits
):
    """As read_row."""
    layer, side = divmod(digest_layer, 2)
    data, exponents = ((keys, key_exponents), (values, value_exponents))[side]
    view = row_view(data, exponents.shape[3], layer, page, head, row, side)
    digits[:] = view.reshape(-1)
    return int(exponents[layer, page, head, row])


def sum_rows_meaning(
    keys, key_exponents, values, value_exponents, table, first, last, layer0, layer1, head0, sums
):
    """As sum_rows."""
    kv_heads, page_rows = key_exponents.shape[2:]
    digits = np.zeros(keys.shape[3] // page_rows, i16)
    arenas = keys, key_exponents, values, value_exponents
    for layer, position, head in np.ndindex(layer1 - layer0, last - first, kv_heads):
        page, row = table[(first + position) // page_rows], (first + position) % page_rows
        e = read_row_meaning(*arenas, layer0 + layer, page, head, row, digits)
        sums += row_digest(digits, e, layer0 + layer, head0 + head, first + position)


def flip_bit_meaning(
    keys, key_exponents, values, value_exponents, digest_layer, page, head, row, column, bit
):
    """As flip_bit."""
    layer, side = divmod(digest_layer, 2)
    data, exponents = ((keys, key_exponents), (values, value_exponents))[side]
    page_rows = exponents.shape[3]
    if column == data.shape[3] // page_rows:
        exponents.view(np.uint8)[layer, page, head, row] ^= np.uint8(1 << bit)
    else:
        view = row_view(data.view(np.uint16), page_rows, layer, page, head, row, side)
        view[divmod(column, view.shape[1])] ^= np.uint16(1 << bit)


# --- the loops for the CPU -----------------------------------------------------------------------


@cpu
def write_rows(
    qkv, positions, lanes, tables, cos, sin,
    keys, key_exponents, values, value_exponents, layer, head0,
    q, eq, sums, flags, first, last,
):  # fmt: skip
    """Turn, round to Q16 and put in their pages; items first to last, item = row * kv_heads + head.

    qkv [rows, (heads + 2 kv_heads) * width] float32, read only; positions, lanes [rows] int64;
    tables [lanes, entries] int32; cos, sin [n, width / 2] float32; layer: of the arenas.
    q [rows, heads, width] int16 and eq [rows, heads] int8: the queries;
    sums [rows, 2] uint64: the digests of what was written are added (atomically, so that parties
    may share a row); flags [rows] uint8: 1 where a value was not sound, else left alone.
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
            for c in range(width):
                turned[c] = qkv[row, start + c]
            if j <= group:
                rotate_head(turned, cos[position], sin[position])
            e, flag = q16_row(turned, digits)
            if flag != 0:
                flags[row] = np.uint8(1)
            if j < group:
                for c in range(width):
                    q[row, head * group + j, c] = digits[c]
                eq[row, head * group + j] = e
                continue
            side = j - group
            data, exponents = side_of(keys, key_exponents, values, value_exponents, side)
            one, e_one = data[layer, page, head], exponents[layer, page, head]
            spread(digits, e, one, e_one, position % page_rows, side)
            a, b = digest_row(digits, e, 2 * layer + side, head0 + head, position)
            fetch_add(total, 2 * row, a)
            fetch_add(total, 2 * row + 1, b)


@register_jitable
def side_of(keys, key_exponents, values, value_exponents, side):
    """The arena and the exponents of one side."""
    if side == KEYS:
        return keys, key_exponents
    return values, value_exponents


@cpu
def read_row(keys, key_exponents, values, value_exponents, digest_layer, page, head, row, digits):
    """One row of one head in logical order into digits [width] int16; returns its exponent."""
    layer, side = digest_layer // 2, digest_layer % 2
    data, exponents = side_of(keys, key_exponents, values, value_exponents, side)
    gather(data[layer, page, head], exponents.shape[3], row, side, digits)
    return i64(exponents[layer, page, head, row])


@cpu
def sum_rows(
    keys, key_exponents, values, value_exponents, table, first, last, layer0, layer1, head0, sums
):
    """Add to sums [2] uint64 the digests of rows first to last, from memory.

    table [entries] int32: the pages of the rows' stream; layer0 to layer1: digest layers.
    Whole blocks of 16 rows go together, which only changes the order of the sum.
    """
    kv_heads, page_rows = key_exponents.shape[2], key_exponents.shape[3]
    width = keys.shape[3] // page_rows
    digits, words, mixes = np.empty(width, i16), np.empty(BLOCK, u64), np.empty((2, BLOCK), u64)
    position = first
    while position < last:
        page, row = table[position // page_rows], position % page_rows
        together = BLOCK if row % BLOCK == 0 and position + BLOCK <= last else 1
        if together == BLOCK:
            mix_positions(position, mixes)
        for digest_layer in range(layer0, layer1):
            layer, side = digest_layer // 2, digest_layer % 2
            data, exponents = side_of(keys, key_exponents, values, value_exponents, side)
            for head in range(kv_heads):
                one, e_one = data[layer, page, head], exponents[layer, page, head]
                if together == BLOCK:
                    a, b = digest_block(
                        one, e_one, row, side, width, digest_layer, head0 + head, mixes, words
                    )
                else:
                    gather(one, page_rows, row, side, digits)
                    a, b = digest_row(digits, e_one[row], digest_layer, head0 + head, position)
                sums[0] += a
                sums[1] += b
        position += together


@cpu
def flip_bit(
    keys, key_exponents, values, value_exponents, digest_layer, page, head, row, column, bit
):
    """Turn one bit over; column == width means the row's exponent (bits 0 to 7)."""
    layer, side = digest_layer // 2, digest_layer % 2
    page_rows = key_exponents.shape[3]
    width = keys.shape[3] // page_rows
    data, exponents = side_of(keys, key_exponents, values, value_exponents, side)
    if column == width:
        exponents[layer, page, head, row] ^= np.int8(np.uint8(1 << bit))
    elif side == KEYS:
        data[layer, page, head, key_index(row, column, width)] ^= i16(np.uint16(1 << bit))
    else:
        data[layer, page, head, value_index(row, column, page_rows)] ^= i16(np.uint16(1 << bit))


# --- random cases --------------------------------------------------------------------------------


def random_arenas(rng, layers, pages, kv_heads, page_rows, width):
    """Arenas full of sound rows."""
    shape = layers, pages, kv_heads, page_rows
    data = [rng.integers(-32639, 32640, (*shape[:3], page_rows * width), i16) for _ in (0, 1)]
    exponents = [rng.integers(-63, 64, shape, np.int8) for _ in (0, 1)]
    return data[0], exponents[0], data[1], exponents[1]


SHAPES = ((1, 1, 16, 16), (3, 3, 32, 64), (2, 4, 64, 32))  # kv heads, group, page rows, width


def write_cases(rng):
    """Hard rows of two lanes whose pages are in no order, and a part of the items only."""
    for kv_heads, group, page_rows, width in SHAPES:
        rows, heads, layers = int(rng.integers(1, 6)), kv_heads * group, 2
        arenas = random_arenas(rng, layers, 9, kv_heads, page_rows, width)
        tables = rng.permutation(9)[:8].reshape(2, 4).astype(np.int32)
        qkv = hard_rows(rng, rows, (heads + 2 * kv_heads) * width)
        lanes = rng.integers(0, 2, rows)
        positions = rng.permutation(4 * page_rows)[:rows]
        cos, sin = rope_tables(4 * page_rows, width, 10000)
        q, eq = np.zeros((rows, heads, width), i16), np.zeros((rows, heads), np.int8)
        sums, flags = rng.integers(0, 2**64, (rows, 2), u64), np.zeros(rows, np.uint8)
        last = rows * kv_heads
        first = int(rng.integers(0, last))
        yield (qkv, positions, lanes, tables, cos, sin, *arenas, int(rng.integers(0, layers)),
               int(rng.integers(0, 9)), q, eq, sums, flags, first, last)  # fmt: skip


def read_cases(rng):
    """Any row of either side."""
    for kv_heads, _, page_rows, width in SHAPES:
        arenas = random_arenas(rng, 2, 3, kv_heads, page_rows, width)
        at = [int(rng.integers(0, n)) for n in (4, 3, kv_heads, page_rows)]
        yield *arenas, *at, np.zeros(width, i16)


def sum_cases(rng):
    """Ranges that begin and end inside a block, of some layers."""
    for kv_heads, _, page_rows, width in SHAPES:
        arenas = random_arenas(rng, 2, 5, kv_heads, page_rows, width)
        table = rng.permutation(5).astype(np.int32)
        first, last = (int(n) for n in np.sort(rng.integers(0, 5 * page_rows + 1, 2)))
        low, high = (int(n) for n in np.sort(rng.integers(0, 5, 2)))
        sums = rng.integers(0, 2**64, 2, u64)
        yield *arenas, table, first, min(last, first + 50), low, high, 5, sums


def flip_cases(rng):
    """Any bit of any column, and of exponents."""
    for kv_heads, _, page_rows, width in SHAPES:
        for column in (int(rng.integers(0, width)), width):
            arenas = random_arenas(rng, 2, 3, kv_heads, page_rows, width)
            at = [int(rng.integers(0, n)) for n in (4, 3, kv_heads, page_rows)]
            yield *arenas, *at, column, int(rng.integers(0, 8 if column == width else 16))


_UNITS = "positions and rows by their index in a stream and a page; layers as digest layers"
register(
    "write_rows",
    meaning=write_rows_meaning,
    cpu=write_rows,
    shapes="qkv [rows, (heads + 2 kv_heads) * width] float32; positions, lanes [rows] int64; "
    "tables [lanes, entries] int32; cos, sin [n, width / 2] float32; " + ARENAS + "; "
    "q [rows, heads, width] int16; eq [rows, heads] int8; sums [rows, 2] uint64; "
    "flags [rows] uint8",
    units="layer of the arenas; items row * kv_heads + head; sums modulo 2^64, added to",
    cases=write_cases,
)
register(
    "read_row",
    meaning=read_row_meaning,
    cpu=read_row,
    shapes=ARENAS + "; digits [width] int16",
    units=_UNITS,
    cases=read_cases,
)
register(
    "sum_rows",
    meaning=sum_rows_meaning,
    cpu=sum_rows,
    shapes=ARENAS + "; table [entries] int32; sums [2] uint64",
    units=_UNITS + "; sums modulo 2^64, added to",
    cases=sum_cases,
)
register(
    "flip_bit",
    meaning=flip_bit_meaning,
    cpu=flip_bit,
    shapes=ARENAS,
    units=_UNITS,
    cases=flip_cases,
)
