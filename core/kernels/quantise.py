"""Q16 of rows: 16-bit digits and one power of two a row, with a flag where a row is not sound."""

import numpy as np
from numba.extending import register_jitable

from . import meaning
from .registry import cpu, register
from .scalars import (
    EMAX,
    INF_BITS,
    absolute_bits,
    flt,
    least_exponent,
    mul,
    pow2,
    q16_value,
    rn,
    row_exponent,
)

i32, i64 = np.int32, np.int64


def q16_rows_meaning(x, q, e, flags, first, last):
    """As q16_rows."""
    q[first:last], e[first:last], flag = meaning.q16(x[first:last])
    flags[first:last] |= flag.astype(np.uint8)


@register_jitable
def sound_amax(top):
    """Whether a row's largest |x| pattern is a number whose exponent fits."""
    return top <= INF_BITS and least_exponent(flt(top)) <= EMAX


@register_jitable
def top_bits(row):
    """The largest pattern of |x| in a row; above INF_BITS if it holds a NaN."""
    top = i32(0)
    for i in range(row.shape[0]):
        here = absolute_bits(row[i])
        top = here if here > top else top
    return top


@register_jitable
def top_number_bits(row):
    """As top_bits, but a NaN counts as 0."""
    top = i32(0)
    for i in range(row.shape[0]):
        here = absolute_bits(row[i])
        if here <= INF_BITS and here > top:
            top = here
    return top


@register_jitable
def q16_row(row, q):
    """One row [width] float32 -> q [width] int16; returns (exponent, 1 where it is not sound)."""
    top = top_bits(row)
    flag = i32(0) if sound_amax(top) else i32(1)
    if top > INF_BITS:
        top = top_number_bits(row)
    e = row_exponent(flt(top))
    scale = pow2(-e)
    for i in range(row.shape[0]):
        q[i] = q16_value(row[i], scale)
    return e, flag


@register_jitable
def row_scale(row):
    """(the Q16 exponent of a row, whether the row is sound)."""
    top = top_bits(row)
    sound = sound_amax(top)
    if top > INF_BITS:
        top = top_number_bits(row)
    return row_exponent(flt(top)), sound


@register_jitable
def row_squares(row):
    """(the sum of squares of a row, exact in its digits and rounded once, whether it is sound)."""
    e, sound = row_scale(row)
    scale = pow2(-e)
    squares = i64(0)
    for i in range(row.shape[0]):
        v = i32(q16_value(row[i], scale))
        squares += i64(i32(v * v))
    return mul(rn(squares), pow2(2 * e)), sound


@cpu
def q16_rows(x, q, e, flags, first, last):
    """x ~ q * 2^e row by row; a NaN or an exponent that does not fit sets the row's flag.

    x [rows, width] float32; q [rows, width] int16; e [rows] int8; flags [rows] uint8, ORed.
    """
    for row in range(first, last):
        one = q16_row(x[row], q[row])
        e[row] = one[0]
        flags[row] |= np.uint8(one[1])


def hard_rows(rng, rows, width):
    """Rows of every size a float32 can have, with zeros, ties, infinities and NaN among them."""
    spread = np.exp(rng.uniform(-80, 60, (rows, 1)))
    x = (rng.standard_normal((rows, width)) * spread).astype(np.float32)
    kind = rng.integers(0, 12, rows)
    at = rng.integers(0, width, rows)
    x[kind == 0] = 0
    x[kind == 1] = -0.0
    for row in np.flatnonzero(kind == 2):  # the tie that rounds up to QMAX + 1
        x[row] = 0
        x[row, at[row]] = np.float32(32639.5) * meaning.pow2(rng.integers(-90, 90))
    for row, value in zip(np.flatnonzero(kind == 3), (np.nan, np.inf, -np.inf), strict=False):
        x[row, at[row]] = value
    return x


def q16_cases(rng):
    """Hard rows and tame ones, and a part of the rows only."""
    for width in (1, 2, 16, 65, 576):
        rows = int(rng.integers(1, 7))
        x = hard_rows(rng, rows, width)
        q = np.full((rows, width), 7, np.int16)
        e, flags = np.full(rows, 9, np.int8), np.zeros(rows, np.uint8)
        yield x, q, e, flags, int(rng.integers(0, rows)), rows


register(
    "q16_rows",
    meaning=q16_rows_meaning,
    cpu=q16_rows,
    shapes="x [rows, width] float32; q [rows, width] int16; e [rows] int8; flags [rows] uint8",
    units="x ~ q * 2^e, |q| <= 32639, e in [-63, 63]; flags are ORed with 0 or 1",
    cases=q16_cases,
)
