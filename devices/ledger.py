"""Running digests of one rank: of every page, and of every seated stream by part."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.device import EveryRow, Pair
from ..core.digests import ZERO, add_pairs, sub_pairs
from ..core.kernels.digest import PARTS, digest_rows
from ..events.ids import StreamId
from .batch import Batch

Sums = NDArray[np.uint64]  # [n, 2]


def pair_of(sums: Sums) -> Pair:
    """One row [2] of sums."""
    return int(sums[0]), int(sums[1])


def token_sums(tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Sums:
    """The digests [n, 2] of ids at positions."""
    sums = np.zeros((len(tokens), 2), np.uint64)
    words = np.ascontiguousarray(tokens).view(np.uint64).reshape(-1, 1)
    digest_rows(words, PARTS["tokens"], 0, 0, positions, 0, sums, 0, len(tokens))
    return sums


@dataclass(slots=True)
class StreamSums:
    """Cumulative sums over a stream's kept rows, and how many there are."""

    rows: int = 0
    row_sum: Pair = ZERO
    logit_sum: Pair = ZERO
    token_sum: Pair = ZERO


class Ledger:
    """pages [pages + reserved, 2]: the digest of the rows on each page; streams: by stream id."""

    def __init__(self, pages: int, page_rows: int) -> None:
        self.page_rows = page_rows
        self.pages: Sums = np.zeros((pages, 2), np.uint64)
        self.streams: dict[StreamId, StreamSums] = {}

    def leased(self, pages: tuple[int, ...]) -> None:
        """These pages hold no rows."""
        self.pages[list(pages)] = 0

    def begin(self, stream: StreamId) -> None:
        """A stream starts at row 0."""
        self.streams[stream] = StreamSums()

    def resume(self, stream: StreamId, row_sum: Pair, tokens: list[int]) -> None:
        """A stream goes on after these tokens, whose rows sum to this."""
        ids, positions = np.array(tokens, np.int64), np.arange(len(tokens))
        total = pair_of(token_sums(ids, positions).sum(axis=0, dtype=np.uint64))
        self.streams[stream] = StreamSums(len(tokens), row_sum, ZERO, total)

    def forget(self, stream: StreamId) -> None:
        """A stream is gone."""
        self.streams.pop(stream, None)

    def add(self, batch: Batch, row_sums: Sums, logit_sums: Sums) -> None:
        """Count a step's rows; row_sums [rows, 2], logit_sums [selected, 2]: each row's digest."""
        np.add.at(self.pages, batch.pages, row_sums)
        rows, logits = row_sums.tolist(), logit_sums.tolist()
        tokens = token_sums(batch.tokens, batch.positions).tolist()
        at = 0
        for run in batch.runs:
            held = self.streams[run.stream]
            assert held.rows == run.first, f"{run} does not follow row {held.rows}"
            end = run.at + run.rows
            held.rows += run.rows
            held.row_sum = add_pairs(held.row_sum, *rows[run.at : end])
            held.token_sum = add_pairs(held.token_sum, *tokens[run.at : end])
            held.logit_sum = add_pairs(held.logit_sum, *logits[at : at + run.sampled])
            at += run.sampled

    def every_row(self, batch: Batch, row_sums: Sums, logit_sums: Sums) -> EveryRow:
        """The sums after each row of a step that `add` is yet to count; every row is sampled."""
        tokens = token_sums(batch.tokens, batch.positions)
        every = EveryRow([], [], {"rows": [], "logits": [], "tokens": []}, [])
        for run in batch.runs:
            held, own = self.streams[run.stream], slice(run.at, run.at + run.rows)
            every.streams.append(run.stream)
            every.firsts.append(run.first)
            every.sums["rows"].append(_after_each(held.row_sum, row_sums[own]))
            every.sums["logits"].append(_after_each(held.logit_sum, logit_sums[own]))
            every.sums["tokens"].append(_after_each(held.token_sum, tokens[own]))
        return every

    def sums(self, stream: StreamId, table: NDArray[np.int32]) -> dict[str, Pair]:
        """A stream's sums by part; marks: the rows up to the last whole page."""
        held = self.streams[stream]
        marks = held.row_sum
        if held.rows % self.page_rows:
            last = int(table[held.rows // self.page_rows])
            marks = sub_pairs(marks, pair_of(self.pages[last]))
        return {
            "rows": held.row_sum,
            "marks": marks,
            "logits": held.logit_sum,
            "tokens": held.token_sum,
        }

    def of_pages(self, pages: NDArray[np.int32]) -> Pair:
        """The digest of all rows on these pages, by their running sums."""
        return add_pairs(*(pair_of(self.pages[page]) for page in pages))


def _after_each(before: Pair, added: Sums) -> Sums:
    """The running total after each row, modulo 2^64."""
    sums = np.cumsum(added, axis=0, dtype=np.uint64)
    sums += np.array(before, np.uint64)
    return sums
