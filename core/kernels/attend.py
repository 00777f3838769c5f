"""Attention over pages: exact sums in two passes, a tile of consecutive rows at a time."""

import numpy as np
from numba.extending import register_jitable

from .madd import DIGIT_BITS, NARROW_PAIRS, OUTPUTS, narrow2, narrow4, narrow6, wide1, wide2, wide3
from .registry import inner
from .scalars import LOG2E, SIGN_OFF, bits, div, exp2c, flt, mul, pow2, rint, rn, sub, to_int

f32, i16, i32, i64 = np.float32, np.int16, np.int32, np.int64
EMIN = i32(-63)
P_BITS = i32(22)
P_ONE = f32(1 << 22)
LEAST = i32(-126)
LOWEST_KEY = i32(-(1 << 31))
# Two digits of 11 bits: then a page's products add up in int32 without a carry.
SHIFT, MASK = i32(DIGIT_BITS), i32((1 << DIGIT_BITS) - 1)
TILE_QUERIES = 12  # query heads of a tile, over all its rows


def tile_rows(group):
    """Rows of a tile: as many as keep the group's query heads within TILE_QUERIES."""
    return max(1, TILE_QUERIES // group)


def attend_scratch(context, page_rows, group, width):
    """int64 words of scratch that one party needs for rows that see at most `context` rows."""
    queries = max(TILE_QUERIES, group)
    seen = -(-context // page_rows) * page_rows
    # A query row: a float32 score and two int16 digits a row seen; then exponents and one row of p.
    words = queries * seen + seen
    return words + queries * OUTPUTS + queries * (width // 4 + 1) + 3 * queries + 16


@inner
def cut_tiles(positions, lanes, first, last, most, tiles):
    """Group rows first to last: a tile is at most `most` consecutive rows of one lane.

    positions, lanes [rows] int64; tiles [n, 2] int64 (first row, rows), n >= last - first.
    Returns how many there are.
    """
    count = 0
    row = first
    while row < last:
        rows = 1
        while (
            rows < most
            and row + rows < last
            and lanes[row + rows] == lanes[row]
            and positions[row + rows] == positions[row] + rows
        ):
            rows += 1
        tiles[count, 0] = row
        tiles[count, 1] = rows
        count += 1
        row += rows
    return count


@register_jitable
def score_block(queries, q, pairs, eq, keys, at, exponents, place, s, block, seen):
    """s[a, 16 block + r] = RN(dot) * 2^(eq + ek), for every query row a of a tile."""
    a = 0
    to = block * OUTPUTS
    while a < queries:
        left = queries - a
        x, y = a * pairs, a * seen + to
        if left == 3 or left > 4:
            wide3(q, x, pairs, keys, at, eq, a, exponents, place, pairs, s, y, seen, False)
            a += 3
        elif left > 1:
            wide2(q, x, pairs, keys, at, eq, a, exponents, place, pairs, s, y, seen, False)
            a += 2
        else:
            wide1(q, x, pairs, keys, at, eq, a, exponents, place, pairs, s, y, seen, False)
            a += 1


@register_jitable
def scaled_top(s, scale):
    """Multiply the scores by the softmax scale, in place, and return the greatest."""
    for i in range(s.shape[0]):
        s[i] = mul(s[i], scale)
    top = LOWEST_KEY
    for i in range(s.shape[0]):
        pattern = bits(s[i])
        # Patterns with the magnitude of the negative ones turned over order as integers do, and
        # the maximum of integers has no order of its own that a compiler must keep.
        key = i32(pattern ^ i32(i32(pattern >> i32(31)) & SIGN_OFF))
        top = key if key > top else top
    return flt(i32(top ^ i32(i32(top >> i32(31)) & SIGN_OFF)))


@register_jitable
def weigh(s, top, e, greatest, high, low, p):
    """The digits of P and the sum D. s, p [n] float32; e [n] int32; high, low [>= n] int16."""
    n = s.shape[0]
    for i in range(n):
        p[i] = exp2c(mul(sub(s[i], top), LOG2E))
    total = i64(0)
    for i in range(n):
        total += i64(to_int(rint(mul(p[i], P_ONE))))
    for i in range(n):
        scale = pow2(max(i32(P_BITS + i32(e[i] - greatest)), LEAST))
        whole = to_int(rint(mul(p[i], scale)))
        high[i] = i16(whole >> SHIFT)
        low[i] = i16(whole & MASK)
    for i in range(n, high.shape[0]):
        high[i] = 0
        low[i] = 0
    return total


@register_jitable
def add_values(digits, first, stride, rows, values, at, pairs, n):
    """n[16 a + o] += P of query a by one block of one page's values, from its two digit rows."""
    done = 0
    while done < pairs:
        part = min(NARROW_PAIRS, pairs - done)
        x, w = first + done, at + done * 2 * OUTPUTS
        d = 0
        while d < rows:
            left = rows - d
            if left >= 6:
                narrow6(digits, x + d * stride, stride, values, w, part, n, d // 2 * OUTPUTS)
                d += 6
            elif left >= 4:
                narrow4(digits, x + d * stride, stride, values, w, part, n, d // 2 * OUTPUTS)
                d += 4
            else:
                narrow2(digits, x + d * stride, stride, values, w, part, n, d // 2 * OUTPUTS)
                d += 2
        done += part


@inner
def attend(
    q, eq, positions, lanes, tables, keys, key_exponents, values, value_exponents,
    layer, scale, tiles, first, last, step, o, column0, scratch,
):  # fmt: skip
    """o[row, column0 + head * width + c]: attention of query rows over the rows at or before them.

    q [rows, heads, width] int16; eq [rows, heads] int8; positions, lanes [rows] int64;
    tables [lanes, entries] int32; arenas as rows.py has them; scale float32;
    tiles [n, 2] int64 of cut_tiles; items first, first + step, ... below last, item = tile *
    kv_heads + head; o [rows, columns] float32; scratch [attend_scratch(...)] int64, a
    party's own. Rows past a query's position may hold anything: their scores are dropped and their
    digits are 0.
    """
    kv_heads, page_rows = key_exponents.shape[2], key_exponents.shape[3]
    width = q.shape[2]
    group = q.shape[1] // max(kv_heads, 1)
    pairs = width // 2
    most = max(TILE_QUERIES, group)
    kf, ke = keys.reshape(keys.size), key_exponents.reshape(key_exponents.size)
    vf, ve = values.reshape(values.size), value_exponents.reshape(value_exponents.size)
    fixed = most * OUTPUTS
    n64 = scratch[:fixed]
    at = fixed + most
    d64 = scratch[fixed:at]
    qt = scratch[at : at + most * (width // 4)].view(i16)
    at += most * (width // 4)
    q32 = qt.view(i32)
    et = scratch[at : at + most].view(np.int8)
    at += most
    for item in range(first, last, step):
        tile, head = item // kv_heads, item % kv_heads
        row0, rows = tiles[tile, 0], tiles[tile, 1]
        table = tables[lanes[row0]]
        visible = positions[row0] + 1
        used = (visible + rows - 1 + page_rows - 1) // page_rows
        seen = used * page_rows
        queries = rows * group
        s = scratch[at : at + most * seen // 2].view(f32)
        rest = at + most * seen // 2
        digits = scratch[rest : rest + most * seen // 2].view(i16)
        rest += most * seen // 2
        e = scratch[rest : rest + seen // 2].view(i32)
        p = scratch[rest + seen // 2 : rest + seen].view(f32)
        for a in range(queries):
            row, j = row0 + a // group, head * group + a % group
            et[a] = eq[row, j]
            qt[a * width : (a + 1) * width] = q[row, j]
        for b in range(used):
            place = (layer * keys.shape[1] + table[b]) * kv_heads + head
            for block in range(page_rows // OUTPUTS):
                score_block(
                    queries, q32, pairs, et, kf,
                    (place * page_rows + block * OUTPUTS) * width, ke,
                    place * page_rows + block * OUTPUTS,
                    s, b * (page_rows // OUTPUTS) + block, seen,
                )  # fmt: skip
            for i in range(page_rows):
                e[b * page_rows + i] = ve[place * page_rows + i]
        greatest = EMIN
        counted = 0
        for a in range(queries):
            n = visible + a // group
            while counted < n:
                greatest = max(greatest, e[counted])
                counted += 1
            one = s[a * seen : a * seen + n]
            top = scaled_top(one, scale)
            high = digits[2 * a * seen : (2 * a + 1) * seen]
            low = digits[(2 * a + 1) * seen : (2 * a + 2) * seen]
            d64[a] = weigh(one, top, e, greatest, high, low, p)
            et[a] = np.int8(greatest)
        d32 = digits.view(i32)
        for column in range(width // OUTPUTS):
            for i in range(queries * OUTPUTS):
                n64[i] = 0
            for b in range(used):
                place = (layer * keys.shape[1] + table[b]) * kv_heads + head
                add_values(
                    d32, b * (page_rows // 2), seen // 2, 2 * queries, vf,
                    place * page_rows * width + column * OUTPUTS * page_rows, page_rows // 2, n64,
                )  # fmt: skip
            for a in range(queries):
                row, j = row0 + a // group, head * group + a % group
                to = column0 + j * width + column * OUTPUTS
                below, power = rn(d64[a]), pow2(et[a])
                for i in range(OUTPUTS):
                    o[row, to + i] = mul(div(rn(n64[a * OUTPUTS + i]), below), power)
