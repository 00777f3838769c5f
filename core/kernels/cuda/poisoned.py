"""Looking for poison on a GPU among the rows that a step's queries read, a thread a row."""

import numpy as np
from numba import cuda

from ..packed import KEYS, key_index, value_index
from ..poison import is_poison_exponent, is_poison_q
from ..poisoned import LAYER_BITS
from .placed import host, on_device
from .target import SIMULATED, device, kernel, threads
from .twins import twin

i16, i64 = np.int16, np.int64
THREADS = threads(128)
BLOCKS = 4 if SIMULATED else 16  # of a run
NONE = (1 << 63) - 1


@device
def row_is_sound(data, exponents, layer, page, head, row, side, width):
    """Whether one row of one head holds no poison."""
    sound = not is_poison_exponent(exponents[layer, page, head, row])
    lowest, page_rows = i16(0), exponents.shape[3]
    for c in range(width):
        at = key_index(row, c, width) if side == KEYS else value_index(row, c, page_rows)
        lowest = min(lowest, data[layer, page, head, at])
    return sound and not is_poison_q(lowest)


@kernel
def note_poisoned_kernel(
    keys, key_exponents, values, value_exponents, tables, runs, first, layer, found
):  # fmt: skip
    """found[n] = min(found[n], the first poison of run n, rows `first` on); blockIdx.y: the run.

    runs [n, >= 2] int64: lane, rows seen; found [n] int64: position << 12 | digest layer.
    """
    run, kv_heads, page_rows = cuda.blockIdx.y, key_exponents.shape[2], key_exponents.shape[3]
    lane, rows, width = runs[run, 0], runs[run, 1], keys.shape[3] // page_rows
    for position in range(first + cuda.grid(1), rows, cuda.gridDim.x * THREADS):
        page, row = tables[lane, position // page_rows], position % page_rows
        at = i64(position) << LAYER_BITS | 2 * layer
        for head in range(kv_heads):
            if not row_is_sound(values, value_exponents, layer, page, head, row, 1, width):
                cuda.atomic.min(found, run, at + 1)
            if not row_is_sound(keys, key_exponents, layer, page, head, row, KEYS, width):
                cuda.atomic.min(found, run, at)


def note_poisoned(
    stream, keys, key_exponents, values, value_exponents, tables, runs, count, first, layer, found
):
    """Of the first `count` runs, as the kernel has it."""
    if count:
        note_poisoned_kernel[(BLOCKS, count), THREADS, stream](
            keys, key_exponents, values, value_exponents, tables, runs, first, layer, found
        )


def first_poisoned(stream, *arguments):
    """As core/kernels/poisoned.py has it."""
    *arenas, table, first, last, layer = arguments
    runs, found = on_device(np.array([[0, last]], i64)), on_device(np.full(1, NONE, i64))
    note_poisoned(stream, *arenas, table.reshape(1, -1), runs, 1, first, layer, found)
    result = int(host(found)[0])
    return -1 if result == NONE else result


twin("first_poisoned", first_poisoned)
