"""What maps are checked by, made from weights that stand on a card alone."""

from itertools import groupby
from typing import Any

import numpy as np
from numba import cuda as numba_cuda

from kvtape.core.kernels.cuda.checked import planes_of_sums
from kvtape.core.kernels.cuda.planes import INPUTS, OUTPUTS, TILE
from kvtape.core.kernels.cuda.target import SIMULATED, device, kernel
from kvtape.devices.cuda.checks import Check
from kvtape.devices.cuda.memory import CardMemory

cuda: Any = numba_cuda
i64, u64 = np.int64, np.uint64
WORDS = TILE // 8  # of a tile
THREADS = 32 if SIMULATED else 256
MOST = 1 << 27  # sums that are on the card at once


@device
def byte_of(word, shift, high):  # type: ignore[no-untyped-def]
    """A byte of a word, as it counts: high ones are signed, and worth 256."""
    byte = i64((word >> u64(shift)) & u64(0xFF))
    return ((byte ^ i64(0x80)) - i64(0x80)) * i64(256) if high else byte


@kernel
def add_rows(words, first, blocks, tiles, sums, wide):  # type: ignore[no-untyped-def]
    """sums [groups * wide] uint64 += the weights of each group's `blocks` blocks, by input.

    A thread adds one word of a tile over all blocks: four inputs of two outputs, either byte.
    """
    at = cuda.grid(1)
    if at >= tiles * WORDS:
        return
    base = first + i64(cuda.blockIdx.y) * blocks * tiles * WORDS
    inside = at % WORDS
    high = inside < WORDS // 2
    a, b, c, d = i64(0), i64(0), i64(0), i64(0)
    for block in range(blocks):
        word = words[base + i64(block) * tiles * WORDS + at]
        a += byte_of(word, 0, high) + byte_of(word, 32, high)
        b += byte_of(word, 8, high) + byte_of(word, 40, high)
        c += byte_of(word, 16, high) + byte_of(word, 48, high)
        d += byte_of(word, 24, high) + byte_of(word, 56, high)
    lane, half = (inside >> 1) & 3, inside & 1
    to = cuda.blockIdx.y * wide + at // WORDS * INPUTS + lane * 8 + half * 4
    cuda.atomic.add(sums, to, u64(a))
    cuda.atomic.add(sums, to + 1, u64(b))
    cuda.atomic.add(sums, to + 2, u64(c))
    cuda.atomic.add(sums, to + 3, u64(d))


def bring_checks(memory: CardMemory) -> None:
    """Fill the planes that products are checked by, from the weights' own."""
    every = sorted(memory.checks.by_matrix.values(), key=lambda one: one.at)
    for _, some in groupby(every, key=lambda one: one.word):
        alike = list(some)
        at_once = max(1, MOST // (alike[0].groups * alike[0].matrix.inputs))
        for first in range(0, len(alike), at_once):
            _bring(memory, alike[first : first + at_once])


def _bring(memory: CardMemory, alike: list[Check]) -> None:
    """Matrices of one shape, side by side."""
    card, one, count = memory.card, alike[0], len(alike)
    groups, tiles = one.groups, -(-one.matrix.inputs // INPUTS)
    blocks, wide = one.matrix.columns // OUTPUTS // groups, tiles * INPUTS
    words, first = memory.planes.view(u64), memory.matrices[one.matrix.at].at // 8
    sums = cuda.to_device(np.zeros(count * groups * wide, u64))
    grid = (-(-tiles * WORDS // THREADS), count * groups)
    add_rows[grid, THREADS, card.stream](words, first, blocks, tiles, sums, wide)
    card.wait()
    found = sums.copy_to_host().view(i64).reshape(count, groups, wide)[..., : one.matrix.inputs]
    made = np.concatenate([planes_of_sums(mine) for mine in found])
    card.upload(made, memory.check_planes[one.at : one.at + len(made)])
    card.wait()
