"""A block's integer products on the tensor cores: its warps' 16 outputs each by a tile of rows.

For prompt steps. Rows stand in shared memory, a stage of two tiles of 32 inputs at a time, three
stages on their way while one is read; weights go from memory to the registers of the one warp that
needs them, as planes.py has them. Products, digits and bounds are those of fragments.py.
"""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..scalars import rn
from .fragments import by_planes, pointers
from .planes import OUTPUTS, TILE
from .target import SIMULATED, device

WARPS = 2 if SIMULATED else 8  # of a block
THREADS = 32 * WARPS
LINE = OUTPUTS * WARPS + 4  # floats between two rows of sums, of banks of their own
STAGES, STAGE_TILES = 4, 2
# Tiles of weights on their way, by rows of a tile: what registers hold.
AHEAD = {32: 8, 64: 6, 96: 4, 112: 2, 128: 2}


# Where four warps multiply together: tiles of weights and stages of rows that registers hold.
SETS = {32: (8, 4), 64: (8, 2), 96: (4, 2), 128: (4, 1)}


def warpgroups():
    """Whether the card's warps multiply by fours: sm_90a does, none before it and none after."""
    if SIMULATED:
        return False
    return tuple(cuda.get_current_device().compute_capability[:2]) == (9, 0)


def plane_bytes(most):
    """Shared memory of a tile of `most` rows, high or low bytes, where warps multiply by fours."""
    return 32 * most


def slab_bytes(most):
    """Shared memory between two tiles of a stage of `most` rows."""
    return 64 * most + 64


def room_size(most):
    """float32 of shared memory that tile_sums(most) needs."""
    stages = 0 if SIMULATED else STAGES * STAGE_TILES * slab_bytes(most) // 4
    return max(stages, most * LINE)


@cache
def tile_sums(most, summed=False):
    """The part of a kernel for at most so many rows:

    sums(room, w, at, x, pairs, rows, tiles) leaves in the shared array room [.] float32, at
    row * LINE + 16 * warp + output, RN of the products of the block of weights at byte `at` of w
    [.] int8, each warp's own, with rows 0 to rows - 1 of x [rows, pairs] int32 (of int16 pairs),
    over `tiles` tiles of inputs. x and w begin at a multiple of 16 bytes. All threads of a block
    call it alike; the sums are there when it ends. Rows behind the last mean nothing.

    summed: it returns, int64, what a thread's own products add up to before they are rounded: those
    of outputs own_output(thread) and 8 more, over the rows that there are.
    """
    return _simulated(False, summed) if SIMULATED else _compiled(most, False, summed)


@device
def own_output(thread):
    """The first of the two outputs of its warp's block that a thread has."""
    return (thread & 31) >> 2


@cache
def gathered_tile_sums(most, summed=False):
    """As tile_sums, its row r being row index[start + r] // per of x; index [.] int64:

    sums(room, w, at, x, index, start, per, pairs, rows, tiles).
    """
    return _simulated(True, summed) if SIMULATED else _compiled(most, True, summed)


def _simulated(gathers, summed):
    """A lane makes a few sums, without the others."""

    def gathered(room, w, at, x, index, start, per, pairs, rows, tiles):
        mine, lane, whole = OUTPUTS * (cuda.threadIdx.x >> 5), cuda.threadIdx.x & 31, 0
        for item in range(lane & 3, 2 * rows, 4):
            row, output = item // 2, own_output(lane) + 8 * (item % 2)
            of = row if index is None else index[start + row] // per
            total = sum(
                by_planes(w, at + tile * TILE, output, x, of * pairs, tile) for tile in range(tiles)
            )
            room[row * LINE + mine + output] = rn(np.int64(total))
            whole += total
        cuda.syncthreads()
        return np.int64(whole) if summed else None

    def sums(room, w, at, x, pairs, rows, tiles):
        return gathered(room, w, at, x, None, 0, 1, pairs, rows, tiles)

    device(gathered)
    return gathered if gathers else device(sums)


def _compiled(most, gathers, summed):
    from numba.cuda.extending import intrinsic

    from .tiles_code import emit_tile_sums
    from .warpgroup_code import emit_group_sums

    wide, many = types.int64, AHEAD[most]
    emit_sums = emit_tile_sums
    if warpgroups():
        emit_sums, many = emit_group_sums, SETS[most]
    result = wide if summed else types.void

    def given(context, whole):
        return whole if summed else context.get_dummy_value()

    @intrinsic
    def sums(typing, room, w, at, x, pairs, rows, tiles):
        signature = result(room, w, wide, x, wide, wide, wide)

        def emit(context, builder, signature, values):
            data = pointers(context, builder, signature, values, (0, 1, 3))
            whole = emit_sums(builder, most, many, data, (values[2], *values[4:]), None, summed)
            return given(context, whole)

        return signature, emit

    @intrinsic
    def gathered(typing, room, w, at, x, index, start, per, pairs, rows, tiles):
        signature = result(room, w, wide, x, index, *[wide] * 5)

        def emit(context, builder, signature, values):
            *data, rows_of = pointers(context, builder, signature, values, (0, 1, 3, 4))
            index = (rows_of, values[5], values[6])
            whole = emit_sums(builder, most, many, data, (values[2], *values[7:]), index, summed)
            return given(context, whole)

        return signature, emit

    return gathered if gathers else sums
