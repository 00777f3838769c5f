"""Routed experts over many rows: a block of threads makes 128 outputs of one expert for its slots.

Slots, list of busy experts and weights are those of experts.py. An expert's slots go through in
tiles of as many rows as they fill, so that few rows cost little.
"""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from .checksum import CHECKED, add_up, counted
from .clamped import clamped_unit
from .linear_tiles import scaled_sum
from .planes import OUTPUTS, TILE
from .target import kernel
from .tiles import LINE, THREADS, WARPS, gathered_tile_sums, own_output, room_size, tile_sums

i32, i64 = np.int32, np.int64
SMALL, MIDDLE, MOST = 32, 64, 96  # slots that go through at once
AT_LEAST = 6  # slots a place, from which on tiles are the faster way


@cache
def up_tile_kernel(checked=False):
    """Gate, up and their unit: half of a block's outputs are gates."""
    small, middle, large = (gathered_tile_sums(most, checked) for most in (SMALL, MIDDLE, MOST))

    def expert_up_tile(
        xq, ex, w, ew, pairs, busy, order, starts, chosen, blocks, limit, h, stride, column0, check
    ):  # fmt: skip
        """Gates and ups of the blocks of blockIdx.x of expert busy[blockIdx.y]."""
        room, on_row = cuda.shared.array(0, types.float32), cuda.shared.array(MOST, types.int32)
        expert = busy[cuda.blockIdx.y]
        if expert < 0:
            return
        me, half, tiles = cuda.threadIdx.x, WARPS // 2, pairs >> 4
        which, start = (me >> 5) // half, cuda.blockIdx.x * half
        block = (2 * expert + which) * blocks + min(start + (me >> 5) % half, blocks - 1)
        source, mine, kept = w, start + (me >> 5) % half, i64(0)
        if checked and mine == blocks:
            source, block = check[0], 2 * expert + which
        at, output = block * tiles * TILE, me % (OUTPUTS * half)
        column = start * OUTPUTS + output
        own = min(column, blocks * OUTPUTS - 1)
        on_gate = i32(ew[2 * expert * blocks * OUTPUTS + own])
        on_up = i32(ew[(2 * expert + 1) * blocks * OUTPUTS + own])
        for first in range(starts[expert], starts[expert + 1], MOST):
            rows = min(MOST, starts[expert + 1] - first)
            for row in range(me, rows, THREADS):
                on_row[row] = ex[order[first + row] // chosen]
            if rows <= SMALL:
                whole = small(room, source, at, xq, order, first, chosen, pairs, rows, tiles)
            elif rows <= MIDDLE:
                whole = middle(room, source, at, xq, order, first, chosen, pairs, rows, tiles)
            else:
                whole = large(room, source, at, xq, order, first, chosen, pairs, rows, tiles)
            if checked:
                kept += whole
            to_row = rows if column < blocks * OUTPUTS else i64(0)
            for row in range(me // (OUTPUTS * half), to_row, THREADS // (OUTPUTS * half)):
                at_row = row * LINE + output
                gate = scaled_sum(room[at_row], on_row[row] + on_gate)
                up = scaled_sum(room[at_row + OUTPUTS * half], on_row[row] + on_up)
                h[(first + row) * stride + column0 + column] = clamped_unit(gate, up, limit)
            cuda.syncthreads()
        if checked:
            kept = counted(i64(0), kept, own_output(me), mine < blocks)
            add_up(check[1], kept if mine <= blocks else i64(0))

    expert_up_tile.__name__ += CHECKED * checked
    return kernel(expert_up_tile, 4 * max(map(room_size, (SMALL, MIDDLE, MOST))))


@cache
def down_tile_kernel(checked=False):
    """The map back, its results by the slots' numbers."""
    small, middle, large = (tile_sums(most, checked) for most in (SMALL, MIDDLE, MOST))

    def expert_down_tile(
        xq, ex, w, ew, pairs, busy, order, starts, blocks, parts, stride, column0, check
    ):  # fmt: skip
        """The blocks of blockIdx.x of expert busy[blockIdx.y]."""
        room, on_row = cuda.shared.array(0, types.float32), cuda.shared.array(MOST, types.int32)
        expert, number = busy[cuda.blockIdx.y], cuda.shared.array(MOST, types.int64)
        if expert < 0:
            return
        me, tiles, start = cuda.threadIdx.x, pairs >> 4, cuda.blockIdx.x * WARPS
        block = expert * blocks + min(start + (me >> 5), blocks - 1)
        source, mine, kept = w, start + (me >> 5), i64(0)
        if checked and mine == blocks:
            source, block = check[0], expert
        at, output = block * tiles * TILE, me % (OUTPUTS * WARPS)
        column = start * OUTPUTS + output
        on_column = i32(ew[expert * blocks * OUTPUTS + min(column, blocks * OUTPUTS - 1)])
        for first in range(starts[expert], starts[expert + 1], MOST):
            rows = min(MOST, starts[expert + 1] - first)
            x = xq[first * pairs :]
            for row in range(me, rows, THREADS):
                on_row[row], number[row] = ex[first + row], order[first + row]
            if rows <= SMALL:
                whole = small(room, source, at, x, pairs, rows, tiles)
            elif rows <= MIDDLE:
                whole = middle(room, source, at, x, pairs, rows, tiles)
            else:
                whole = large(room, source, at, x, pairs, rows, tiles)
            if checked:
                kept += whole
            to_row = rows if column < blocks * OUTPUTS else i64(0)
            for row in range(me // (OUTPUTS * WARPS), to_row, THREADS // (OUTPUTS * WARPS)):
                value = scaled_sum(room[row * LINE + output], on_row[row] + on_column)
                parts[number[row] * stride + column0 + column] = value
            cuda.syncthreads()
        if checked:
            kept = counted(i64(0), kept, own_output(me), mine < blocks)
            add_up(check[1], kept if mine <= blocks else i64(0))

    expert_down_tile.__name__ += CHECKED * checked
    return kernel(expert_down_tile, 4 * max(map(room_size, (SMALL, MIDDLE, MOST))))


def many_slots(slots, places):
    """Whether tiles are the way for so many slots over so many places for busy experts."""
    return slots >= AT_LEAST * places


def expert_up_tiles(stream, *given):
    """As expert_up; the last argument is a check or ()."""
    busy, blocks, checked = given[5], given[9], bool(given[-1])
    grid = (-(-(blocks + checked) // (WARPS // 2)), busy.shape[0])
    up_tile_kernel(checked)[grid, THREADS, stream](*given)


def expert_down_tiles(stream, *given):
    """As expert_down; the last argument is a check or ()."""
    busy, blocks, checked = given[5], given[8], bool(given[-1])
    grid = (-(-(blocks + checked) // WARPS), busy.shape[0])
    down_tile_kernel(checked)[grid, THREADS, stream](*given)
