"""Linear on packed weights: exact integer sums, one rounding, one power of two."""

import numpy as np

from . import meaning
from .madd import OUTPUTS, WIDE_ROWS, wide1, wide2, wide3, wide6
from .pack import aligned, pack, packed_size, unpack
from .registry import cpu, register

QMAX = meaning.QMAX


def linear_meaning(xq, ex, w, ew, pairs, rows, block0, block1, y, stride, column0, add):
    """As linear; float64 holds every partial sum, because K * 2^30 is below 2^53."""
    columns = slice(block0 * OUTPUTS, block1 * OUTPUTS)
    x = xq[: rows * pairs].view(np.int16).reshape(rows, 2 * pairs).astype(np.float64)
    weights = unpack(w, w.size // (2 * pairs), 2 * pairs)[columns].astype(np.float64)
    exponents = ex[:rows, None].astype(np.int32) + ew[None, columns]
    with np.errstate(all="ignore"):
        result = (x @ weights.T).astype(np.float32) * meaning.pow2(exponents)
        for m in range(rows):
            start = m * stride + column0 + block0 * OUTPUTS
            out = y[start : start + result.shape[1]]
            out[:] = out + result[m] if add else result[m]


@cpu
def linear(xq, ex, w, ew, pairs, rows, block0, block1, y, stride, column0, add):
    """y[m, column0 + n] (+)= RN(sum_k x[m, k] w[n, k]) * 2^(ex[m] + ew[n]), for some blocks of n.

    xq [rows * pairs] int32: rows of int16 pairs; ex [rows] int8; w [.] int16 packed (pack.py);
    ew [16 blocks] int8; blocks of 16 outputs from block0 to block1 (excluded), so that parties can
    share them; y [.] float32, flat, a row every `stride`; add: onto y, else into it.
    A row of y has room for all 16 columns of the last block. Inputs: at most 2^17.
    """
    size = pairs * 2 * OUTPUTS
    for block in range(block0, block1):
        m = 0
        n = block * OUTPUTS
        while m < rows:
            left = rows - m
            x = m * pairs
            to = m * stride + column0 + n
            if WIDE_ROWS == 6 and left >= 6:
                wide6(xq, x, pairs, w, block * size, ex, m, ew, n, pairs, y, to, stride, add)
                m += 6
            elif left == 3 or left > 4:
                wide3(xq, x, pairs, w, block * size, ex, m, ew, n, pairs, y, to, stride, add)
                m += 3
            elif left > 1:
                wide2(xq, x, pairs, w, block * size, ex, m, ew, n, pairs, y, to, stride, add)
                m += 2
            else:
                wide1(xq, x, pairs, w, block * size, ex, m, ew, n, pairs, y, to, stride, add)
                m += 1


def extreme_rows(rng, rows, width):
    """Rows [rows, width] int16 within +-QMAX: random, all zero, and all of the greatest size."""
    q = rng.integers(-QMAX, QMAX + 1, (rows, width), np.int16)
    kind = rng.integers(0, 5, rows)
    q[kind == 0] = 0
    q[kind == 1] = QMAX
    q[kind == 2] = rng.choice(np.array([-QMAX, QMAX], np.int16), (int((kind == 2).sum()), width))
    return q


def linear_cases(rng):
    """Every tile of rows, inputs up to 2048, some blocks only, onto y and into it."""
    for rows, blocks, pairs in ((1, 3, 288), (2, 1, 1), (3, 2, 7), (4, 1, 32), (9, 2, 1024)):
        x = extreme_rows(rng, rows, 2 * pairs)
        weights = extreme_rows(rng, blocks * OUTPUTS, 2 * pairs)
        w = aligned(packed_size(*weights.shape), np.int16)
        pack(weights, w)
        ex, ew = (rng.integers(-63, 64, n, np.int8) for n in (rows, blocks * OUTPUTS))
        column0 = int(rng.integers(0, 9))
        stride = column0 + blocks * OUTPUTS + 3
        y = rng.standard_normal(rows * stride).astype(np.float32)
        block0 = int(rng.integers(0, blocks))
        add = bool(rng.integers(0, 2))
        pair_rows = x.view(np.int32).reshape(-1)
        yield pair_rows, ex, w, ew, pairs, rows, block0, blocks, y, stride, column0, add


register(
    "linear",
    meaning=linear_meaning,
    cpu=linear,
    shapes="xq [rows * pairs] int32 of int16 pairs; ex [rows] int8; "
    "w [blocks, pairs, 16, 2] int16, flat; ew [16 blocks] int8; y [rows, stride] float32, flat",
    units="x ~ q 2^ex, weights likewise by output; blocks of 16 outputs; column0 in columns of y",
    cases=linear_cases,
)
