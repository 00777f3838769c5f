"""The CUDA twin of conv.py: a thread a channel of neighbouring rows, its window in registers."""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..scalars import ZERO, fma, silu
from .target import device, kernel, threads
from .twins import twin

i64 = np.int64
THREADS = 128
STRETCH = 16  # rows of a run that one thread makes
AT_ONCE = 4  # of them, whose loads stand together where runs are long
SERIAL = 4  # rows of a run, on average, up to which the same launch keeps them


@device
def keep_raw(raw, column, ring, lane, row0, position0, rows, c):
    """The last rows of a run stand in the ring."""
    ring_rows = i64(ring.shape[1])
    row = max(i64(0), rows - ring_rows)
    slot = (position0 + row) % ring_rows
    while row < rows:
        ring[lane, slot, c] = raw[row0 + row, column]
        row += 1
        slot = slot + 1 if slot + 1 < ring_rows else i64(0)


@device
def stretch_of(runs, item):
    """(run, its first row) of a step's item-th stretch; behind the last there is, no run."""
    run = i64(0)
    while run < runs.shape[0]:
        stretches = (runs[run, 3] + STRETCH - 1) // STRETCH
        if item < stretches:
            break
        item, run = item - stretches, run + 1
    return run, item * STRETCH


@cache
def conv_kernel(many, whole):
    """The kernel for so many taps; whole: of whole runs, and the ring takes their last rows."""
    before, at_once = many - 1, 1 if whole else AT_ONCE

    def conv_values(raw, column0, taps, ring, runs, y, c0, c1):
        """Run blockIdx.y, or that stretch of all runs'.

        A position below 0 counts as +0, which leaves a sum as it is.
        """
        c = c0 + i64(cuda.grid(1))
        run, start = i64(cuda.blockIdx.y), i64(0)
        if not whole:
            run, start = stretch_of(runs, run)
        if c >= c1 or run >= runs.shape[0]:
            return
        column, ring_rows = column0 + c, i64(ring.shape[1])
        lane, row0, position0, rows = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 3]
        weights, window = (
            cuda.local.array(many, types.float32),
            cuda.local.array(many, types.float32),
        )
        here = position0 % ring_rows
        for j in range(before):
            weights[j], back = taps[c, j], start + j - before
            slot = here + back if here + back >= 0 else here + back + ring_rows
            window[j] = ZERO
            if back >= 0:
                window[j] = raw[row0 + back, column]
            elif position0 + back >= 0:
                window[j] = ring[lane, slot, c]
        weights[before] = taps[c, before]
        row, end = start, rows if whole else min(start + STRETCH, rows)
        while row < end:
            ahead = cuda.local.array(at_once, types.float32)
            for i in range(at_once):
                ahead[i] = raw[row0 + min(row + i, end - 1), column]
            for i in range(at_once):
                window[before] = ahead[i]
                total = ZERO
                for j in range(many):
                    total = fma(window[j], weights[j], total)
                if row + i < end:
                    y[row0 + row + i, c] = silu(total)
                for j in range(before):
                    window[j] = window[j + 1]
            row += at_once
        if whole:
            keep_raw(raw, column, ring, lane, row0, position0, rows, c)

    conv_values.__name__ += f"_{many}_{'run' if whole else 'stretch'}"
    return kernel(conv_values)


@kernel
def conv_keep(raw, column0, ring, runs, c0, c1):
    """The ring takes the last rows of run blockIdx.y."""
    c = c0 + i64(cuda.grid(1))
    if c < c1:
        run = cuda.blockIdx.y
        lane, row0, position0, rows = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 3]
        keep_raw(raw, column0 + c, ring, lane, row0, position0, rows, c)


def conv_rows(stream, raw, column0, taps, ring, runs, y, c0, c1):
    """As the CPU's conv_rows; a step of long runs takes a second launch for the ring."""
    width, many = threads(THREADS), runs.shape[0]
    if not many or c1 <= c0:
        return
    channels, rows = -(-(c1 - c0) // width), raw.shape[0]
    given = (raw, column0, taps, ring, runs, y, c0, c1)
    if rows <= SERIAL * many:
        conv_kernel(taps.shape[1], True)[(channels, many), width, stream](*given)
        return
    stretches = rows // STRETCH + many  # of runs of so many rows in all, at the most
    conv_kernel(taps.shape[1], False)[(channels, stretches), width, stream](*given)
    conv_keep[(channels, many), width, stream](raw, column0, ring, runs, c0, c1)


twin("conv_rows", conv_rows)
