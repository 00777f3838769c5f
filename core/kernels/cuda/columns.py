"""Columns between ranks on a GPU: packed side by side to be handed over, and put into their place.

Values are moved alone, so that no bit of them can change on the way.
"""

from numba import cuda

from .target import kernel, threads

THREADS = threads(256)
BLOCKS = 32  # of a row, at most


@kernel
def pack_columns_kernel(x, first, columns, widest, packed):
    """Columns of row blockIdx.y, side by side."""
    row = cuda.blockIdx.y
    for c in range(cuda.grid(1), columns, cuda.gridDim.x * THREADS):
        packed[row * widest + c] = x[row, first + c]


def pack_columns(stream, x, first, last, widest, packed):
    """Columns [first, last) of x [rows, width] as packed [>= rows * widest], row after row."""
    rows, columns = x.shape[0], last - first
    if rows and columns:
        blocks = min(BLOCKS, -(-columns // THREADS))
        pack_columns_kernel[(blocks, rows), THREADS, stream](x, first, columns, widest, packed)


@kernel
def spread_columns_kernel(packed, widest, spans, own, x):
    """Columns of rank blockIdx.z into row blockIdx.y, unless they stand there."""
    row, rank = cuda.blockIdx.y, cuda.blockIdx.z
    if rank != own:
        first = spans[rank, 0]
        columns = spans[rank, 1] - first
        at = (rank * x.shape[0] + row) * widest
        for c in range(cuda.grid(1), columns, cuda.gridDim.x * THREADS):
            x[row, first + c] = packed[at + c]


def spread_columns(stream, packed, widest, spans, own, x):
    """Every other rank's columns into x [rows, width].

    packed [>= world * rows * widest]: of each rank [rows, widest], which its columns begin;
    spans [world, 2] int64: each rank's first and last column.
    """
    world, rows = spans.shape[0], x.shape[0]
    blocks = min(BLOCKS, -(-widest // THREADS))
    spread_columns_kernel[(blocks, rows, world), THREADS, stream](packed, widest, spans, own, x)


@kernel
def compare_headers_kernel(headers, parted):
    """parted[0] = the first rank whose header is not rank 0's, 0 where there is none."""
    found = 0
    for rank in range(headers.shape[0] - 1, 0, -1):
        if headers[rank] != headers[0]:
            found = rank
    parted[0] = found


def compare_headers(stream, headers, parted):
    """headers [world] int64, one a rank; parted [1] int64."""
    compare_headers_kernel[1, 1, stream](headers, parted)
