"""RMSNorm of rows, its sum of squares exact through Q16, fused with the Q16 of its result."""

import numpy as np

from . import meaning
from .quantise import hard_rows, row_squares, sound_amax, top_bits, top_number_bits
from .registry import cpu, register
from .scalars import (
    INF_BITS,
    ONE,
    absolute_bits,
    add,
    div,
    flt,
    mul,
    pow2,
    q16_value,
    rn,
    row_exponent,
    sqrt,
)

f32, i32, i64 = np.float32, np.int32, np.int64


def rmsnorm(x, w, eps):
    """x [..., width], w [width], eps float32 -> y [..., width]: RN(RN(x r) w)."""
    q, e, _ = meaning.q16(x)
    squares = (q.astype(i64) ** 2).sum(-1).astype(f32)
    with np.errstate(all="ignore"):
        mean = squares * meaning.pow2(2 * e) / f32(x.shape[-1])
        r = f32(1) / np.sqrt(mean + f32(eps))
        return x * r[..., None] * w


def rmsnorm_q16_meaning(x, w, eps, q, e, flags, first, last):
    """As rmsnorm_q16."""
    rows = x[first:last]
    q[first:last], e[first:last], flag = meaning.q16(rmsnorm(rows, w, eps))
    flags[first:last] |= (flag | meaning.q16(rows)[2]).astype(np.uint8)


@cpu
def rmsnorm_q16(x, w, eps, q, e, flags, first, last):
    """Q16 of the normalised and weighted rows; what is not sound in x or in y sets the flag.

    x [rows, width] float32; w [width] float32; eps float32; q [rows, width] int16; e [rows] int8;
    flags [rows] uint8, ORed.
    """
    width = x.shape[1]
    for at in range(first, last):
        row, digits = x[at], q[at]
        top = top_bits(row)
        sound = sound_amax(top)
        if top > INF_BITS:
            top = top_number_bits(row)
        k = row_exponent(flt(top))
        scale = pow2(-k)
        squares = i64(0)
        for i in range(width):
            v = i32(q16_value(row[i], scale))
            squares += i64(i32(v * v))
        mean = div(mul(rn(squares), pow2(2 * k)), rn(width))
        r = div(ONE, sqrt(add(mean, eps)))
        top, number = i32(0), i32(0)
        for i in range(width):
            here = absolute_bits(mul(mul(row[i], r), w[i]))
            top = here if here > top else top
            here = here if here <= INF_BITS else i32(0)
            number = here if here > number else number
        k = row_exponent(flt(number))
        scale = pow2(-k)
        for i in range(width):
            digits[i] = q16_value(mul(mul(row[i], r), w[i]), scale)
        e[at] = k
        flags[at] |= np.uint8(0) if sound and sound_amax(top) else np.uint8(1)


def rmsnorm_rows_meaning(x, w, eps, y, column, flags, first, last):
    """As rmsnorm_rows."""
    rows = x[first:last]
    y[first:last, column : column + x.shape[1]] = rmsnorm(rows, w, eps)
    flags[first:last] |= meaning.q16(rows)[2].astype(np.uint8)


@cpu
def rmsnorm_rows(x, w, eps, y, column, flags, first, last):
    """The normalised and weighted rows themselves; what is not sound in x sets the flag.

    x [rows, width], w [width], y [rows, at least column + width] float32; flags [rows] uint8, ORed.
    """
    width = x.shape[1]
    for at in range(first, last):
        row, out = x[at], y[at]
        squares, sound = row_squares(row)
        flags[at] |= np.uint8(0) if sound else np.uint8(1)
        r = div(ONE, sqrt(add(div(squares, rn(width)), eps)))
        for i in range(width):
            out[column + i] = mul(mul(row[i], r), w[i])


def rmsnorm_rows_cases(rng):
    """As rmsnorm_cases, into columns of a wider row."""
    for x, w, eps, _, _, flags, first, last in rmsnorm_cases(rng):
        column = int(rng.integers(0, 4))
        y = np.full((len(x), column + x.shape[1] + 1), 3, f32)
        yield x, w, eps, y, column, flags, first, last


def rmsnorm_cases(rng):
    """Rows of every size, weights around one and far from it."""
    for width in (1, 7, 64, 576, 1536):
        rows = int(rng.integers(1, 6))
        x = hard_rows(rng, rows, width)
        w = (1 + rng.standard_normal(width) * rng.choice([0.1, 30])).astype(f32)
        q = np.full((rows, width), 7, np.int16)
        e, flags = np.full(rows, 9, np.int8), np.zeros(rows, np.uint8)
        yield x, w, f32(1e-5), q, e, flags, int(rng.integers(0, rows)), rows


register(
    "rmsnorm_q16",
    meaning=rmsnorm_q16_meaning,
    cpu=rmsnorm_q16,
    shapes="x [rows, width], w [width], eps float32; q [rows, width] int16; e [rows] int8; "
    "flags [rows] uint8",
    units="y ~ q * 2^e, |q| <= 32639, e in [-63, 63]; flags are ORed with 0 or 1",
    cases=rmsnorm_cases,
)
register(
    "rmsnorm_rows",
    meaning=rmsnorm_rows_meaning,
    cpu=rmsnorm_rows,
    shapes="x [rows, width], w [width], y [rows, >= column + width] float32; flags [rows] uint8",
    units="float32; column: where the result begins in a row of y; flags are ORed with 0 or 1",
    cases=rmsnorm_rows_cases,
)
