"""Running digests of one GLM rank: of every page by part, and of every seated stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...core.device import EveryRow, Pair
from ...core.digests import SumTable, add_pairs
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
    """Cumulative sums over a stream's kept rows by part, and how many rows there are.

    slot: where its sums by row stand.  fixed: of parts that are summed at some steps only.
    """

    slot: int
    rows: int = 0
    fixed: dict[str, Pair] = field(default_factory=dict)


class GlmLedger:
    """pages[part] [pages + reserved, 2]: the digest of what stands on each page.

    held [slots, parts, 2]: each seated stream's sums, of the parts that are summed by row.
    """

    def __init__(self, pages: int, page_rows: int, parts: tuple[str, ...]) -> None:
        self.page_rows = page_rows
        self.paged = tuple(part for part in PAGED if part in parts)
        self.by_row = tuple(part for part in parts if part in BY_ROW)
        self.pages = {part: np.zeros((pages, 2), np.uint64) for part in self.paged}
        self.held = np.zeros((1, len(self.by_row), 2), np.uint64)
        self.streams: dict[StreamId, StreamTotals] = {}

    def leased(self, pages: tuple[int, ...]) -> None:
        """These pages hold no rows."""
        for sums in self.pages.values():
            sums[list(pages)] = 0

    def begin(self, stream: StreamId) -> None:
        """A stream starts at row 0."""
        self.forget(stream)
        taken = {held.slot for held in self.streams.values()}
        slot = next(at for at in range(len(taken) + 1) if at not in taken)
        if slot == len(self.held):
            self.held = np.concatenate([self.held, np.zeros_like(self.held)])
        self.held[slot] = 0
        self.streams[stream] = StreamTotals(slot)

    def resume(self, stream: StreamId, read: dict[str, Pair], tokens: list[int]) -> None:
        """A stream goes on after these tokens, with parts that sum to what was read."""
        self.begin(stream)
        ids, positions = np.array(tokens, np.int64), np.arange(len(tokens))
        held = self.streams[stream]
        held.rows = len(tokens)
        sums = {**read, "tokens": pair_of(token_sums(ids, positions).sum(axis=0, dtype=np.uint64))}
        for part, pair in sums.items():
            if part in self.by_row:
                self.held[held.slot, self.by_row.index(part)] = pair
            else:
                held.fixed[part] = pair

    def forget(self, stream: StreamId) -> None:
        """A stream is gone."""
        self.streams.pop(stream, None)

    def sums(self, stream: StreamId) -> dict[str, Pair]:
        """A stream's sums so far, by part."""
        held = self.streams[stream]
        words = self.held[held.slot].tolist()
        by_row = {part: (a, b) for part, (a, b) in zip(self.by_row, words, strict=True)}
        return {**by_row, **held.fixed}

    def add(self, batch: GlmBatch, kept: NDArray[np.int64], found: RowSums) -> None:
        """Count a step's kept rows; what a window refused is counted nowhere."""
        runs, rows = batch.rows.runs, batch.rows
        slots, firsts, ends, at = list[int](), list[int](), list[int](), 0
        logits: list[tuple[int, int]] = []
        for run, count in zip(runs, kept.tolist(), strict=True):
            held = self.streams[run.stream]
            assert count > 0 and held.rows == run.first, f"{run} does not follow row {held.rows}"
            held.rows += count
            slots.append(held.slot)
            firsts.append(run.at)
            ends.append(run.at + count)
            logits.append((at, at + min(run.sampled, count)))
            at += run.sampled
        added = np.empty((len(runs), len(self.by_row), 2), np.uint64)
        if ends and at == len(runs) == ends[-1]:  # a row of each, on a page that is its own
            for column, part in enumerate(self.by_row):
                added[:, column] = found.parts[part][:at]
            for part in self.paged:
                self.pages[part][rows.pages[:at]] += found.parts[part][:at]
            self.held[slots] += added
            return
        spans = list(zip(firsts, ends, strict=True))
        for column, part in enumerate(self.by_row):
            added[:, column] = _each(found.parts[part], logits if part == "logits" else spans)
        self.held[slots] += added
        mine = np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in spans)])
        for part in self.paged:
            np.add.at(self.pages[part], rows.pages[mine], found.parts[part][mine])

    def table(self, streams: Sequence[StreamId]) -> SumTable:
        """The sums by row of these streams, which have no others now."""
        slots = [self.streams[stream].slot for stream in streams]
        return SumTable(streams, self.by_row, self.held[slots])

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
            for column, part in enumerate(self.by_row):
                after = np.cumsum(found.parts[part][own], axis=0, dtype=np.uint64)
                every.sums[part].append(after + self.held[held.slot, column])
        return every

    def of_pages(self, part: str, pages: NDArray[np.int32]) -> Pair:
        """The digest of all rows on these pages, by their running sums."""
        return add_pairs(*(pair_of(self.pages[part][page]) for page in pages))


def _each(sums: Sums, spans: Sequence[tuple[int, int]]) -> Sums:
    """The sum modulo 2^64 of each span of rows [first, end), [spans, 2]."""
    whole = [sums[first:end].sum(axis=0, dtype=np.uint64) for first, end in spans]
    return np.array(whole, np.uint64).reshape(-1, 2)
