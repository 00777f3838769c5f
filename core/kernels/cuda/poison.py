"""Poison laid on a GPU: over pages by id, over whole buffers, over the rows of many buffers."""

import numpy as np
from numba import cuda

from .target import SIMULATED, kernel, threads
from .twins import twin

i64 = np.int64
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


@kernel
def fill_spans_kernel(flat, spans, passed, rows, sampled, drafting, value):
    """The first rows of every span, and what may be passed behind them; blockIdx.y: the span.

    spans [n, 4] int64: first element, elements a row, set of the rows, most rows or 0.
    """
    y = cuda.blockIdx.y
    at, width, of, most = spans[y, 0], spans[y, 1], spans[y, 2], spans[y, 3]
    count = i64(rows if of == 0 else sampled if of == 1 else drafting)
    if most:
        count = min(count, most)
    last = min(at + count * width + passed, i64(flat.shape[0])) if count else at
    for i in range(at + cuda.grid(1), last, cuda.gridDim.x * THREADS):
        flat[i] = value


def fill_spans(stream, flat, spans, passed, rows, sampled, drafting, value, most):
    """As the kernel has it; most: elements of a span, about."""
    if spans.shape[0]:
        blocks = min(BLOCKS, -(-most // THREADS))
        fill_spans_kernel[(blocks, spans.shape[0]), THREADS, stream](
            flat, spans, passed, rows, sampled, drafting, value
        )


twin("fill_pages", fill_pages)
twin("fill_flat", fill_flat)
