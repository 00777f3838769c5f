"""A step's rows as one ragged batch: which token stands where, and which rows are sampled."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.state import State, Stream
from ..events.facts import AnyFact, PromptStepRun, RoundRun
from ..events.ids import StreamId


class Run(NamedTuple):
    """Consecutive rows of one stream in a batch: batch rows [at, at + rows), positions from first.

    sampled: how many of its last rows get logits.  accepts: the last one's token goes to the reply.
    """

    stream: StreamId
    lane: int
    at: int
    first: int
    rows: int
    sampled: int
    accepts: bool


@dataclass(slots=True)
class Batch:
    """Row tables of a step, in the order of its facts.

    tokens, positions, lanes, pages [rows] int64: each row's id, position, lane and physical page;
    selected [sampled rows] int64: the batch rows that get logits.
    """

    runs: list[Run]
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    lanes: NDArray[np.int64]
    pages: NDArray[np.int64]
    selected: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Rows of all runs."""
        return len(self.tokens)

    def table(self) -> NDArray[np.int64]:
        """Of each run [runs, 5]: lane, rows seen by its last row, at, rows, sampled."""
        table = [
            (run.lane, run.first + run.rows, run.at, run.rows, run.sampled) for run in self.runs
        ]
        return np.array(table, np.int64).reshape(-1, 5)


def runs_of(state: State, facts: Sequence[AnyFact], *, every_row: bool) -> list[Run]:
    """The runs of a step's PromptStepRun and RoundRun facts; `state` has them applied."""
    runs: list[Run] = []
    at = 0

    def run(stream: Stream, first: int, rows: int) -> None:
        nonlocal at
        accepts = first + rows == len(stream.tokens)
        sampled = rows if every_row else int(accepts)
        runs.append(Run(stream.stream, int(stream.lane), at, first, rows, sampled, accepts))
        at += rows

    for fact in facts:
        if isinstance(fact, PromptStepRun):
            run(state.streams[fact.stream], fact.first, fact.rows)
        elif isinstance(fact, RoundRun):
            for lane in fact.lanes:
                stream = state.in_lane(lane)
                run(stream, len(stream.tokens) - 1, 1)
    return runs


def batch_of(state: State, facts: Sequence[AnyFact], *, every_row: bool) -> Batch:
    """The ragged batch of a step."""
    runs = runs_of(state, facts, every_row=every_row)
    tokens: list[int] = []
    positions: list[int] = []
    lanes: list[int] = []
    selected: list[int] = []
    for stream, lane, at, first, count, sampled, _ in runs:
        end = at + count
        tokens += state.streams[stream].tokens[first : first + count]
        positions += range(first, first + count)
        lanes += repeat(lane, count)
        selected += range(end - sampled, end)
    rows = [np.array(column, np.int64) for column in (tokens, positions, lanes, selected)]
    pages = state.tables[rows[2], rows[1] // state.opened.rules.page_rows].astype(np.int64)
    assert not runs or int(pages.max()) < state.opened.pages, "a row has no leased page"
    return Batch(runs, rows[0], rows[1], rows[2], pages, rows[3])
