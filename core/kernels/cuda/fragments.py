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
def row_sums(columns):
    """The same of rows by rows, both int16 as they lie:

    sums(room, to, q, at, outputs, x, index, start, pairs, rows, first, last), output o being the
    row of q [.] int32 at pair at + o * pairs, for o below `outputs`; row r of x is row
    index[start + r].
    """
    return _simulated_rows(columns) if SIMULATED else _compiled_rows(columns)


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
        for place, output, row in _own(cuda.laneid, columns):
            mine = range(first, last if row < rows else first)
            row = index[start + row] // per if row < rows and index is not None else row
            room[to + place] = sum(
                by_planes(w, at + tile * TILE, output, x, row * pairs, tile) for tile in mine
            )

    def sums(room, to, w, at, x, pairs, rows, first, last):
        gathered(room, to, w, at, x, None, 0, 1, pairs, rows, first, last)

    device(gathered)
    return gathered if gathers else device(sums)


def _simulated_rows(columns):
    def sums(room, to, q, at, outputs, x, index, start, pairs, rows, first, last):
        for place, output, row in _own(cuda.laneid, columns):
            total = 0
            if row < rows and output < outputs:
                here, there = at + output * pairs, index[start + row] * pairs
                for i in range(32 * first, 32 * last):
                    total += _value(q, here, i) * _value(x, there, i)
            room[to + place] = total

    return device(sums)


def _own(lane, columns):
    """(place, output, row) of every sum that a lane holds."""
    for column in range(columns):
        for pair in range(4):
            output, row = (lane >> 2) + 8 * (pair >> 1), 2 * (lane & 3) + (pair & 1)
            yield column * SUMS + pair * 32 + lane, output, 8 * column + row


def _value(x, row_at, i):
    """The int16 number i of a row of pairs."""
    word = int(x[row_at + (i >> 1)]) >> 16 * (i & 1)
    return int(np.uint16(word & 0xFFFF).view("i2"))


def by_planes(w, at, output, x, row_at, tile):
    """One output of a tile of weights, at byte `at`, by the same tile of a row of x."""
    total = 0
    for i in range(32):
        lane_at, half, j = ((output & 7) << 2) + (i >> 3), (i >> 2) & 1, i & 3
        byte = at + lane_at * 16 + half * 8 + (output >> 3) * 4 + j
        weight = 256 * int(w[byte]) + (int(w[byte + PLANE]) & 255)
        total += weight * _value(x, row_at, 32 * tile + i)
    return total


def pointers(context, builder, signature, values, indices):
    """Where the data of some array arguments begin."""
    arrays = (context.make_array(signature.args[k]) for k in indices)
    return [
        array(context, builder, value=values[k]).data
        for array, k in zip(arrays, indices, strict=True)
    ]


def _compiled(columns, gathers):
    from numba.cuda.extending import intrinsic

    from .fragments_code import emit_sums

    wide = types.int64

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
        signature = types.void(room, wide, w, wide, x, index, *[wide] * 6)

        def emit(context, builder, signature, values):
            *data, rows_of = pointers(context, builder, signature, values, (0, 2, 4, 5))
            given = (values[1], values[3], *values[8:])
            index = (rows_of, values[6], values[7])
            emit_sums(builder, columns, *AHEAD[columns], data, given, index)
            return context.get_dummy_value()

        return signature, emit

    return gathered if gathers else sums


def _compiled_rows(columns):
    from numba.cuda.extending import intrinsic

    from .fragments_code import WIDE, emit_sums

    wide = types.int64

    @intrinsic
    def sums(typing, room, to, q, at, outputs, x, index, start, pairs, rows, first, last):
        signature = types.void(room, wide, q, wide, wide, x, index, *[wide] * 5)

        def emit(context, builder, signature, values):
            *data, rows_of = pointers(context, builder, signature, values, (0, 2, 5, 6))
            given = (values[1], values[3], *values[8:])
            index = (rows_of, values[7], WIDE(1))
            emit_sums(builder, columns, *AHEAD[columns], data, given, index, values[4])
            return context.get_dummy_value()

        return signature, emit

    return sums
