"""Poison laid on a GPU: over pages by id, over whole buffers."""

from numba import cuda

from .target import SIMULATED, kernel, threads
from .twins import twin

THREADS = threads(256)
BLOCKS = 4 if SIMULATED else 512


@kernel
def fill_pages_kernel(pages, ids, value, first):
    """pages[ids[first + blockIdx.y]] = value."""
    page = ids[first + cuda.blockIdx.y]
    for i in range(cuda.grid(1), pages.shape[1], cuda.gridDim.x * THREADS):
        pages[page, i] = value


def fill_pages(stream, pages, ids, value, first, last):
    """As core/kernels/poison.py has it."""
    if last > first:
        blocks = min(BLOCKS, -(-pages.shape[1] // THREADS))
        fill_pages_kernel[(blocks, last - first), THREADS, stream](pages, ids, value, first)


@kernel
def fill_flat_kernel(flat, value):
    """flat[:] = value."""
    for i in range(cuda.grid(1), flat.shape[0], cuda.gridDim.x * THREADS):
        flat[i] = value


def fill_flat(stream, flat, value):
    """As core/kernels/poison.py has it."""
    if flat.shape[0]:
        blocks = min(BLOCKS, -(-flat.shape[0] // THREADS))
        fill_flat_kernel[blocks, THREADS, stream](flat, value)


twin("fill_pages", fill_pages)
twin("fill_flat", fill_flat)
