"""The CUDA twins of mtp.py: embedding rows, a thread a value."""

import numpy as np
from numba import cuda

from ..scalars import ZERO, flt
from .target import device, kernel, threads
from .twins import twin

i32 = np.int32
THREADS = 256


@device
def embedded(table_high, table_low, token, c):
    """One value of a token's embedding row; a table of low halves that has fewer rows is none."""
    pattern = i32(i32(table_high[token, c]) << i32(16))
    if table_low.shape[0] == table_high.shape[0]:
        pattern = i32(pattern | i32(table_low[token, c]))
    return flt(pattern)


@kernel
def embed_values(table_high, table_low, tokens, x, first):
    """Row first + block's y: the embedding row as often as it fits."""
    row, c = first + cuda.blockIdx.y, cuda.grid(1)
    width = table_high.shape[1]
    if c < width:
        value = embedded(table_high, table_low, tokens[row], c)
        for stream in range(x.shape[1] // width):
            x[row, stream * width + c] = value


def embed_rows(stream, table_high, table_low, tokens, x, first, last):
    """As the CPU's embed_rows."""
    width = threads(THREADS)
    if last > first:
        grid = (-(-table_high.shape[1] // width), last - first)
        embed_values[grid, width, stream](table_high, table_low, tokens, x, first)


@kernel
def embed_next_values(table_high, table_low, tokens, positions, x, first):
    """Row first + block's y; zeros at position 0."""
    row, c = first + cuda.blockIdx.y, cuda.grid(1)
    if c < table_high.shape[1]:
        none = positions[row] == 0
        x[row, c] = ZERO if none else embedded(table_high, table_low, tokens[row], c)


def embed_next(stream, table_high, table_low, tokens, positions, x, first, last):
    """As the CPU's embed_next."""
    width = threads(THREADS)
    if last > first:
        grid = (-(-table_high.shape[1] // width), last - first)
        embed_next_values[grid, width, stream](table_high, table_low, tokens, positions, x, first)


twin("embed_rows", embed_rows)
twin("embed_next", embed_next)
