"""Copies on a GPU: of whole pages by id, of columns between rows."""

from numba import cuda

from .target import kernel, threads
from .twins import twin

THREADS = threads(256)
BLOCKS = 16  # of a page, at most


@kernel
def copy_pages_kernel(source, source_ids, target, target_ids, first):
    """target[target_ids[i]] = source[source_ids[i]], i = first + blockIdx.y."""
    at = first + cuda.blockIdx.y
    read, written = source_ids[at], target_ids[at]
    for i in range(cuda.grid(1), source.shape[1], cuda.gridDim.x * THREADS):
        target[written, i] = source[read, i]


def copy_pages(stream, source, source_ids, target, target_ids, first, last):
    """As core/kernels/copy.py has it."""
    if last > first:
        blocks = min(BLOCKS, -(-source.shape[1] // THREADS))
        copy_pages_kernel[(blocks, last - first), THREADS, stream](
            source, source_ids, target, target_ids, first
        )


@kernel
def copy_columns_kernel(source, source_column, target, target_column, columns):
    """Columns of row blockIdx.x, from one place to another."""
    row = cuda.blockIdx.x
    for c in range(cuda.threadIdx.x, columns, THREADS):
        target[row, target_column + c] = source[row, source_column + c]


def copy_columns(stream, source, source_column, target, target_column, columns, rows):
    """target[r, target_column + c] = source[r, source_column + c], for rows and columns below."""
    if rows and columns:
        copy_columns_kernel[rows, THREADS, stream](
            source, source_column, target, target_column, columns
        )


twin("copy_pages", copy_pages)
