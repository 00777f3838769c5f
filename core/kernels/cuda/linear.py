"""The CUDA twin of linear.py, and the gated unit with its two maps: weights as planes.py has them.

A block of threads makes 16 outputs: its warps share the inputs out among them and meet in shared
memory, where their int64 sums are added, rounded once and scaled. So weights are read once for up
to 32 rows, in one stream, and no two blocks meet. More rows go in tiles (linear_tiles.py), or 32 at
a time. Inputs that are not whole tiles of 32 take the plain route, a thread an output.
"""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from .. import pack
from ..scalars import INF, ZERO, add
from .checksum import CHECKED, add_up, counted
from .clamped import clamped_unit
from .fragments import MOST_INPUTS, SUMS, fragment_sums, place_of
from .linear_plain import plain_kernel, scaled
from .linear_tiles import gated_tiles, linear_tiles, tile_rows
from .planes import INPUTS, OUTPUTS, TILE, pack_planes, planes_size
from .target import SIMULATED, device, kernel, threads
from .twins import twin

i32, i64 = np.int32, np.int64
CHIP = 132  # multiprocessors that the shapes are chosen for; bits do not depend on it
BUCKETS = (8, 16, 32)  # rows that one block of threads takes: as many mma wide as needed
MANY = BUCKETS[-1]  # above it tiles may be faster, or rows go apart
# (parts of the inputs, side): what was fastest for few blocks of outputs, for some and for many,
# and for some and for many of few inputs. A block of threads makes 2^side blocks of outputs, by so
# many parts each.
SHAPES = {
    8: ((16, 0), (8, 0), (2, 1), (4, 1), (1, 2)),
    16: ((8, 0), (4, 1), (2, 1), (4, 1), (1, 2)),
    32: ((8, 0), (4, 0), (4, 0), (4, 0), (1, 2)),
}
FEW, SOME, SHORT = 2 * CHIP, 8 * CHIP, 64  # blocks, blocks, tiles
WARPS = {bucket: max(n << side for n, side in shapes) for bucket, shapes in SHAPES.items()}
MOST_PARTS = 32  # of long inputs, where blocks of threads are fewer than multiprocessors
LONG = 128  # tiles above which inputs are long


# --- the fast route ------------------------------------------------------------------------------


@cache
def linear_kernel(bucket, side, most, checked=False):
    """The kernel for at most `bucket` rows, 2^side blocks of outputs and `most` warps a block."""
    sums, place = fragment_sums(bucket // 8), device(place_of)
    size, step = bucket // 8 * SUMS, bucket // 8 * SUMS << side

    def linear_block(
        xq, ex, w, ew, pairs, rows, block0, block1, y, stride, column0, onto, check
    ):  # fmt: skip
        """y of blocks of outputs side by side, for the `bucket` rows of blockIdx.y.

        Warps that read the same inputs for blocks side by side find them near the chip's edge.
        """
        room = cuda.shared.array(0, types.int64)
        me, warps, beside = cuda.threadIdx.x, cuda.blockDim.x >> 5, 1 << side
        row0 = cuda.blockIdx.y * bucket
        rows, to_row0 = min(rows - row0, bucket), row0 * stride + column0
        warp, parts, tiles = me >> 5, warps >> side, pairs >> 4
        start = block0 + cuda.blockIdx.x * beside
        block, part = start + (warp & (beside - 1)), warp >> side
        # What the end needs is asked for before the products, so that nobody waits for it then.
        item, shift, mine = me, side + 4, me & (OUTPUTS * beside - 1)
        column = start * OUTPUTS + mine
        items = rows << shift if column < block1 * OUTPUTS else 0
        seen, kept = items, i64(0)
        if checked:
            seen = rows << shift if column < (block1 + 1) * OUTPUTS else 0
        exponent, before = i64(0), ZERO
        if item < items:
            exponent = i64(ex[row0 + (item >> shift)]) + i64(ew[column])
            if onto:
                before = y[to_row0 + (item >> shift) * stride + column]
        first, last = tiles * part // parts, tiles * (part + 1) // parts
        last = last if block < block1 + checked else first
        source, at_block = w, block
        if checked and block == block1:
            source, at_block = check[0], i64(0)
        x = xq[row0 * pairs :]
        sums(room, warp * size, source, at_block * tiles * TILE, x, pairs, rows, first, last)
        cuda.syncthreads()
        while item < seen:
            row = item >> shift
            at, total = place(mine & 15, row) + (mine >> 4) * size, i64(0)
            for j in range(parts):
                total += room[j * step + at]
            if checked:
                kept = counted(kept, total, mine & 15, item < items)
            if not checked or item < items:
                to = to_row0 + row * stride + column
                value = scaled(total, exponent)
                y[to] = add(before, value) if onto else value
            item += cuda.blockDim.x
            if item < items:
                exponent = i64(ex[row0 + (item >> shift)]) + i64(ew[column])
                if onto:
                    before = y[to_row0 + (item >> shift) * stride + column]
        if checked:
            add_up(check[1], kept)

    linear_block.__name__ += f"_{bucket}_{1 << side}_{most}" + CHECKED * checked
    return kernel(linear_block, 8 * most * size)


@cache
def gated_kernel(bucket, checked=False):
    """The kernel for at most `bucket` rows: 16 gates and their ups a block."""
    sums, place = fragment_sums(bucket // 8), device(place_of)
    size = bucket // 8 * SUMS
    room_size = WARPS[bucket] * size

    def gated_block(xq, ex, w, ew, pairs, rows, blocks, h, stride, column0, limit, check):
        """Warps of the lower half make the gates of a block, the others the ups."""
        room = cuda.shared.array(room_size, types.int64)
        warp, half = cuda.threadIdx.x >> 5, cuda.blockDim.x >> 6
        which, tiles, row0 = warp // half, pairs >> 4, cuda.blockIdx.y * bucket
        rows, share = min(rows - row0, bucket), warp - which * half
        first, last = tiles * share // half, tiles * (share + 1) // half
        at, source, own, kept = (cuda.blockIdx.x + which * blocks) * tiles * TILE, w, True, i64(0)
        if checked and cuda.blockIdx.x == blocks:
            at, source, own = which * tiles * TILE, check[0], False
        item, output = cuda.threadIdx.x, cuda.threadIdx.x & 15
        column = cuda.blockIdx.x * OUTPUTS + output if own else output
        on_gate, on_up = i64(ew[column]), i64(ew[blocks * OUTPUTS + column])
        on_row = i64(ex[row0 + min(item >> 4, rows - 1)])
        sums(room, warp * size, source, at, xq[row0 * pairs :], pairs, rows, first, last)
        cuda.syncthreads()
        while item < rows * OUTPUTS:
            row = item >> 4
            at, gate, up = place(output, row), i64(0), i64(0)
            for j in range(half):
                gate += room[j * size + at]
                up += room[(half + j) * size + at]
            if checked:
                kept = counted(kept, gate + up, output, own)
            if own:
                g, u = scaled(gate, on_row + on_gate), scaled(up, on_row + on_up)
                h[(row0 + row) * stride + column0 + column] = clamped_unit(g, u, limit)
            item += cuda.blockDim.x
            on_row = i64(ex[row0 + min(item >> 4, rows - 1)])
        if checked:
            add_up(check[1], kept)

    gated_block.__name__ += f"_{bucket}" + CHECKED * checked
    return kernel(gated_block)


def bucket_of(rows):
    """The smallest kernel that takes so many rows."""
    return next((bucket for bucket in BUCKETS if rows <= bucket), BUCKETS[-1])


def parts_of(most, tiles):
    """Warps that share out the tiles: at most `most`, each with two or more.

    No sum can overflow: none takes more than MOST_INPUTS.
    """
    parts = max(1, min(most, tiles // 2))
    assert -(-tiles // parts) * INPUTS <= MOST_INPUTS, f"{INPUTS * tiles} inputs are too many"
    return 1 if SIMULATED else parts


def shape_of(bucket, pairs, blocks):
    """(warps, side) of a block of threads."""
    tiles, which = pairs >> 4, 0
    if blocks > FEW:
        which = (2 if blocks > SOME else 1) + (2 if tiles < SHORT else 0)
    parts, side = SHAPES[bucket][which]
    return parts_of(parts, tiles) << side, side


# --- launches ------------------------------------------------------------------------------------


def linear(
    stream, xq, ex, w, ew, pairs, rows, block0, block1, y, stride, column0, add, check=None
):  # fmt: skip
    """As the CPU's linear, w [.] int8 of planes.py; xq and w begin at a multiple of 16 bytes.

    check: (planes, word) of checked.py, of blocks block0 to block1 as one group.
    """
    if block1 <= block0:
        return
    blocks, checked = block1 - block0, check is not None
    given = (xq, ex, w, ew, pairs, rows, block0, block1, y, stride, column0, add, check or ())
    if 2 * pairs % INPUTS:
        width = threads(128)
        grid = (-(-(blocks + checked) * OUTPUTS // width), rows)
        plain_kernel(checked)[grid, width, stream](*given)
        return
    most = tile_rows(rows, blocks + checked, pairs) if rows > MANY else 0
    if most:
        linear_tiles(stream, most, *given)
        return
    bucket = bucket_of(rows)
    alone = blocks * -(-rows // BUCKETS[0]) <= CHIP
    if alone:  # rows apart find room on the chip
        bucket = BUCKETS[0]
    warps, side = shape_of(bucket, pairs, blocks)
    if alone and pairs >> 4 > LONG:
        warps, side = parts_of(MOST_PARTS, pairs >> 4), 0
    most = 1 << (warps - 1).bit_length()  # so that kernels are few
    shape = ((-(-(blocks + checked) >> side), -(-rows // bucket)), 32 * warps, stream)
    linear_kernel(bucket, side, most, checked)[shape](*given)


def gated(stream, xq, ex, w, ew, pairs, rows, blocks, h, stride, column0, limit=INF, check=None):
    """h = silu(gate) * up of both maps' exact products: linear twice, then glu_rows.

    With a limit it is clamped_rows that follows: gates at most the limit, ups within +-limit.

    Of w and ew the first `blocks` blocks of 16 outputs are gates, as many after them ups; h [.]
    float32, flat, a row every `stride`, from column0 on. Inputs are whole tiles of 32.
    check: of two groups, gates and ups.
    """
    assert 2 * pairs % INPUTS == 0, pairs
    checked = check is not None
    given = (xq, ex, w, ew, pairs, rows, blocks, h, stride, column0, limit, check or ())
    most = tile_rows(rows, 2 * (blocks + checked), pairs) if rows > MANY else 0
    if most:
        gated_tiles(stream, most, *given)
        return
    bucket = bucket_of(rows)
    half = SHAPES[bucket][0 if blocks <= FEW // 2 else 1][0] // 2
    shape = ((blocks + checked, -(-rows // bucket)), 64 * parts_of(half, pairs >> 4), stream)
    gated_kernel(bucket, checked)[shape](*given)


def place(arguments):
    """Weights in the device's form, from the CPU's."""
    w, pairs = arguments[2], arguments[4]
    outputs = w.size // (2 * pairs)
    planes = np.zeros(planes_size(outputs, 2 * pairs), np.int8)
    pack_planes(pack.unpack(w, outputs, 2 * pairs), planes)
    return (*arguments[:2], planes, *arguments[3:])


twin("linear", linear, place)
