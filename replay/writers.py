"""Who wrote each row last: the tape's computing facts, folded onto the pages that they wrote."""

from collections.abc import Iterable

import numpy as np

from ..core.apply import apply
from ..core.state import Stream, open_state
from ..core.steps import window_rows
from ..devices.kernel_cache import keep_book
from ..events import facts as f
from ..events.facts import AnyFact, RunOpened
from ..events.ids import StreamId
from ..events.reader import Step
from .rerun import numbered

UNWRITTEN = -1


class Writers:
    """seqs [pages, page_rows] int64: the fact that wrote a row last, -1 for none."""

    def __init__(self, opened: RunOpened) -> None:
        keep_book()
        self.state = open_state(opened, leader=False)
        self.seqs = np.full((opened.pages, opened.rules.page_rows), UNWRITTEN, np.int64)

    def fold(self, steps: Iterable[Step]) -> "Writers":
        """Follow these steps."""
        for step in steps:
            for seq, fact in numbered(step):
                self._write(seq, fact)
                apply(self.state, fact)
        return self

    def page_of(self, stream: StreamId, position: int) -> int:
        """The page on which a stream has a row, -1 if it has none there."""
        held = self.state.streams.get(stream)
        at = position // self.state.opened.rules.page_rows
        return int(self.state.table(held)[at]) if held is not None and at < held.pages else -1

    def of(self, stream: StreamId, position: int) -> int:
        """The `seq` of the fact that wrote a stream's row last."""
        page = self.page_of(stream, position)
        if page < 0:
            return UNWRITTEN
        return int(self.seqs[page, position % self.state.opened.rules.page_rows])

    def _write(self, seq: int, fact: AnyFact) -> None:
        match fact:
            case f.PromptStepRun():
                self._rows(seq, self.state.streams[fact.stream], fact.first, fact.rows)
            case f.RoundRun():
                for lane in fact.lanes:
                    stream = self.state.in_lane(lane)
                    self._rows(seq, stream, stream.rows, window_rows(self.state, stream))
            case f.PagesLeased():
                self.seqs[list(fact.pages)] = UNWRITTEN
            case _:
                pass  # nothing else writes rows

    def _rows(self, seq: int, stream: Stream, first: int, rows: int) -> None:
        size = self.state.opened.rules.page_rows
        table = self.state.table(stream)
        for position in range(first, min(first + rows, len(table) * size)):
            self.seqs[table[position // size], position % size] = seq
