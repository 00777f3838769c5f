"""Looking for poison on a GPU among the rows that a step's queries read, a warp a page of a head.

The words of a page are read as they lie, side by side; which row a value is of, its place says.
"""

import numpy as np
from numba import cuda

from ..packed import KEYS, VALUES
from ..poison import is_poison_exponent, is_poison_q
from ..poisoned import LAYER_BITS
from .placed import host, on_device
from .target import SIMULATED, WARP, device, kernel, threads
from .twins import twin

i16, i32, i64 = np.int16, np.int32, np.int64
THREADS = threads(128)
BLOCKS = 4 if SIMULATED else 16  # of a run and a layer
BLOCK = 16  # rows or columns that stand together in a page
CHUNK = 4 * WARP  # words that a warp looks at together; parts of a page are multiples of it
NONE = (1 << 63) - 1


@device
def row_of_word(word, side, width, page_rows):
    """The row of a word of two values; of a value page that of its low half, the next is high."""
    if side == KEYS:
        return word // (width // 2 * BLOCK) * BLOCK + word % BLOCK
    return word % (page_rows // 2 * BLOCK) // BLOCK * 2


@device
def least_row(both, word, side, low, high, width, page_rows):
    """The first row in [low, high) of which a word holds poison, else `high`."""
    late, early, found = is_poison_q(i16(both >> i32(16))), is_poison_q(i16(both)), high
    if late or early:  # whose row it is takes divisions, and hardly any word asks for them
        row = row_of_word(word, side, width, page_rows)
        other = row + i64(1) if side == VALUES else row
        if late and other >= low:
            found = min(found, other)
        if early and row >= low:
            found = min(found, row)
    return found


@device
def words_of_rows(side, low, high, width, page_rows):
    """(parts of a page, words of one, first and last word of a part) of the rows [low, high).

    Rows behind them have not been written yet: they are poison, and nobody's finding.
    """
    if side == KEYS:
        block = width // 2 * BLOCK
        parts, first, last = i64(1), low // BLOCK * block, (high + BLOCK - 1) // BLOCK * block
    else:
        parts, first, last = width // BLOCK, low // 2 * BLOCK, (high + 1) // 2 * BLOCK
    return parts, page_rows * width // 2 // parts, first // CHUNK * CHUNK, last


@device
def first_unsound(words, exponents, layer, page, head, side, low, high, width):
    """A lane's share of a page of a head: its first row in [low, high) with poison, else `high`."""
    page_rows, found, me = exponents.shape[3], high, cuda.threadIdx.x % WARP
    for row in range(me, high, WARP):
        if is_poison_exponent(exponents[layer, page, head, row]) and row >= low:
            found = min(found, i64(row))
    parts, each, first, last = words_of_rows(side, low, high, width, page_rows)
    for part in range(parts):
        for start in range(first + me, last, CHUNK):
            word = i64(part * each + start)  # loads that do not wait for one another
            a, b = words[layer, page, head, word], words[layer, page, head, word + WARP]
            c = words[layer, page, head, word + 2 * WARP]
            d = words[layer, page, head, word + 3 * WARP]
            found = min(found, least_row(a, word, side, low, high, width, page_rows))
            found = min(found, least_row(b, word + WARP, side, low, high, width, page_rows))
            found = min(found, least_row(c, word + 2 * WARP, side, low, high, width, page_rows))
            found = min(found, least_row(d, word + 3 * WARP, side, low, high, width, page_rows))
    return found


@kernel
def note_poisoned_kernel(
    keys, key_exponents, values, value_exponents, tables, runs, first, layer, found
):  # fmt: skip
    """found[n] = min(found[n], the first poison of run n, rows `first` on).

    blockIdx.y: the run; blockIdx.z: the layer, from `layer` on.  keys, values: as int32 words.
    runs [n, >= 2] int64: lane, rows seen; found [n] int64: position << 12 | digest layer.
    """
    run, kv_heads, page_rows = cuda.blockIdx.y, key_exponents.shape[2], key_exponents.shape[3]
    lane, rows, of = runs[run, 0], runs[run, 1], layer + cuda.blockIdx.z
    width = 2 * keys.shape[3] // page_rows
    entry0, warps = first // page_rows, cuda.gridDim.x * (THREADS // WARP)
    units = ((rows + page_rows - 1) // page_rows - entry0) * kv_heads if rows > first else i64(0)
    for unit in range(cuda.grid(1) // WARP, units, warps):
        entry, head = entry0 + unit // kv_heads, unit % kv_heads
        start, page = entry * page_rows, tables[lane, entry]
        low, high = max(i64(0), first - start), min(i64(page_rows), rows - start)
        row = first_unsound(keys, key_exponents, of, page, head, KEYS, low, high, width)
        if row < high:
            cuda.atomic.min(found, run, i64((start + row) << LAYER_BITS | 2 * of))
        row = first_unsound(values, value_exponents, of, page, head, VALUES, low, high, width)
        if row < high:
            cuda.atomic.min(found, run, i64((start + row) << LAYER_BITS | 2 * of + 1))


def note_poisoned(
    stream, keys, key_exponents, values, value_exponents, tables, runs, count, first, layers, found
):
    """Of the first `count` runs and the layers [low, high), as the kernel has it."""
    low, high = layers
    if count and low < high:
        note_poisoned_kernel[(BLOCKS, count, high - low), THREADS, stream](
            keys.view(i32), key_exponents, values.view(i32), value_exponents, tables, runs, first,
            low, found,
        )  # fmt: skip


def first_poisoned(stream, *arguments):
    """As core/kernels/poisoned.py has it."""
    *arenas, table, first, last, layer = arguments
    runs, found = on_device(np.array([[0, last]], i64)), on_device(np.full(1, NONE, i64))
    layers = (layer, layer + 1)
    note_poisoned(stream, *arenas, table.reshape(1, -1), runs, 1, first, layers, found)
    result = int(host(found)[0])
    return -1 if result == NONE else result


twin("first_poisoned", first_poisoned)
