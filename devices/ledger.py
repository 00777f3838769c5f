"""Running digests of one rank: of every page, and of every seated stream by part."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.device import EveryRow, Pair
from ..core.digests import SumTable, add_pairs
from ..core.kernels.counting import HELD, OUT_OF_ORDER, SOUND, TOLD, count_rows
from ..core.kernels.digest import PARTS, digest_rows
from ..events.ids import StreamId
from .batch import Batch

Sums = NDArray[np.uint64]  # [n, 2]


class Left(NamedTuple):
    """What a step left to be counted, and the tables that say of what.

    runs [n, 5] as Batch.table has them; tables [lanes, entries]; flags [>= rows]; poisoned [n];
    row_sums [>= rows, 2]; shares [2, parties, >= sampled, 2]: what each party summed of the logits,
    on two sides in turn; side: the one that counts.
    """

    runs: NDArray[np.int64]
    tables: NDArray[np.int32]
    flags: NDArray[np.uint8]
    poisoned: NDArray[np.int64]
    row_sums: Sums
    shares: Sums
    side: int


def pair_of(sums: Sums) -> Pair:
    """One row [2] of sums."""
    return int(sums[0]), int(sums[1])


def token_sums(tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Sums:
    """The digests [n, 2] of ids at positions."""
    sums = np.zeros((len(tokens), 2), np.uint64)
    words = np.ascontiguousarray(tokens).view(np.uint64).reshape(-1, 1)
    digest_rows(words, PARTS["tokens"], 0, 0, positions, 0, sums, 0, len(tokens))
    return sums


class Ledger:
    """Sums over the rows of each page [pages + reserved, 2], and over each stream's kept rows.

    A seated stream's sums stand at its lane, `streams`: counted [lanes], its rows; held
    [lanes, 3, 2], the digests of rows, logits and tokens.
    """

    def __init__(self, pages: int, page_rows: int, lanes: int) -> None:
        self.page_rows = page_rows
        self.pages: Sums = np.zeros((pages, 2), np.uint64)
        self.counted = np.zeros(lanes, np.int64)
        self.held = np.zeros((lanes, len(HELD), 2), np.uint64)
        self.streams: dict[StreamId, int] = {}

    def leased(self, pages: tuple[int, ...]) -> None:
        """These pages hold no rows."""
        self.pages[list(pages)] = 0

    def begin(self, stream: StreamId, lane: int) -> None:
        """A stream starts at row 0."""
        self.streams[stream] = lane
        self.counted[lane] = 0
        self.held[lane] = 0

    def resume(self, stream: StreamId, lane: int, row_sum: Pair, tokens: list[int]) -> None:
        """A stream goes on after these tokens, whose rows sum to this."""
        self.begin(stream, lane)
        ids, positions = np.array(tokens, np.int64), np.arange(len(tokens))
        self.counted[lane] = len(tokens)
        self.held[lane, HELD.index("rows")] = row_sum
        self.held[lane, HELD.index("tokens")] = token_sums(ids, positions).sum(
            axis=0, dtype=np.uint64
        )

    def forget(self, stream: StreamId) -> None:
        """A stream is gone."""
        self.streams.pop(stream, None)

    def add(self, batch: Batch, left: Left, *, keeps: bool) -> tuple[bool, SumTable]:
        """Count a step's rows, if sums are kept: (whether all are sound, the sums after)."""
        told = np.empty((len(batch.runs), len(TOLD), 2), np.uint64)
        found = count_rows(
            keeps, left.runs, batch.tokens, batch.positions, batch.pages, left.flags,
            left.poisoned, left.row_sums, left.shares, left.side, left.tables, self.page_rows,
            self.pages, self.counted, self.held, told,
        )  # fmt: skip
        assert found != OUT_OF_ORDER, f"{batch.runs} do not follow the rows before"
        sums = SumTable([run.stream for run in batch.runs], TOLD, told)
        assert len(sums) == len(told), f"a stream has two runs in {batch.runs}"
        return found == SOUND, sums

    def every_row(self, batch: Batch, row_sums: Sums, logit_sums: Sums) -> EveryRow:
        """The sums after each row of a step that `add` is yet to count; every row is sampled."""
        added = {
            "rows": row_sums,
            "logits": logit_sums,
            "tokens": token_sums(batch.tokens, batch.positions),
        }
        every = EveryRow([], [], {part: [] for part in HELD}, [])
        for run in batch.runs:
            own = slice(run.at, run.at + run.rows)
            every.streams.append(run.stream)
            every.firsts.append(run.first)
            for at, part in enumerate(HELD):
                every.sums[part].append(_after_each(self.held[run.lane, at], added[part][own]))
        return every

    def rows(self, stream: StreamId) -> int:
        """The rows that a stream's sums are over."""
        return int(self.counted[self.streams[stream]])

    def sums(self, stream: StreamId, table: NDArray[np.int32]) -> dict[str, Pair]:
        """A stream's sums by part; marks: the rows up to the last whole page."""
        lane = self.streams[stream]
        rows, whole = self.held[lane, HELD.index("rows")], int(self.counted[lane])
        open_page = table[whole // self.page_rows] if whole % self.page_rows else None
        marks = rows - self.pages[open_page] if open_page is not None else rows
        sums = {part: pair_of(self.held[lane, at]) for at, part in enumerate(HELD)}
        return {"rows": sums["rows"], "marks": pair_of(marks), **sums}

    def of_pages(self, pages: NDArray[np.int32]) -> Pair:
        """The digest of all rows on these pages, by their running sums."""
        return add_pairs(*(pair_of(self.pages[page]) for page in pages))


def _after_each(before: Sums, added: Sums) -> Sums:
    """The running total after each row, modulo 2^64."""
    sums = np.cumsum(added, axis=0, dtype=np.uint64)
    sums += before
    return sums
