"""The steps of attention over one tile: scores, weights as digits, products with values."""

import numpy as np
from numba.extending import register_jitable

from .madd import (
    DIGIT_BITS,
    NARROW_PAIRS,
    OUTPUTS,
    ask_for,
    narrow2,
    narrow4,
    narrow6,
    wide1,
    wide2,
    wide3,
)
from .scalars import (
    EMIN,
    LOG2E,
    SIGN_OFF,
    bits,
    exp2c,
    flt,
    mul,
    pow2,
    rint,
    sub,
    to_int,
)

f32, i16, i32, i64 = np.float32, np.int16, np.int32, np.int64
P_BITS = i32(22)
P_ONE = f32(1 << 22)
LEAST = i32(-126)
LINE = 32  # int16 values of a line of the cache
LOWEST_KEY = i32(-(1 << 31))
# Two digits of 11 bits: then the products of a page add up in int32 without a carry.
SHIFT, MASK = i32(DIGIT_BITS), i32((1 << DIGIT_BITS) - 1)


@register_jitable
def carve(scratch, queries, width):
    """A tile's n [queries * 16] and d [queries] int64, E or eq int8, q int16; and what is left."""
    at = queries * OUTPUTS
    n, d = scratch[:at], scratch[at : at + queries]
    e = scratch[at + queries : at + 2 * queries].view(np.int8)
    at += 2 * queries
    end = at + queries * (width // 4)
    return n, d, e, scratch[at:end].view(i16), scratch[end:]


@register_jitable
def carve_rows(scratch, queries, seen):
    """Of each query scores [seen] float32 and two digits int16; of each row e int32, p float32."""
    half = queries * seen // 2
    s, digits = scratch[:half].view(f32), scratch[half : 2 * half].view(i16)
    at = 2 * half
    e = scratch[at : at + seen // 2].view(i32)
    return s, digits, e, scratch[at + seen // 2 : at + seen].view(f32)


@register_jitable
def score_block(queries, q, pairs, eq, keys, at, exponents, place, s, to, seen):
    """s[a, to + r] = RN(dot) * 2^(eq + ek) for 16 rows r, for every query a of a tile."""
    a = 0
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


@register_jitable
def ask_for_lines(flat, first, count):
    """Ask for what is read after this page: pages lie anywhere, so the core cannot foresee it."""
    for i in range(first, first + count, LINE):
        ask_for(flat, i)


@register_jitable
def tile_scores(queries, q, eq, keys, exponents, layer, head, table, s, seen):
    """Unscaled scores of a tile's queries over the rows of its pages; q [queries * pairs] int32."""
    kv_heads, page_rows = exponents.shape[2], exponents.shape[3]
    width = keys.shape[3] // page_rows
    flat, e = keys.reshape(keys.size), exponents.reshape(exponents.size)
    pages = seen // page_rows
    for b in range(pages):
        row = ((layer * keys.shape[1] + table[b]) * kv_heads + head) * page_rows
        to = b * page_rows
        if b + 1 < pages:
            after = ((layer * keys.shape[1] + table[b + 1]) * kv_heads + head) * page_rows
            ask_for_lines(flat, after * width, page_rows * width)
        for r in range(0, page_rows, OUTPUTS):
            score_block(
                queries, q, width // 2, eq, flat, (row + r) * width, e, row + r, s, to + r, seen
            )


@register_jitable
def tile_values(queries, digits, values, exponents, layer, head, table, column, seen, n):
    """n [queries * 16] int64 = the products of P with 16 columns of the tile's pages."""
    kv_heads, page_rows = exponents.shape[2], exponents.shape[3]
    size = values.shape[3]
    flat, pairs = values.reshape(values.size), page_rows // 2
    for i in range(queries * OUTPUTS):
        n[i] = 0
    pages = seen // page_rows
    for b in range(pages):
        at = ((layer * values.shape[1] + table[b]) * kv_heads + head) * size + column * page_rows
        if b + 1 < pages:
            after = ((layer * values.shape[1] + table[b + 1]) * kv_heads + head) * size
            ask_for_lines(flat, after + column * page_rows, page_rows * OUTPUTS)
        add_values(digits, b * pairs, seen // 2, 2 * queries, flat, at, pairs, n)


@register_jitable
def tile_weights(queries, group, visible, scale, s, e, seen, digits, p, d, greatest):
    """Digits of P, D and E of every query; the first row of the tile sees `visible` rows."""
    most, counted = i32(EMIN), 0
    for a in range(queries):
        n = visible + a // group
        while counted < n:
            most = max(most, e[counted])
            counted += 1
        one = s[a * seen : a * seen + n]
        top = scaled_top(one, scale)
        high = digits[2 * a * seen : (2 * a + 1) * seen]
        low = digits[(2 * a + 1) * seen : (2 * a + 2) * seen]
        d[a] = weigh(one, top, e, most, high, low, p)
        greatest[a] = np.int8(most)


@register_jitable
def page_exponents(exponents, layer, head, table, seen, e):
    """The exponents of a stream's first rows, side by side; e [seen] int32."""
    page_rows = exponents.shape[3]
    for b in range(seen // page_rows):
        one = exponents[layer, table[b], head]
        for r in range(page_rows):
            e[b * page_rows + r] = one[r]
