"""A warp's integer dot products on the tensor cores: 16 outputs of packed weights by up to 64 rows.

Weights as planes.py has them, rows as int16: x = 256 high + low as well, so a product is
65536 hh + 256 (hl + lh) + ll with bytes of mixed sign, each an int8 mma with sums in int32.

Bounds. |high| <= 128, 0 <= low <= 255: over n inputs |hh| <= 2^14 n, |hl + lh| <= 2 * 128 * 255 n,
ll <= 255^2 n, all below 2^31 for n <= 32,768 = MOST_INPUTS, which a warp's share of the inputs must
not pass. The three meet in int64.
"""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from .planes import OUTPUTS, PLANE, TILE
from .target import SIMULATED, device

MOST_INPUTS = 1 << 15
COLUMNS = 8  # rows of x that one mma takes
SUMS = OUTPUTS * COLUMNS  # of one mma, over all lanes
AHEAD = 4  # tiles whose loads stand before their products


def place_of(output, row):
    """Where a sum of `fragment_sums` stands: output 0 to 15, row of x."""
    pair = ((output >> 3) << 1) + (row & 1)
    return (row >> 3) * SUMS + pair * 32 + ((output & 7) << 2) + ((row & 7) >> 1)


@cache
def fragment_sums(columns):
    """The part of a kernel for 8 * columns rows:

    sums(room, to, w, at, x, pairs, rows, first, last) leaves in the shared array room [.] int64,
    from `to` on, at place_of(output, row), the products of tiles first to last (excluded) of the
    block of weights at byte `at` of w [.] int8 with rows 0 to rows - 1 of x [rows, pairs] int32 (of
    int16 pairs). Both begin at a multiple of 16 bytes. What stands at places of other rows means
    nothing. All 32 lanes of a warp call it alike; they must meet before anybody reads.
    """
    return _simulated(columns) if SIMULATED else _compiled(columns)


def _simulated(columns):
    """Every lane makes the sums that are its own, without the others."""

    def sums(room, to, w, at, x, pairs, rows, first, last):
        lane = cuda.laneid
        for pair in range(4):
            for column in range(columns):
                output = (lane >> 2) + 8 * (pair >> 1)
                row = 8 * column + 2 * (lane & 3) + (pair & 1)
                total = 0
                for tile in range(first, last if row < rows else first):
                    for i in range(32):
                        lane_at, half, j = ((output & 7) << 2) + (i >> 3), (i >> 2) & 1, i & 3
                        byte = at + tile * TILE + lane_at * 16 + half * 8 + (output >> 3) * 4 + j
                        weight = 256 * int(w[byte]) + (int(w[byte + PLANE]) & 255)
                        word = int(x[row * pairs + tile * 16 + (i >> 1)])
                        total += weight * int(np.uint16(word >> 16 * (i & 1) & 0xFFFF).view("i2"))
                room[to + column * SUMS + pair * 32 + lane] = total

    return device(sums)


def _compiled(columns):
    from numba.cuda.extending import intrinsic

    from .fragments_code import emit_sums

    @intrinsic
    def sums(typing, room, to, w, at, x, pairs, rows, first, last):
        wide = types.int64
        signature = types.void(room, wide, w, wide, x, wide, wide, wide, wide)

        def emit(context, builder, signature, values):
            data = {0: None, 2: None, 4: None}
            for index in data:
                array = context.make_array(signature.args[index])
                data[index] = array(context, builder, value=values[index]).data
            emit_sums(builder, columns, AHEAD, data, values)
            return context.get_dummy_value()

        return signature, emit

    return sums
