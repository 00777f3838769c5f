"""Rotary positions: tables made without a maths library, and rows turned by halves, no fma."""

from decimal import Context, Decimal, localcontext
from math import factorial

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from .registry import cpu, register
from .scalars import add, mul, sub

f32, f64, i64 = np.float32, np.float64, np.int64
Table = NDArray[np.float32]

# pi/2 in two parts: the first has 33 bits, so that a whole number below 2^20 times it is exact.
HALF_PI_HEAD, HALF_PI_TAIL = 1.5707963267341256, 6.077100506506192e-11
TWO_OVER_PI = 0.6366197723675814


def inverse_frequencies(width: int, base: float) -> Table:
    """base^(-2 i / width) for i < width / 2, correctly rounded through decimals, float32."""
    with localcontext(Context(prec=60)):
        log = Decimal(base).ln()
        exact = [(-log * 2 * i / width).exp() for i in range(width // 2)]
    return np.array([float(one) for one in exact]).astype(f32)


def rope_tables(rows: int, width: int, base: float) -> tuple[Table, Table]:
    """cos, sin [rows, width / 2] float32 of position times frequency, the same on any machine.

    The angle is rounded to float32; the rest is float64 additions and products alone.
    """
    angle = (np.arange(rows, dtype=f32)[:, None] * inverse_frequencies(width, base)).astype(f64)
    turns = np.rint(angle * TWO_OVER_PI)
    r = (angle - turns * HALF_PI_HEAD) - turns * HALF_PI_TAIL
    square = -(r * r)
    s, c = np.full(r.shape, 1.0 / factorial(17)), np.full(r.shape, 1.0 / factorial(16))
    for j in range(15, 0, -2):
        s = s * square + 1.0 / factorial(j)
        c = c * square + 1.0 / factorial(j - 1)
    s = s * r
    quarter = turns.astype(i64) & 3
    cos = np.choose(quarter, [c, -s, -c, s]).astype(f32)
    return cos, np.choose(quarter, [s, c, -s, -c]).astype(f32)


def rope_rows_meaning(x, heads, positions, cos, sin, first, last):
    """As rope_rows."""
    half = cos.shape[1]
    rows = x[first:last, : heads * 2 * half].reshape(last - first, heads, 2, half)
    a, b = rows[:, :, 0].copy(), rows[:, :, 1].copy()
    c, s = cos[positions[first:last], None], sin[positions[first:last], None]
    turned = np.stack([a * c - b * s, b * c + a * s], axis=2)
    x[first:last, : heads * 2 * half] = turned.reshape(last - first, -1)


@register_jitable
def rotate_head(head, cos, sin):
    """head [2 * half] float32, in place; cos, sin [half] of its position."""
    half = cos.shape[0]
    low, high = head[:half], head[half:]
    for i in range(half):
        a, b = low[i], high[i]
        low[i] = sub(mul(a, cos[i]), mul(b, sin[i]))
        high[i] = add(mul(b, cos[i]), mul(a, sin[i]))


@cpu
def rope_rows(x, heads, positions, cos, sin, first, last):
    """Turn the first `heads` heads of each row, in place.

    x [rows, at least heads * 2 * half] float32; positions [rows] int64; cos, sin [n, half] float32.
    """
    width = 2 * cos.shape[1]
    for row in range(first, last):
        at = positions[row]
        for head in range(heads):
            rotate_head(x[row, head * width : (head + 1) * width], cos[at], sin[at])


def rope_cases(rng):
    """Rows of several heads at random positions, some columns behind them left alone."""
    for width in (2, 16, 64):
        rows, heads = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        cos, sin = rope_tables(64, width, 10000)
        x = (rng.standard_normal((rows, heads * width + 5)) * 3).astype(f32)
        positions = rng.integers(0, 64, rows)
        yield x, heads, positions, cos, sin, int(rng.integers(0, rows)), rows


register(
    "rope_rows",
    meaning=rope_rows_meaning,
    cpu=rope_rows,
    shapes="x [rows, >= heads * 2 * half] float32, in place; positions [rows] int64; "
    "cos, sin [n, half] float32",
    units="positions in rows of the stream, below n; float32",
    cases=rope_cases,
)
