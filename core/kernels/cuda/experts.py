"""Routed experts on a GPU: both maps of every expert that a step's rows go to, in two launches.

Slots stand sorted by expert (route.py); the grid has a place for each expert that has any, which a
list on the device names, so a launch is the same for every step of its size. A block of threads
makes 16 outputs of one expert for all its slots, so an expert's weights are read once for up to 32.
Where experts have many slots, tiles are the faster way (experts_tiles.py).
"""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from .checksum import CHECKED, add_up_first, counted
from .clamped import clamped_unit
from .experts_tiles import expert_down_tiles, expert_up_tiles, many_slots
from .fragments import SUMS, fragment_sums, gathered_sums, place_of
from .linear_plain import scaled
from .planes import OUTPUTS, TILE
from .target import SIMULATED, device, kernel, threads
from .warps import block_rank

i64 = np.int64
BUCKETS = (8, 32)  # slots of an expert that go through at once
WARPS = 8
NOBODY = -1


@kernel
def list_busy_block(starts, busy):
    """One block: the experts that have slots, ascending; NOBODY in the places behind them."""
    room = cuda.shared.array(32, types.int32)
    many, count = starts.shape[0] - 1, i64(0)
    for first in range(0, many, cuda.blockDim.x):
        e = first + cuda.threadIdx.x
        has = e < many and starts[e + 1] > starts[e]
        rank = block_rank(has, room)
        if has:
            busy[count + rank[0]] = e
        count += rank[1]
    for i in range(count + cuda.threadIdx.x, busy.shape[0], cuda.blockDim.x):
        busy[i] = NOBODY


def list_busy(stream, starts, busy):
    """busy [n] int64, n >= experts that have slots; starts [E + 1] int64 of group_rows."""
    list_busy_block[1, threads(256), stream](starts, busy)


@cache
def up_kernel(bucket, checked=False):
    """Gate, up and their unit, `bucket` slots at a time."""
    sums, place, size = gathered_sums(bucket // 8), device(place_of), bucket // 8 * SUMS
    room_size = WARPS * size

    def expert_up_block(
        xq, ex, w, ew, pairs, busy, order, starts, chosen, blocks, limit, h, stride, column0, check
    ):  # fmt: skip
        """Block blockIdx.x of expert busy[blockIdx.y]; half of the warps make gates."""
        room = cuda.shared.array(room_size, types.int64)
        expert = busy[cuda.blockIdx.y]
        if expert < 0:
            return
        warp, half, tiles = cuda.threadIdx.x >> 5, cuda.blockDim.x >> 6, pairs >> 4
        which = warp // half
        share = warp - which * half
        low, high = tiles * share // half, tiles * (share + 1) // half
        block = (2 * expert + which) * blocks + cuda.blockIdx.x
        output, source, own, kept = cuda.threadIdx.x & 15, w, True, i64(0)
        slots = starts[expert + 1] - starts[expert]
        if checked and cuda.blockIdx.x == blocks:
            source, block, own = check[0], 2 * expert + which, False
        column = cuda.blockIdx.x * OUTPUTS + output if own else output
        on_gate = i64(ew[2 * expert * blocks * OUTPUTS + column])
        on_up = i64(ew[(2 * expert + 1) * blocks * OUTPUTS + column])
        for first in range(starts[expert], starts[expert + 1], bucket):
            rows = min(bucket, starts[expert + 1] - first)
            sums(
                room, warp * size, source, block * tiles * TILE, xq, order, first, chosen, pairs,
                rows, low, high,
            )  # fmt: skip
            cuda.syncthreads()
            for item in range(cuda.threadIdx.x, rows * OUTPUTS, cuda.blockDim.x):
                row, gate, up = item >> 4, i64(0), i64(0)
                at = place(output, row)
                for j in range(half):
                    gate += room[j * size + at]
                    up += room[(half + j) * size + at]
                on_row = i64(ex[order[first + row] // chosen])
                g, u = scaled(gate, on_row + on_gate), scaled(up, on_row + on_up)
                unit = clamped_unit(g, u, limit)
                if own:
                    h[(first + row) * stride + column0 + column] = unit
                if checked:
                    kept += gate + up
            cuda.syncthreads()
        if checked:
            kept = counted(i64(0), kept, output, own)
            add_up_first(check[1], kept, slots * OUTPUTS)

    expert_up_block.__name__ += f"_{bucket}" + CHECKED * checked
    return kernel(expert_up_block)


@cache
def down_kernel(bucket, checked=False):
    """The map back, `bucket` slots at a time, its results by the slots' numbers."""
    sums, place, size = fragment_sums(bucket // 8), device(place_of), bucket // 8 * SUMS
    room_size = WARPS * size

    def expert_down_block(
        xq, ex, w, ew, pairs, busy, order, starts, blocks, parts, stride, column0, check
    ):  # fmt: skip
        """Block blockIdx.x of expert busy[blockIdx.y]."""
        room = cuda.shared.array(room_size, types.int64)
        expert = busy[cuda.blockIdx.y]
        if expert < 0:
            return
        warp, warps, tiles = cuda.threadIdx.x >> 5, cuda.blockDim.x >> 5, pairs >> 4
        low, high = tiles * warp // warps, tiles * (warp + 1) // warps
        block, output = expert * blocks + cuda.blockIdx.x, cuda.threadIdx.x & 15
        source, own, kept = w, True, i64(0)
        slots = starts[expert + 1] - starts[expert]
        if checked and cuda.blockIdx.x == blocks:
            source, block, own = check[0], expert, False
        column, on_column = cuda.blockIdx.x * OUTPUTS + output, i64(ew[block * OUTPUTS + output])
        for first in range(starts[expert], starts[expert + 1], bucket):
            rows = min(bucket, starts[expert + 1] - first)
            sums(
                room, warp * size, source, block * tiles * TILE, xq[first * pairs :], pairs, rows,
                low, high,
            )  # fmt: skip
            cuda.syncthreads()
            for item in range(cuda.threadIdx.x, rows * OUTPUTS, cuda.blockDim.x):
                row, total = item >> 4, i64(0)
                at = place(output, row)
                for j in range(warps):
                    total += room[j * size + at]
                value = scaled(total, i64(ex[first + row]) + on_column)
                to = order[first + row] * stride + column0 + column
                if own:
                    parts[to] = value
                if checked:
                    kept += total
            cuda.syncthreads()
        if checked:
            kept = counted(i64(0), kept, output, own)
            add_up_first(check[1], kept, slots * OUTPUTS)

    expert_down_block.__name__ += f"_{bucket}" + CHECKED * checked
    return kernel(expert_down_block)


def bucket_of(slots, places):
    """Few slots an expert, or many: by what a busy one has on average at least."""
    return BUCKETS[0] if slots <= BUCKETS[0] * places // 2 else BUCKETS[1]


def expert_up(
    stream, xq, ex, w, ew, pairs, busy, order, starts, chosen, blocks, limit, h, stride, column0,
    check=None,
):  # fmt: skip
    """h[slot] = the clamped unit of gate and up, slots in the order of their experts.

    xq [rows * pairs] int32, ex [rows] int8; w, ew: of each expert `blocks` blocks of gates, then as
    many of ups (planes.py); busy [n] int64 of list_busy; order, starts of group_rows, slot row *
    chosen + j; h [.] float32, flat, a slot every `stride`, from column0 on. check: (planes, word)
    of checked.py, of each expert two groups, gates and ups.
    """
    given = (
        xq, ex, w, ew, pairs, busy, order, starts, chosen, blocks, limit, h, stride, column0,
        check or (),
    )  # fmt: skip
    if many_slots(order.shape[0], busy.shape[0]):
        expert_up_tiles(stream, *given)
        return
    bucket, checked = bucket_of(order.shape[0], busy.shape[0]), check is not None
    shape = ((blocks + checked, busy.shape[0]), 32 * (2 if SIMULATED else WARPS), stream)
    up_kernel(bucket, checked)[shape](*given)


def expert_down(
    stream, xq, ex, w, ew, pairs, busy, order, starts, blocks, parts, stride, column0, check=None
):  # fmt: skip
    """parts[slot's number] = the map back of slots as expert_up leaves them.

    xq [slots * pairs] int32, ex [slots] int8: digits in the order of the experts; w, ew: `blocks`
    blocks an expert; parts [.] float32, flat, a slot every `stride`, from column0 on. check: of
    each expert one group.
    """
    given = (
        xq, ex, w, ew, pairs, busy, order, starts, blocks, parts, stride, column0, check or ()
    )  # fmt: skip
    if many_slots(order.shape[0], busy.shape[0]):
        expert_down_tiles(stream, *given)
        return
    bucket, checked = bucket_of(order.shape[0], busy.shape[0]), check is not None
    shape = ((blocks + checked, busy.shape[0]), 32 * (1 if SIMULATED else WARPS), stream)
    down_kernel(bucket, checked)[shape](*given)
