"""The CUDA twin of glu.py: a thread a value."""

from numba import cuda

from ..scalars import mul, silu
from .target import kernel, threads
from .twins import twin

THREADS = 256


@kernel
def glu_values(both, inner, out, column, first):
    """Row first + block's y, columns of block's x."""
    row, i = first + cuda.blockIdx.y, cuda.grid(1)
    if i < inner:
        out[row, column + i] = mul(silu(both[row, i]), both[row, inner + i])


def glu_rows(stream, both, inner, out, column, first, last):
    """As the CPU's glu_rows."""
    width = threads(THREADS)
    if last > first and inner:
        grid = (-(-inner // width), last - first)
        glu_values[grid, width, stream](both, inner, out, column, first)


twin("glu_rows", glu_rows)
