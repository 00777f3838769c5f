"""Looking for poison on a GPU in the paged rows that a step's runs are about to read."""

import numpy as np
from numba import cuda

from ..poison import is_poison_q
from ..poisoned import LAYER_BITS
from .target import SIMULATED, WARP, kernel

i64 = np.int64
BLOCKS = 4 if SIMULATED else 64  # of a run


@kernel
def note_poisoned_of_runs(rows, cache, step, runs, tables, found):
    """Run blockIdx.y; a warp a row of the cache."""
    run, per_page, wide = cuda.blockIdx.y, rows.shape[2], rows.shape[3]
    seen = (runs[run, 2] + runs[run, 3]) // step if runs[run, 3] > 0 else i64(0)
    lane = runs[run, 0]
    for row in range(cuda.blockIdx.x, seen, cuda.gridDim.x):
        page, at, poisoned = tables[lane, row // per_page], row % per_page, False
        for i in range(cuda.threadIdx.x, wide, WARP):
            poisoned = poisoned or is_poison_q(rows[cache, page, at, i])
        if poisoned:
            position = i64(row) * step + step - 1
            cuda.atomic.min(found, run, i64(position << LAYER_BITS | cache))


def note_poisoned_runs(stream, rows, cache, step, runs, tables, found):
    """found[n] = min(found[n], the first poisoned row of a cache that run n sees).

    rows [caches, pages, per_page, width] int16, a row every `step` positions; runs [n, 4] int64
    (lane, first row, first position, rows); tables [lanes, entries] int32; found [n] int64:
    position << 12 | cache.
    """
    if runs.shape[0]:
        note_poisoned_of_runs[(BLOCKS, runs.shape[0]), WARP, stream](
            rows, cache, step, runs, tables, found
        )
