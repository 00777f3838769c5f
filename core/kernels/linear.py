"""Linear on packed weights: exact integer sums, one rounding, one power of two."""

from .madd import OUTPUTS, WIDE_ROWS, wide1, wide2, wide3, wide6
from .registry import cpu


@cpu
def linear(xq, ex, w, ew, pairs, rows, block0, block1, y, stride, column0, add):
    """y[m, column0 + n] (+)= RN(sum_k x[m, k] w[n, k]) * 2^(ex[m] + ew[n]), blocks [block0, block1).

    xq [rows * pairs] int32: rows of int16 pairs; ex [rows] int8; w [.] int16 packed (pack.py);
    ew [16 blocks] int8; y [.] float32, flat, a row every `stride`; add: onto y, else into it.
    A row of y holds all 16 columns of a last block.  Inputs: at most 2^17.  Any party may take any
    blocks: nothing else is written.
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
