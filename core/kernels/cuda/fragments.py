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
# Tiles whose loads stand before their products, and as many where fewer are left: what registers
# hold, by mma side by side.
AHEAD = {1: (8, 4), 2: (4, 4), 4: (2, 2), 8: (1, 1)}


def place_of(output, row):
    """Where a sum of `fragment_sums` stands: output 0 to 15, row of x."""
    pair = ((output >> 3) << 1) + (row & 1)
    return (row >> 3) * SUMS + pair * 32 + ((output & 7) << 2) + ((row & 7) >> 1)


@cache
def gathered_sums(columns):
    """As fragment_sums, its row r being row index[start + r] // per of x; index [.] int64:

    sums(room, to, w, at, x, index, start, per, pairs, rows, first, last).
    """
    return _simulated(columns, True) if SIMULATED else _compiled(columns, True)


@cache
def fragment_sums(columns):
    """The part of a kernel for 8 * columns rows:

    sums(room, to, w, at, x, pairs, rows, first, last) leaves in the shared array room [.] int64,
    from `to` on, at place_of(output, row), the products of tiles first to last (excluded) of the
    block of weights at byte `at` of w [.] int8 with rows 0 to rows - 1 of x [rows, pairs] int32 (of
    int16 pairs). Both begin at a multiple of 16 bytes. What stands at places of other rows means
    nothing. All 32 lanes of a warp call it alike; they must meet before anybody reads.
    """
    return _simulated(columns, False) if SIMULATED else _compiled(columns, False)


def _simulated(columns, gathers):
    """Every lane makes the sums that are its own, without the others."""

    def gathered(room, to, w, at, x, index, start, per, pairs, rows, first, last):
        lane = cuda.laneid
        for pair in range(4):
            for column in range(columns):
                output = (lane >> 2) + 8 * (pair >> 1)
                row = 8 * column + 2 * (lane & 3) + (pair & 1)
                mine = range(first, last if row < rows else first)
                row = index[start + row] // per if row < rows and index is not None else row
                total = sum(
                    _product(w, at + tile * TILE, output, x, row * pairs, tile) for tile in mine
                )
                room[to + column * SUMS + pair * 32 + lane] = total

    def sums(room, to, w, at, x, pairs, rows, first, last):
        gathered(room, to, w, at, x, None, 0, 1, pairs, rows, first, last)

    device(gathered)
    return gathered if gathers else device(sums)


def _product(w, at, output, x, row_at, tile):
    """One output of a tile of weights, at byte `at`, by the same tile of a row of x."""
    total = 0
    for i in range(32):
        lane_at, half, j = ((output & 7) << 2) + (i >> 3), (i >> 2) & 1, i & 3
        byte = at + lane_at * 16 + half * 8 + (output >> 3) * 4 + j
        weight = 256 * int(w[byte]) + (int(w[byte + PLANE]) & 255)
        word = int(x[row_at + tile * 16 + (i >> 1)]) >> 16 * (i & 1)
        total += weight * int(np.uint16(word & 0xFFFF).view("i2"))
    return total


def _compiled(columns, gathers):
    from numba.cuda.extending import intrinsic

    from .fragments_code import emit_sums

    wide = types.int64

    def pointers(context, builder, signature, values, indices):
        arrays = (context.make_array(signature.args[k]) for k in indices)
        return [
            array(context, builder, value=values[k]).data
            for array, k in zip(arrays, indices, strict=True)
        ]

    @intrinsic
    def sums(typing, room, to, w, at, x, pairs, rows, first, last):
        signature = types.void(room, wide, w, wide, x, wide, wide, wide, wide)

        def emit(context, builder, signature, values):
            data = pointers(context, builder, signature, values, (0, 2, 4))
            emit_sums(builder, columns, *AHEAD[columns], data, (values[1], values[3], *values[5:]))
            return context.get_dummy_value()

        return signature, emit

    @intrinsic
    def gathered(typing, room, to, w, at, x, index, start, per, pairs, rows, first, last):
        signature = types.void(room, wide, w, wide, x, index, wide, wide, wide, wide, wide, wide)

        def emit(context, builder, signature, values):
            *data, rows_of = pointers(context, builder, signature, values, (0, 2, 4, 5))
            given = (values[1], values[3], *values[8:])
            emit_sums(
                builder, columns, *AHEAD[columns], data, given, (rows_of, values[6], values[7])
            )
            return context.get_dummy_value()

        return signature, emit

    return gathered if gathers else sums
