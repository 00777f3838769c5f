"""The CUDA twin of latent.py: a block a row."""

import numpy as np
from numba import cuda
from numba.core import types

from ..digest import SEED_0, SEED_1, mix64, place, word_mix
from ..quantise import sound_amax
from ..scalars import ONE, add, div, flt, mul, pow2, q16_value, rn, row_exponent, sqrt
from .norm import exact_squares
from .quantise import row_tops
from .rows import wrapped_sum
from .target import kernel, threads
from .twins import twin

i64, u16, u64 = np.int64, np.uint16, np.uint64
THREADS = 128


@kernel
def latent_block(
    x, column, width, eps, exponent, positions, lanes, tables, latent, part, layer, sums, flags,
    first,
):  # fmt: skip
    """Row first + block; a thread makes words of four values."""
    room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
    row, page_rows = first + cuda.blockIdx.x, latent.shape[1]
    one, position = x[row, column : column + width], positions[row]
    top, number = row_tops(one, width, room)
    squares = exact_squares(one, width, row_exponent(flt(number)), wide_room)
    r = div(ONE, sqrt(add(div(squares, rn(i64(width))), eps)))
    page, at, scale = (
        tables[lanes[row], position // page_rows],
        position % page_rows,
        pow2(-exponent),
    )
    where = place(part, layer, 0)
    mix_0, mix_1 = mix64(u64(position) ^ SEED_0), mix64(u64(position) ^ SEED_1)
    sum_0, sum_1 = u64(0), u64(0)
    for w in range(cuda.threadIdx.x, width // 4, cuda.blockDim.x):
        word = u64(0)
        for c in range(4):
            digit = q16_value(mul(one[4 * w + c], r), scale)
            latent[page, at, 4 * w + c] = digit
            word |= u64(u16(digit)) << u64(16 * c)
        sum_0 += word_mix(word, where | u64(w), mix_0)
        sum_1 += word_mix(word, where | u64(w), mix_1)
    sum_0, sum_1 = wrapped_sum(sum_0), wrapped_sum(sum_1)
    if cuda.laneid == 0:
        cuda.atomic.add(sums, (row, 0), sum_0)
        cuda.atomic.add(sums, (row, 1), sum_1)
    if cuda.threadIdx.x == 0 and not sound_amax(top):
        flags[row] = np.uint8(1)


def latent_rows(stream, *arguments):
    """As the CPU's latent_rows."""
    *given, first, last = arguments
    if last > first:
        latent_block[last - first, threads(THREADS), stream](*given, first)


twin("latent_rows", latent_rows)
