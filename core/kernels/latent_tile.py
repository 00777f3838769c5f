"""The steps of attention over latent rows: a block of 16 heads of one query row at a time.

The rows are scattered, keys and values alike, and all have one exponent. For scores the heads are
the outputs of a block and the rows, as they lie, its inputs; for products with the values, 32 rows
at a time are packed by columns and the digits of P are the inputs.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable
from numba.np.arrayobj import make_array

from .attend_tile import MASK, P_ONE, SHIFT, add_values
from .madd import NARROW_PAIRS, OUTPUTS, wide1, wide2, wide3
from .scalars import INF, LOG2E, exp2c, mul, rint, sub, to_int

f32, i8, i16, i32, i64 = np.float32, np.int8, np.int16, np.int32, np.int64
CHUNK = 2 * NARROW_PAIRS  # rows whose products add up in int32
BLOCK = OUTPUTS * CHUNK  # values of 16 columns of a chunk


def latent_scratch(most, kpool, width):
    """int64 words of scratch that one party needs: `most` pools of kpool rows of this width."""
    rows, columns = -(-(most + 1) * kpool // CHUNK) * CHUNK, -(-width // OUTPUTS) * OUTPUTS
    return 9 * rows + 24 * columns + 4 * width + BLOCK


@register_jitable
def carve(scratch, width):
    """(q pairs int32, values int16, digits int16, P int32, n int64, places int64, s float32)."""
    columns = (width + OUTPUTS - 1) // OUTPUTS * OUTPUTS
    at = 4 * width
    q = scratch[:at].view(i32)
    values = scratch[at : at + 8 * columns].view(i16)
    at += 8 * columns
    digits = scratch[at : at + BLOCK // 2].view(i16)
    whole = scratch[at + BLOCK // 2 : at + BLOCK].view(i32)
    at += BLOCK
    n = scratch[at : at + OUTPUTS * columns]
    at += OUTPUTS * columns
    rows = (scratch.size - at) // 9
    return q, values, digits, whole, n, scratch[at : at + rows], scratch[at + rows :].view(f32)


@register_jitable
def list_rows(position, table, picked, count, page_rows, kpool, residue, parties, places):
    """Where the rows that a query sees lie, ascending: of its pools, then of the unfinished one.

    Only those whose position is `residue` modulo `parties`. Returns how many there are.
    """
    m, tail = 0, (position + 1) // kpool
    for i in range(count + 1):
        pool = i64(picked[i]) if i < count else i64(tail)
        start = pool * kpool
        end = min(start + kpool, position + 1)
        if start >= end:
            continue
        base = i64(table[start // page_rows]) * page_rows - start // page_rows * page_rows
        for at in range(start, end):
            if parties == 1 or at % parties == residue:
                places[m] = base + at
                m += 1
    return m


@register_jitable
def take_heads(q, eq, row, head, heads, pairs, packed, exponents):
    """Pack the block of heads from `head` on; lanes past the last are zero. q [.] int32, flat."""
    for o in range(OUTPUTS):
        exponents[o] = eq[row, head + o] if head + o < heads else i8(0)
        at = (row * heads + head + o) * pairs
        for p in range(pairs):
            packed[p * OUTPUTS + o] = q[at + p] if head + o < heads else i32(0)


@register_jitable
def score_rows(x, places, m, pairs, packed, ex, ew, s):
    """s[16 r + o] = RN(dot) * 2^(ex + ew[o]) of the rows of x at places by a block of heads."""
    r = 0
    while r < m:
        place = places[r]
        a, b = place * pairs, r * OUTPUTS
        two = r + 1 < m and places[r + 1] == place + 1
        if two and r + 2 < m and places[r + 2] == place + 2:
            wide3(x, a, pairs, packed, 0, ex, 0, ew, 0, pairs, s, b, OUTPUTS, False)
            r += 3
        elif two:
            wide2(x, a, pairs, packed, 0, ex, 0, ew, 0, pairs, s, b, OUTPUTS, False)
            r += 2
        else:
            wide1(x, a, pairs, packed, 0, ex, 0, ew, 0, pairs, s, b, OUTPUTS, False)
            r += 1


@register_jitable
def scale_scores(s, m, scale, tops):
    """Multiply the scores by the softmax scale, in place; tops [16]: the greatest of each head."""
    tops[:] = -INF
    for r in range(m):
        one = s[r * OUTPUTS : (r + 1) * OUTPUTS]
        for o in range(OUTPUTS):
            v = mul(one[o], scale)
            one[o] = v
            tops[o] = v if v > tops[o] else tops[o]


@register_jitable
def weigh_rows(s, rows, tops, whole, d):
    """whole [rows * 16] = P of a chunk's rows; d [16] += their sum."""
    for r in range(rows):
        one, p = s[r * OUTPUTS : (r + 1) * OUTPUTS], whole[r * OUTPUTS : (r + 1) * OUTPUTS]
        for o in range(OUTPUTS):
            p[o] = to_int(rint(mul(exp2c(mul(sub(one[o], tops[o]), LOG2E)), P_ONE)))
        for o in range(OUTPUTS):
            d[o] += i64(p[o])


@register_jitable
def split_digits(whole, rows, heads, digits):
    """Of each head its high and its low digits over a chunk, zero past the rows."""
    for o in range(heads):
        high = digits[2 * o * CHUNK : (2 * o + 1) * CHUNK]
        low = digits[(2 * o + 1) * CHUNK : (2 * o + 2) * CHUNK]
        for r in range(rows):
            p = whole[r * OUTPUTS + o]
            high[r] = i16(p >> SHIFT)
            low[r] = i16(p & MASK)
        high[rows:] = 0
        low[rows:] = 0


@intrinsic
def interleave(typing, x, a, b, out, at):
    """out[at : at + 32] = x[a : a + 16] and x[b : b + 16] by turns; int16."""

    def generate(context, builder, signature, args):
        source, target = (make_array(signature.args[k])(context, builder, args[k]) for k in (0, 3))
        half, whole = (ir.VectorType(ir.IntType(16), n) for n in (OUTPUTS, 2 * OUTPUTS))
        rows = []
        for place in args[1:3]:
            pointer = builder.bitcast(builder.gep(source.data, [place]), half.as_pointer())
            rows.append(builder.load(pointer, align=2))
        lanes = [lane + row * OUTPUTS for lane in range(OUTPUTS) for row in (0, 1)]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), 2 * OUTPUTS), lanes)
        both = builder.shuffle_vector(*rows, mask)
        pointer = builder.bitcast(builder.gep(target.data, [args[4]]), whole.as_pointer())
        builder.store(both, pointer, align=2)
        return context.get_dummy_value()

    return types.void(x, types.int64, types.int64, out, types.int64), generate


@register_jitable
def pack_values(x, places, rows, width, values):
    """values [columns / 16, 16 pairs, 16, 2] int16, flat: a chunk's rows, two by two."""
    whole = width // OUTPUTS * OUTPUTS
    for pair in range((rows + 1) // 2):
        # An odd last row is its own partner, whose digits are zero.
        a, b = places[2 * pair] * width, places[min(2 * pair + 1, rows - 1)] * width
        for column in range(0, whole, OUTPUTS):
            interleave(x, a + column, b + column, values, column * CHUNK + pair * 2 * OUTPUTS)
        at = whole * CHUNK + pair * 2 * OUTPUTS
        for c in range(width - whole):
            values[at + 2 * c] = x[a + whole + c]
            values[at + 2 * c + 1] = x[b + whole + c]


@register_jitable
def sum_rows_of(x, places, m, width, heads, s, tops, values, digits, whole, n, d):
    """n [columns / 16, 16, 16], d [16] int64: sums of P by the values of m rows, and of P."""
    n[:] = 0
    d[:] = 0
    values[:] = 0
    pairs_of = digits.view(i32)
    for first in range(0, m, CHUNK):
        rows = min(CHUNK, m - first)
        weigh_rows(s[first * OUTPUTS :], rows, tops, whole, d)
        split_digits(whole, rows, heads, digits)
        pack_values(x, places[first:], rows, width, values)
        for column in range(0, width, OUTPUTS):
            at = column * OUTPUTS
            add_values(
                pairs_of, 0, NARROW_PAIRS, 2 * heads, values, column * CHUNK, (rows + 1) // 2,
                n[at : at + OUTPUTS * OUTPUTS],
            )  # fmt: skip
