"""Linear maps, by head too, and gated units over many rows: a block makes 128 outputs of a tile."""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..scalars import ZERO, add, mul, pow2
from .checksum import CHECKED, add_up, counted
from .clamped import clamped_unit
from .fragments import MOST_INPUTS
from .planes import OUTPUTS, TILE
from .target import device, kernel
from .tiles import (
    LINE,
    STAGE_TILES,
    THREADS,
    WARPS,
    own_output,
    room_size,
    tile_sums,
    warpgroups,
)

i32, i64 = np.int32, np.int64
ROWS = (32, 64, 96, 128)  # of a tile; the last only where registers hold it (tile_rows)
CHIP = 132  # multiprocessors that tiles are chosen for; bits do not depend on it
# Microseconds: of a stage of two tiles of inputs by rows of a tile, of a tile besides, of a launch;
# and of a stage of one block of outputs by 32 rows, where they do not go in tiles.
STAGE_TAKES = {32: 0.4, 64: 0.575, 96: 0.77, 128: 1.02}
TILE_TAKES, LAUNCH_TAKES, BLOCK_TAKES = 4.0, 3.0, 0.00083
AT_ONCE = 8  # values of y that a thread asks for before it adds to them


@device
def scaled_sum(total, exponent):
    """A rounded sum times a power of two."""
    return mul(total, pow2(i32(exponent)))


@cache
def linear_tile_kernel(most, checked=False):
    """The kernel whose tiles have at most so many rows."""
    sums, at_once = tile_sums(most, checked), AT_ONCE

    def linear_tile(xq, ex, w, ew, pairs, rows, block0, block1, y, stride, column0, onto, check):
        """Rows of tile blockIdx.x, outputs of the blocks of blockIdx.y."""
        room, on_row = cuda.shared.array(0, types.float32), cuda.shared.array(most, types.int32)
        me, first = cuda.threadIdx.x, cuda.blockIdx.x * most
        mine, tiles = min(most, rows - first), pairs >> 4
        for row in range(me, mine, THREADS):
            on_row[row] = ex[first + row]
        start = block0 + cuda.blockIdx.y * WARPS
        # Warps without a block of their own go over the last one again, and nobody reads that.
        block = min(start + (me >> 5), block1 - 1)
        source, own = w, start + (me >> 5)
        if checked and own == block1:
            source, block = check[0], i64(0)
        at = block * tiles * TILE
        whole = sums(room, source, at, xq[first * pairs :], pairs, mine, tiles)
        if checked:
            whole = counted(i64(0), whole, own_output(me), own < block1)
            add_up(check[1], whole if own <= block1 else i64(0))
        output = me % (OUTPUTS * WARPS)
        column, step = start * OUTPUTS + output, THREADS // (OUTPUTS * WARPS)
        if column >= block1 * OUTPUTS:
            return
        on_column, before = i32(ew[column]), cuda.local.array(at_once, types.float32)
        for row0 in range(me // (OUTPUTS * WARPS), mine, at_once * step):
            for k in range(at_once):
                before[k] = ZERO
                if onto:
                    row = min(row0 + k * step, mine - 1)
                    before[k] = y[(first + row) * stride + column0 + column]
            for k in range(at_once):
                row = row0 + k * step
                if row < mine:
                    value = scaled_sum(room[row * LINE + output], on_row[row] + on_column)
                    to = (first + row) * stride + column0 + column
                    y[to] = add(before[k], value) if onto else value

    linear_tile.__name__ += f"_{most}" + CHECKED * checked
    return kernel(linear_tile, 4 * room_size(most))


@cache
def gated_tile_kernel(most, checked=False):
    """The kernel whose tiles have at most so many rows: half of a block's outputs are gates."""
    sums = tile_sums(most, checked)

    def gated_tile(xq, ex, w, ew, pairs, rows, blocks, h, stride, column0, limit, check):
        """Rows of tile blockIdx.x, gates and ups of the blocks of blockIdx.y."""
        room, on_row = cuda.shared.array(0, types.float32), cuda.shared.array(most, types.int32)
        me, first, half = cuda.threadIdx.x, cuda.blockIdx.x * most, WARPS // 2
        mine, tiles = min(most, rows - first), pairs >> 4
        for row in range(me, mine, THREADS):
            on_row[row] = ex[first + row]
        which, start = (me >> 5) // half, cuda.blockIdx.y * half
        block = which * blocks + min(start + (me >> 5) % half, blocks - 1)
        source, own = w, start + (me >> 5) % half
        if checked and own == blocks:
            source, block = check[0], which
        at = block * tiles * TILE
        whole = sums(room, source, at, xq[first * pairs :], pairs, mine, tiles)
        if checked:
            whole = counted(i64(0), whole, own_output(me), own < blocks)
            add_up(check[1], whole if own <= blocks else i64(0))
        output = me % (OUTPUTS * half)
        column = start * OUTPUTS + output
        if column >= blocks * OUTPUTS:
            return
        on_gate, on_up = i32(ew[column]), i32(ew[blocks * OUTPUTS + column])
        for row in range(me // (OUTPUTS * half), mine, THREADS // (OUTPUTS * half)):
            at = row * LINE + output
            gate = scaled_sum(room[at], on_row[row] + on_gate)
            up = scaled_sum(room[at + OUTPUTS * half], on_row[row] + on_up)
            h[(first + row) * stride + column0 + column] = clamped_unit(gate, up, limit)

    gated_tile.__name__ += f"_{most}" + CHECKED * checked
    return kernel(gated_tile, 4 * room_size(most))


@cache
def heads_tile_kernel(most, checked=False):
    """The kernel whose tiles have at most so many rows of a head."""
    sums = tile_sums(most, checked)

    def heads_tile(xq, ex, w, ew, pairs, rows, blocks, y, stride, column0, check):
        """Rows of tile blockIdx.x, outputs of the blocks of blockIdx.y of head blockIdx.z."""
        room, on_row = cuda.shared.array(0, types.float32), cuda.shared.array(most, types.int32)
        me, first, head = cuda.threadIdx.x, cuda.blockIdx.x * most, cuda.blockIdx.z
        mine, tiles, at_row = min(most, rows - first), pairs >> 4, head * rows + first
        for row in range(me, mine, THREADS):
            on_row[row] = ex[at_row + row]
        start = cuda.blockIdx.y * WARPS
        block = head * blocks + min(start + (me >> 5), blocks - 1)
        source, own = w, start + (me >> 5)
        if checked and own == blocks:
            source, block = check[0], i64(head)
        at = block * tiles * TILE
        whole = sums(room, source, at, xq[at_row * pairs :], pairs, mine, tiles)
        if checked:
            whole = counted(i64(0), whole, own_output(me), own < blocks)
            add_up(check[1], whole if own <= blocks else i64(0))
        output = me % (OUTPUTS * WARPS)
        column = (head * blocks + start) * OUTPUTS + output
        if start * OUTPUTS + output >= blocks * OUTPUTS:
            return
        on_column = i32(ew[column])
        for row in range(me // (OUTPUTS * WARPS), mine, THREADS // (OUTPUTS * WARPS)):
            value = scaled_sum(room[row * LINE + output], on_row[row] + on_column)
            y[(first + row) * stride + column0 + column] = value

    heads_tile.__name__ += f"_{most}" + CHECKED * checked
    return kernel(heads_tile, 4 * room_size(most))


def tile_rows(rows, blocks, pairs, by_head=False):
    """Rows of a tile for so many blocks of outputs, by what each way takes.

    0 where blocks that share out the inputs among their warps are faster (linear.py).
    """
    groups, stages = -(-blocks // WARPS), -(-pairs // (16 * STAGE_TILES))
    known = ROWS if warpgroups() and not by_head else ROWS[:-1]
    takes = {}
    for most in known:
        waves = -(-(-(-rows // most) * groups) // CHIP)
        takes[most] = LAUNCH_TAKES + waves * (stages * STAGE_TAKES[most] + TILE_TAKES)
    best = min(takes, key=takes.__getitem__)
    alone = LAUNCH_TAKES + BLOCK_TAKES * blocks * -(-rows // 32) * stages
    return best if takes[best] < alone else 0


def linear_tiles(stream, most, *given):
    """As linear, inputs in whole tiles of 32; its last argument is a check or ()."""
    _, _, _, _, pairs, rows, block0, block1, *_, check = given
    assert 2 * pairs <= MOST_INPUTS, f"{2 * pairs} inputs are too many"
    checked = bool(check)
    grid = (-(-rows // most), -(-(block1 - block0 + checked) // WARPS))
    linear_tile_kernel(most, checked)[grid, THREADS, stream](*given)


def gated_tiles(stream, most, *given):
    """As gated, for any number of rows; its last argument is a check or ()."""
    _, _, _, _, pairs, rows, blocks, *_, check = given
    assert 2 * pairs <= MOST_INPUTS, f"{2 * pairs} inputs are too many"
    checked = bool(check)
    grid = (-(-rows // most), -(-(blocks + checked) // (WARPS // 2)))
    gated_tile_kernel(most, checked)[grid, THREADS, stream](*given)


def heads_tiles(
    stream, most, xq, ex, w, ew, pairs, rows, heads, blocks, y, stride, column0, check=()
):  # fmt: skip
    """As linear_heads (linear_heads.py), a head having `blocks` blocks of 16 outputs."""
    assert 2 * pairs <= MOST_INPUTS, f"{2 * pairs} inputs are too many"
    checked = bool(check)
    grid = (-(-rows // most), -(-(blocks + checked) // WARPS), heads)
    heads_tile_kernel(most, checked)[grid, THREADS, stream](
        xq, ex, w, ew, pairs, rows, blocks, y, stride, column0, check
    )
