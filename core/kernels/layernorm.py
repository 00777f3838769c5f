"""LayerNorm of rows: the sum and the sum of squares exact in the digits of Q16."""

import numpy as np

from . import meaning
from .quantise import hard_rows, row_scale, row_squares
from .registry import cpu, register
from .scalars import (
    ONE,
    add,
    div,
    mul,
    pow2,
    q16_value,
    rn,
    sqrt,
    sub,
)

f32, i32, i64 = np.float32, np.int32, np.int64


def layernorm_rows_meaning(x, w, b, eps, y, flags, first, last):
    """As layernorm_rows."""
    width = w.size
    rows = x[first:last, :width]
    q, e, flag = meaning.q16(rows)
    with np.errstate(all="ignore"):
        mean = (q.astype(i64).sum(-1).astype(f32) * meaning.pow2(e)) / f32(width)
        apart = rows - mean[:, None]
        r = f32(1) / np.sqrt(meaning.squares(apart) / f32(width) + eps)
        y[first:last, :width] = (apart * r[:, None]) * w + b
    flags[first:last] |= (flag | meaning.q16(apart)[2]).astype(np.uint8)


@cpu
def layernorm_rows(x, w, b, eps, y, flags, first, last):
    """y = RN(RN(d r) w) + b with d = x - mean and r = 1 / sqrt(mean of d^2 + eps), row by row.

    x, y [rows, >= width] float32, which may be one array; w, b [width] float32; eps float32;
    flags [rows] uint8: 1 is ORed where x or d is not sound.
    """
    width = w.shape[0]
    for at in range(first, last):
        row, out = x[at, :width], y[at, :width]
        e, sound = row_scale(row)
        scale = pow2(-e)
        total = i64(0)
        for i in range(width):
            total += i64(q16_value(row[i], scale))
        mean = div(mul(rn(total), pow2(e)), rn(width))
        for i in range(width):
            out[i] = sub(row[i], mean)
        squares, sound_too = row_squares(out)
        r = div(ONE, sqrt(add(div(squares, rn(width)), eps)))
        for i in range(width):
            out[i] = add(mul(mul(out[i], r), w[i]), b[i])
        flags[at] |= np.uint8(0) if sound and sound_too else np.uint8(1)


def layernorm_cases(rng):
    """Rows of every size, biases of their own size, columns beyond the width left alone."""
    for width in (1, 7, 16, 128, 576):
        rows, more = int(rng.integers(1, 6)), int(rng.integers(0, 3))
        x = hard_rows(rng, rows, width + more)
        w = (1 + rng.standard_normal(width) * rng.choice([0.1, 30])).astype(f32)
        b = (rng.standard_normal(width) * rng.choice([0, 1e-3, 5])).astype(f32)
        y, flags = np.full((rows, width + more), 3, f32), np.zeros(rows, np.uint8)
        yield x, w, b, f32(1e-6), y, flags, int(rng.integers(0, rows + 1)), rows


register(
    "layernorm_rows",
    meaning=layernorm_rows_meaning,
    cpu=layernorm_rows,
    shapes="x, y [rows, >= width] float32; w, b [width] float32; eps float32; flags [rows] uint8",
    units="float32; flags are ORed with 0 or 1",
    cases=layernorm_cases,
)
