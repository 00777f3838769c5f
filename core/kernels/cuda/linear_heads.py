"""Linear maps of every head at once: heads side by side in the weights, a head's rows together."""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from .checksum import CHECKED, add_up, add_up_first, counted
from .fragments import SUMS, fragment_sums, place_of
from .linear import BUCKETS, MANY, bucket_of, parts_of
from .linear_plain import plain_dot, scaled
from .linear_tiles import heads_tiles, tile_rows
from .planes import INPUTS, OUTPUTS, TILE
from .target import device, kernel, threads

i64 = np.int64
WARPS = 4  # that share out the inputs of a block


@cache
def heads_kernel(bucket, checked=False):
    """The kernel for at most `bucket` rows."""
    sums, place, size = fragment_sums(bucket // 8), device(place_of), bucket // 8 * SUMS
    room_size = WARPS * size

    def linear_heads_block(
        xq, ex, w, ew, pairs, total, first, rows, blocks, y, stride, column0, check
    ):  # fmt: skip
        """Block blockIdx.x of head blockIdx.y, rows first to first + rows - 1 of `total`."""
        room = cuda.shared.array(room_size, types.int64)
        warp, warps, tiles = cuda.threadIdx.x >> 5, cuda.blockDim.x >> 5, pairs >> 4
        block = cuda.blockIdx.y * blocks + cuda.blockIdx.x
        at_row, output = cuda.blockIdx.y * total + first, cuda.threadIdx.x & 15
        source, at_block, own, kept = w, i64(block), True, i64(0)
        if checked and cuda.blockIdx.x == blocks:
            source, at_block, own = check[0], i64(cuda.blockIdx.y), False
        column = block * OUTPUTS + output if own else output
        on_column = i64(ew[column])
        low, high = tiles * warp // warps, tiles * (warp + 1) // warps
        sums(
            room, warp * size, source, at_block * tiles * TILE, xq[at_row * pairs :], pairs, rows,
            low, high,
        )  # fmt: skip
        cuda.syncthreads()
        for item in range(cuda.threadIdx.x, rows * OUTPUTS, cuda.blockDim.x):
            row, whole = item >> 4, i64(0)
            at = place(output, row)
            for j in range(warps):
                whole += room[j * size + at]
            to = (first + row) * stride + column0 + column
            value = scaled(whole, i64(ex[at_row + row]) + on_column)
            if own:
                y[to] = value
            if checked:
                kept += whole
        if checked:
            kept = counted(i64(0), kept, output, own)
            add_up_first(check[1], kept, rows * OUTPUTS)

    linear_heads_block.__name__ += f"_{bucket}" + CHECKED * checked
    return kernel(linear_heads_block)


@cache
def heads_plain_kernel(checked=False):
    """The kernel for any inputs."""

    def linear_heads_plain(xq, ex, w, ew, pairs, rows, columns, y, stride, column0, check):
        """A thread an output of a row; rows along the grid's y, heads along its z."""
        row, head, mine = cuda.blockIdx.y, cuda.blockIdx.z, cuda.grid(1)
        tiles, at_row = (2 * pairs + INPUTS - 1) // INPUTS, head * rows + row
        if mine < columns:
            column = head * columns + mine
            block = column >> 4
            whole = plain_dot(xq, at_row * pairs, w, block, column & 15, tiles, pairs)
            value = scaled(whole, i64(ex[at_row]) + i64(ew[column]))
            y[row * stride + column0 + column] = value
        elif checked:
            output, whole = mine - columns, i64(0)
            if output < OUTPUTS:
                whole = plain_dot(xq, at_row * pairs, check[0], i64(head), output, tiles, pairs)
        if checked:
            add_up(check[1], counted(i64(0), whole, mine & 15, mine < columns))

    linear_heads_plain.__name__ += CHECKED * checked
    return kernel(linear_heads_plain)


def linear_heads(
    stream, xq, ex, w, ew, pairs, rows, heads, columns, y, stride, column0, check=None
):  # fmt: skip
    """y = each head's map of its own rows, its columns behind those of the head before.

    xq [heads * rows * pairs] int32 and ex [heads * rows] int8: a head's rows together; w [.] int8
    of planes.py with heads * columns outputs; columns a multiple of 16; y [.] float32, flat, a row
    every `stride`, from column0 on. check: (planes, word) of checked.py, a group a head.
    """
    checked, check = check is not None, check or ()
    if not rows or not heads:
        return
    if 2 * pairs % INPUTS:
        width = threads(128)
        grid = (-(-(columns + OUTPUTS * checked) // width), rows, heads)
        heads_plain_kernel(checked)[grid, width, stream](
            xq, ex, w, ew, pairs, rows, columns, y, stride, column0, check
        )
        return
    blocks = columns // OUTPUTS
    most = tile_rows(rows, heads * (blocks + checked), pairs, by_head=True) if rows > MANY else 0
    if most:
        heads_tiles(
            stream, most, xq, ex, w, ew, pairs, rows, heads, blocks, y, stride, column0, check
        )
        return
    for first in range(0, rows, BUCKETS[-1]):
        mine = min(rows - first, BUCKETS[-1])
        bucket = bucket_of(mine)
        shape = ((blocks + checked, heads), 32 * parts_of(WARPS, pairs >> 4), stream)
        heads_kernel(bucket, checked)[shape](
            xq, ex, w, ew, pairs, rows, first, mine, blocks, y, stride, column0, check
        )
