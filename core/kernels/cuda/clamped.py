"""The CUDA twin of clamped.py: a thread a value."""

from numba import cuda

from ..scalars import mul, silu
from .target import device, kernel, threads
from .twins import twin

THREADS = 256


@device
def clamped_unit(gate, up, limit):
    """silu(min(gate, limit)) * up within +-limit; by comparing, so that a NaN stays one."""
    g = limit if gate > limit else gate
    u = limit if up > limit else up
    u = -limit if u < -limit else u
    return mul(silu(g), u)


@kernel
def clamped_values(both, mine, limit, h, column, first):
    """Row first + block's y, columns of block's x."""
    row, i = first + cuda.blockIdx.y, cuda.grid(1)
    if i < mine:
        h[row, column + i] = clamped_unit(both[row, i], both[row, mine + i], limit)


def clamped_rows(stream, both, mine, limit, h, column, first, last):
    """As the CPU's clamped_rows."""
    width = threads(THREADS)
    if last > first and mine:
        grid = (-(-mine // width), last - first)
        clamped_values[grid, width, stream](both, mine, limit, h, column, first)


twin("clamped_rows", clamped_rows)
