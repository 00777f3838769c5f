"""Digests of rows on a GPU: several warps a row, whose shares are added atomically."""

import numpy as np
from numba import cuda

from ..digest import SEED_0, SEED_1, mix64, place, word_mix
from .rows import wrapped_sum
from .target import SIMULATED, WARP, kernel, threads
from .twins import twin

u64 = np.uint64
THREADS = threads(256)
WORDS = THREADS * (2 if SIMULATED else 8)  # of a row, that a block sums


@kernel
def clear_sums(sums, first):
    """sums[first + blockIdx.x] = 0."""
    sums[first + cuda.blockIdx.x, cuda.threadIdx.x] = u64(0)


@kernel
def digest_rows_kernel(words, part, layer, head, positions, column, sums, row0):
    """sums[r] += the digest of row r; blockIdx.y: the row, from row0 on; blockIdx.x: its WORDS."""
    row, me = row0 + cuda.blockIdx.y, cuda.threadIdx.x
    position = u64(positions[row])
    mix_0, mix_1 = mix64(position ^ SEED_0), mix64(position ^ SEED_1)
    where = place(part, layer, head) | u64(column)
    first = cuda.blockIdx.x * WORDS
    last = min(first + WORDS, words.shape[1])
    sum_0, sum_1 = u64(0), u64(0)
    for i in range(first + me, last, THREADS):
        word, at = words[row, i], where + u64(i)
        sum_0 += word_mix(word, at, mix_0)
        sum_1 += word_mix(word, at, mix_1)
    sum_0, sum_1 = wrapped_sum(sum_0), wrapped_sum(sum_1)
    if me % WARP == 0:
        cuda.atomic.add(sums, (row, 0), sum_0)
        cuda.atomic.add(sums, (row, 1), sum_1)


def add_digests(stream, words, part, layer, head, positions, column, sums, first, last):
    """sums[r] += the digest of row r; otherwise as core/kernels/digest.py has digest_rows."""
    if last > first:
        grid = (-(-words.shape[1] // WORDS), last - first)
        digest_rows_kernel[grid, THREADS, stream](
            words, part, layer, head, positions, column, sums, first
        )


def digest_rows(stream, words, part, layer, head, positions, column, sums, first, last):
    """As core/kernels/digest.py has it."""
    if last > first:
        clear_sums[last - first, 2, stream](sums, first)
    add_digests(stream, words, part, layer, head, positions, column, sums, first, last)


twin("digest_rows", digest_rows)
