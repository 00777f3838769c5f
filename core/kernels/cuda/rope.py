"""The CUDA twin of rope.py: a thread a pair of columns."""

from numba import cuda

from ..scalars import add, mul, sub
from .target import kernel, threads
from .twins import twin

THREADS = 128


@kernel
def rope_pairs(x, heads, positions, cos, sin, first):
    """Row first + block's y."""
    row, i, half = first + cuda.blockIdx.y, cuda.grid(1), cos.shape[1]
    if i < heads * half:
        head, c = i // half, i % half
        position, low = positions[row], head * 2 * half + c
        a, b = x[row, low], x[row, low + half]
        k, s = cos[position, c], sin[position, c]
        x[row, low] = sub(mul(a, k), mul(b, s))
        x[row, low + half] = add(mul(b, k), mul(a, s))


def rope_rows(stream, x, heads, positions, cos, sin, first, last):
    """As the CPU's rope_rows."""
    width, pairs = threads(THREADS), heads * cos.shape[1]
    if last > first and pairs:
        grid = (-(-pairs // width), last - first)
        rope_pairs[grid, width, stream](x, heads, positions, cos, sin, first)


twin("rope_rows", rope_rows)
