"""Running digests of one GLM rank: of every page by part, and of every seated stream."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...core.device import EveryRow, Pair
from ...core.digests import ZERO, add_pairs
from ...events.ids import StreamId
from ..ledger import Sums, pair_of, token_sums
from .step import GlmBatch

PAGED = ("rows", "keys", "drafts")  # parts on pages; a page's running sum is kept for each
BY_ROW = (*PAGED, "logits", "tokens")


@dataclass(slots=True)
class RowSums:
    """The digests of a step's rows by part, each [rows, 2] uint64; logits [selected, 2]."""

    parts: dict[str, Sums]


@dataclass(slots=True)
class StreamTotals:
    """Cumulative sums over a stream's kept rows by part, and how many rows there are."""

    rows: int = 0
    sums: dict[str, Pair] = field(default_factory=dict)

    def of(self, part: str) -> Pair:
        """A part's sum so far."""
        return self.sums.get(part, ZERO)


class GlmLedger:
    """pages[part] [pages + reserved, 2]: the digest of what stands on each page."""

    def __init__(self, pages: int, page_rows: int, parts: tuple[str, ...]) -> None:
        self.page_rows = page_rows
        self.paged = tuple(part for part in PAGED if part in parts)
        self.by_row = tuple(part for part in BY_ROW if part in parts)
        self.pages = {part: np.zeros((pages, 2), np.uint64) for part in self.paged}
        self.streams: dict[StreamId, StreamTotals] = {}

    def leased(self, pages: tuple[int, ...]) -> None:
        """These pages hold no rows."""
        for sums in self.pages.values():
            sums[list(pages)] = 0

    def begin(self, stream: StreamId) -> None:
        """A stream starts at row 0."""
        self.streams[stream] = StreamTotals()

    def resume(self, stream: StreamId, read: dict[str, Pair], tokens: list[int]) -> None:
        """A stream goes on after these tokens, with parts that sum to what was read."""
        ids, positions = np.array(tokens, np.int64), np.arange(len(tokens))
        total = pair_of(token_sums(ids, positions).sum(axis=0, dtype=np.uint64))
        self.streams[stream] = StreamTotals(len(tokens), {**read, "tokens": total})

    def forget(self, stream: StreamId) -> None:
        """A stream is gone."""
        self.streams.pop(stream, None)

    def add(self, batch: GlmBatch, kept: NDArray[np.int64], found: RowSums) -> None:
        """Count a step's kept rows; what a window refused is counted nowhere."""
        rows = batch.rows
        at = 0
        for run, count in zip(rows.runs, kept.tolist(), strict=True):
            held = self.streams[run.stream]
            assert held.rows == run.first, f"{run} does not follow row {held.rows}"
            end = run.at + count
            pages = rows.pages[run.at : end]
            held.rows += count
            for part in self.paged:
                np.add.at(self.pages[part], pages, found.parts[part][run.at : end])
            logits = found.parts["logits"][at : at + min(run.sampled, count)]
            for part in self.by_row:
                own = logits if part == "logits" else found.parts[part][run.at : end]
                held.sums[part] = add_pairs(held.of(part), *own.tolist())
            at += run.sampled

    def pass_over(self, batch: GlmBatch, kept: NDArray[np.int64]) -> None:
        """Count a step's kept rows without their digests."""
        for run, count in zip(batch.rows.runs, kept.tolist(), strict=True):
            self.streams[run.stream].rows += count

    def every_row(self, batch: GlmBatch, found: RowSums) -> EveryRow:
        """The sums after each row of a step that `add` is yet to count; every row is sampled."""
        every = EveryRow([], [], {part: [] for part in self.by_row}, [])
        for run in batch.rows.runs:
            held, own = self.streams[run.stream], slice(run.at, run.at + run.rows)
            every.streams.append(run.stream)
            every.firsts.append(run.first)
            for part in self.by_row:
                after = np.cumsum(found.parts[part][own], axis=0, dtype=np.uint64)
                every.sums[part].append(after + np.array(held.of(part), np.uint64))
        return every

    def of_pages(self, part: str, pages: NDArray[np.int32]) -> Pair:
        """The digest of all rows on these pages, by their running sums."""
        return add_pairs(*(pair_of(self.pages[part][page]) for page in pages))
