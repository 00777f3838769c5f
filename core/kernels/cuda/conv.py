"""The CUDA twin of conv.py: a thread a channel of some rows."""

from numba import cuda

from ..scalars import ZERO, fma, silu
from .target import device, kernel, threads
from .twins import twin

THREADS = 128
SERIAL = 8  # rows of a run, on average, up to which one thread makes them all


@device
def convolved(raw, column, taps, ring, lane, row0, position0, row, c):
    """The convolution of a row of a run: what came before it is in raw, or in the ring."""
    many, ring_rows = taps.shape[1], ring.shape[1]
    total = ZERO
    for j in range(many):
        back = row + j - (many - 1)
        if position0 + back >= 0:  # a zero leaves the +0 as it is
            if back >= 0:
                value = raw[row0 + back, column]
            else:
                value = ring[lane, (position0 + back) % ring_rows, c]
            total = fma(value, taps[c, j], total)
    return silu(total)


@device
def keep_raw(raw, column, ring, lane, row0, position0, rows, c):
    """The last rows of a run stand in the ring."""
    ring_rows = ring.shape[1]
    for row in range(max(0, rows - ring_rows), rows):
        ring[lane, (position0 + row) % ring_rows, c] = raw[row0 + row, column]


@kernel
def conv_values(raw, column0, taps, ring, runs, y, c0, c1, keeps):
    """Run blockIdx.y, its rows from blockIdx.z on in steps; keeps: the ring takes them after."""
    c = c0 + cuda.grid(1)
    if c < c1:
        run, column = cuda.blockIdx.y, column0 + c
        lane, row0, position0, rows = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 3]
        for row in range(cuda.blockIdx.z, rows, cuda.gridDim.z):
            one = convolved(raw, column, taps, ring, lane, row0, position0, row, c)
            y[row0 + row, c] = one
        if keeps:
            keep_raw(raw, column, ring, lane, row0, position0, rows, c)


@kernel
def conv_keep(raw, column0, ring, runs, c0, c1):
    """The ring takes the last rows of run blockIdx.y."""
    c = c0 + cuda.grid(1)
    if c < c1:
        run = cuda.blockIdx.y
        lane, row0, position0, rows = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 3]
        keep_raw(raw, column0 + c, ring, lane, row0, position0, rows, c)


def conv_rows(stream, raw, column0, taps, ring, runs, y, c0, c1):
    """As the CPU's conv_rows; a step of long runs takes a second launch for the ring."""
    width, many = threads(THREADS), runs.shape[0]
    if not many or c1 <= c0:
        return
    channels = -(-(c1 - c0) // width)
    each = -(-raw.shape[0] // many)
    if each <= SERIAL:
        grid = (channels, many, 1)
        conv_values[grid, width, stream](raw, column0, taps, ring, runs, y, c0, c1, True)
        return
    grid = (channels, many, min(each, 1024))
    conv_values[grid, width, stream](raw, column0, taps, ring, runs, y, c0, c1, False)
    conv_keep[(channels, many), width, stream](raw, column0, ring, runs, c0, c1)


twin("conv_rows", conv_rows)
