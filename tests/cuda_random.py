"""Random contents for a card's arrays, written by a kernel on it: weights, rows, states, tables."""

from typing import Any

import numpy as np
from numba import cuda as numba_cuda

from kvtape.core.kernels.cuda.target import SIMULATED, device, kernel
from kvtape.core.kernels.digest import mix64

cuda: Any = numba_cuda
Array = Any
u64 = np.uint64
ONES = 0x0101010101010101
THREADS, BLOCKS = (32, 2) if SIMULATED else (256, 132 * 16)


@device
def random_word(seed, i):  # type: ignore[no-untyped-def]
    """Word i of a sequence."""
    return mix64(u64(i) ^ (u64(seed) << u64(40)))


@kernel
def write_planes(words, seed):  # type: ignore[no-untyped-def]
    """words [.] uint64 of planes.py: random bytes, of which no high one is -128."""
    for i in range(cuda.grid(1), words.shape[0], cuda.gridsize(1)):
        word = random_word(seed, i)
        if i & 127 < 64:  # a tile's first 512 bytes are high ones
            for at in range(0, 64, 8):
                if (word >> u64(at)) & u64(0xFF) == u64(0x80):
                    word &= ~(u64(0xFF) << u64(at))
        words[i] = word


@kernel
def write_codes(words, seed, down):  # type: ignore[no-untyped-def]
    """words [.] uint64, four int16 each: even over +-2^(15 - down)."""
    for i in range(cuda.grid(1), words.shape[0], cuda.gridsize(1)):
        random, word = random_word(seed, i), u64(0)
        for at in range(0, 64, 16):
            half = np.int64((random >> u64(at)) & u64(0xFFFF)) - np.int64(0x8000)
            word |= (u64(half >> np.int64(down)) & u64(0xFFFF)) << u64(at)
        words[i] = word


@kernel
def write_masked(words, seed, mask, ones):  # type: ignore[no-untyped-def]
    """words [.] uint64: random bits of a mask, and others that are set."""
    for i in range(cuda.grid(1), words.shape[0], cuda.gridsize(1)):
        words[i] = (random_word(seed, i) & mask) | ones


def _words(array: Array) -> Array:
    flat = array.reshape(array.size)
    per = 8 // array.dtype.itemsize
    return flat[: array.size // per * per].view(u64)


def planes(stream: Any, array: Array, seed: int) -> None:
    """Random packed weights: int16 of nearly the whole range."""
    write_planes[BLOCKS, THREADS, stream](_words(array), seed)


def codes(stream: Any, array: Array, seed: int, down: int) -> None:
    """Random int16, even over +-2^(15 - down)."""
    write_codes[BLOCKS, THREADS, stream](_words(array), seed, down)


def floats(stream: Any, array: Array, seed: int) -> None:
    """Random float32, of either sign, from 1/2 to 2."""
    mask, ones = u64(0x80FFFFFF80FFFFFF), u64(0x3F0000003F000000)
    write_masked[BLOCKS, THREADS, stream](_words(array), seed, mask, ones)


def halves(stream: Any, array: Array, seed: int) -> None:
    """The same as bfloat16 in uint16."""
    mask, ones = u64(0x80FF80FF80FF80FF), u64(0x3F003F003F003F00)
    write_masked[BLOCKS, THREADS, stream](_words(array), seed, mask, ones)
