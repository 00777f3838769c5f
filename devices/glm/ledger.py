"""Running digests of one GLM rank: of every page by part, and of every seated stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.device import EveryRow, Pair
from ...core.digests import SumTable, add_pairs
from ...events.ids import StreamId
from ..batch import Run
from ..ledger import Sums, pair_of, token_sums
from .step import GlmBatch

PAGED = ("rows", "keys", "drafts")  # parts on pages; a page's running sum is kept for each


class RowSums(NamedTuple):
    """The digests of a step's rows, uint64: paged [parts on pages, rows, 2], in the order of PAGED;
    logits [selected, 2]; tokens [rows, 2].
    """

    paged: Sums
    logits: Sums
    tokens: Sums


@dataclass(slots=True)
class Counted:
    """A step whose rows are counted and whose sums are not added yet; after: those of its runs."""

    batch: GlmBatch
    kept: NDArray[np.int64]
    found: RowSums
    slots: list[int]
    after: Sums | None = None


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

    held [slots, parts, 2]: each seated stream's sums, of the parts that are summed by row: those on
    pages, logits, tokens.
    """

    def __init__(self, pages: int, page_rows: int, parts: tuple[str, ...]) -> None:
        self.page_rows = page_rows
        self.paged = tuple(part for part in PAGED if part in parts)
        self.by_row = (*self.paged, "logits", "tokens")
        assert self.by_row == tuple(part for part in parts if part in self.by_row), parts
        self._on_pages = np.zeros((len(self.paged), pages, 2), np.uint64)
        self._pages = dict(zip(self.paged, self._on_pages, strict=True))
        self._late: Counted | None = None
        self.held = np.zeros((1, len(self.by_row), 2), np.uint64)
        self.streams: dict[StreamId, StreamTotals] = {}

    @property
    def pages(self) -> dict[str, Sums]:
        """The digest of what stands on each page, by part [pages + reserved, 2]."""
        self.settle()
        return self._pages

    def leased(self, pages: tuple[int, ...]) -> None:
        """These pages hold no rows."""
        self.settle()
        self._on_pages[:, list(pages)] = 0

    def begin(self, stream: StreamId) -> None:
        """A stream starts at row 0."""
        self.settle()
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
        self.settle()
        held = self.streams[stream]
        words = self.held[held.slot].tolist()
        by_row = {part: (a, b) for part, (a, b) in zip(self.by_row, words, strict=True)}
        return {**by_row, **held.fixed}

    def add(self, batch: GlmBatch, kept: NDArray[np.int64], found: RowSums) -> SumTable:
        """Count a step's kept rows; what a window refused is counted nowhere.

        Their sums are added by `settle`, or whenever any are asked for: what is given must stay as
        it is. Returns the sums by row after the step; others of its streams are not true any more.
        """
        self.settle()
        runs = batch.rows.runs
        slots = [self._counted(run, count) for run, count in zip(runs, kept.tolist(), strict=True)]
        late = self._late = Counted(batch, kept, found, slots)
        return SumTable([run.stream for run in runs], self.by_row, partial(self._after, late))

    def settle(self) -> None:
        """Add the sums of the step that was counted last."""
        late, self._late = self._late, None
        if late is None:
            return
        batch, kept, found, slots = late.batch, late.kept, late.found, late.slots
        rows, paged = batch.rows, len(self.paged)
        added = np.empty((len(slots), len(self.by_row), 2), np.uint64)
        if len(slots) == rows.rows == len(rows.selected):  # a row of each, on a page of its own
            added[:, :paged] = found.paged[:paged].transpose(1, 0, 2)
            added[:, paged], added[:, paged + 1] = found.logits, found.tokens
            self._on_pages[:, rows.pages] += found.paged[:paged]
        else:
            self._add_spans(batch, kept, found, added)
        self.held[slots] += added
        late.after = self.held[slots]

    def _after(self, late: Counted) -> Sums:
        """The sums [runs, parts, 2] after a step."""
        if late.after is None:
            self.settle()
        assert late.after is not None, "a step's sums are added before the next one's"
        return late.after

    def _counted(self, run: Run, count: int) -> int:
        """The slot of a run's stream, which has so many rows more."""
        held = self.streams[run.stream]
        assert count > 0 and held.rows == run.first, f"{run} does not follow row {held.rows}"
        held.rows += count
        held.fixed.clear()
        return held.slot

    def _add_spans(
        self, batch: GlmBatch, kept: NDArray[np.int64], found: RowSums, added: Sums
    ) -> None:
        """The sums of each run's kept rows into added [runs, parts, 2], and those of pages."""
        spans: list[tuple[int, int]] = []
        logits: list[tuple[int, int]] = []
        at, paged = 0, len(self.paged)
        for run, count in zip(batch.rows.runs, kept.tolist(), strict=True):
            spans.append((run.at, run.at + count))
            logits.append((at, at + min(run.sampled, count)))
            at += run.sampled
        for column, sums in enumerate((*found.paged[:paged], found.logits, found.tokens)):
            added[:, column] = _each(sums, logits if column == paged else spans)
        mine = np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in spans)])
        for on_pages, sums in zip(self._on_pages, found.paged[:paged], strict=True):
            np.add.at(on_pages, batch.rows.pages[mine], sums[mine])

    def pass_over(self, batch: GlmBatch, kept: NDArray[np.int64]) -> None:
        """Count a step's kept rows without their digests."""
        for run, count in zip(batch.rows.runs, kept.tolist(), strict=True):
            self.streams[run.stream].rows += count

    def every_row(self, batch: GlmBatch, found: RowSums) -> EveryRow:
        """The sums after each row of a step that `add` is yet to count; every row is sampled."""
        self.settle()
        every = EveryRow([], [], {part: [] for part in self.by_row}, [])
        added = dict(zip(self.by_row, (*found.paged[: len(self.paged)], *found[1:]), strict=True))
        for run in batch.rows.runs:
            held, own = self.streams[run.stream], slice(run.at, run.at + run.rows)
            every.streams.append(run.stream)
            every.firsts.append(run.first)
            for column, part in enumerate(self.by_row):
                after = np.cumsum(added[part][own], axis=0, dtype=np.uint64)
                every.sums[part].append(after + self.held[held.slot, column])
        return every

    def of_pages(self, part: str, pages: NDArray[np.int32]) -> Pair:
        """The digest of all rows on these pages, by their running sums."""
        return add_pairs(*(pair_of(self.pages[part][page]) for page in pages))


def _each(sums: Sums, spans: Sequence[tuple[int, int]]) -> Sums:
    """The sum modulo 2^64 of each span of rows [first, end), [spans, 2]."""
    whole = [sums[first:end].sum(axis=0, dtype=np.uint64) for first, end in spans]
    return np.array(whole, np.uint64).reshape(-1, 2)
