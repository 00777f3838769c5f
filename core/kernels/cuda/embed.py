"""Rows picked by number on a GPU: of an embedding table, or those of a step that get logits."""

from numba import cuda

from .target import kernel, threads

THREADS = threads(128)


@kernel
def gather_rows_kernel(table, ids, out):
    """out[blockIdx.x] = table[ids[blockIdx.x]]."""
    row = cuda.blockIdx.x
    source = ids[row]
    for c in range(cuda.threadIdx.x, out.shape[1], THREADS):
        out[row, c] = table[source, c]


def gather_rows(stream, table, ids, out, rows):
    """out[r] = table[ids[r]] for r below rows. table, out [., width]; ids [rows] int64."""
    if rows:
        gather_rows_kernel[rows, THREADS, stream](table, ids, out)
