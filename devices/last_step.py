"""What a device knows beside its memory: a stream's tokens, and the logits of its last step."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.device import Pair
from ..core.kernels.digest import PARTS, digest_rows
from ..core.ops import Floats
from ..core.state import State
from ..events.ids import StreamId
from .batch import Run
from .ledger import pair_of, token_sums


def sum_tokens(state: State, stream: StreamId, first: int, rows: int) -> Pair:
    """The digest of some of a stream's tokens."""
    ids = np.array(state.streams[stream].tokens[first : first + rows], np.int64)
    sums = token_sums(ids, np.arange(first, first + len(ids)))
    return pair_of(sums.sum(axis=0, dtype=np.uint64))


def sum_logits(row: NDArray[np.float32], position: int) -> Pair:
    """The digest of one row of logits [vocab]."""
    sums = np.zeros((1, 2), np.uint64)
    words, positions = row.view(np.uint64).reshape(1, -1), np.array([position])
    digest_rows(words, PARTS["logits"], 0, 0, positions, 0, sums, 0, 1)
    return pair_of(sums[0])


def row_of(runs: Sequence[Run], stream: StreamId, position: int) -> int | None:
    """Which row of logits is that of a position, if these runs sampled it."""
    at = 0
    for run in runs:
        first = run.first + run.rows - run.sampled
        if run.stream == stream and first <= position < run.first + run.rows:
            return at + position - first
        at += run.sampled
    return None


def logits_of(
    runs: Sequence[Run],
    logits: Floats,
    floats: NDArray[np.float32],
    stream: StreamId,
    position: int,
) -> NDArray[np.float32] | None:
    """A row of logits [vocab] out of the float buffers, if these runs sampled it."""
    at = row_of(runs, stream, position)
    if at is None:
        return None
    start = logits.at + at * logits.width
    row: NDArray[np.float32] = floats[start : start + logits.width]
    return row
