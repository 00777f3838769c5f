"""A step's rows as one ragged batch: which token stands where, and which rows are sampled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.paging.ragged import spread
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
    selected [sampled rows] int64: the batch rows that get logits; table [runs, 5] int64: each run's
    lane, rows seen by its last row, at, rows, sampled.
    """

    runs: list[Run]
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    lanes: NDArray[np.int64]
    pages: NDArray[np.int64]
    selected: NDArray[np.int64]
    table: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Rows of all runs."""
        return len(self.tokens)


def no_batch() -> Batch:
    """A step without rows."""
    none = np.zeros(0, np.int64)
    return Batch([], none, none, none, none, none, np.zeros((0, 5), np.int64))


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
    for run in runs:
        tokens += state.streams[run.stream].tokens[run.first : run.first + run.rows]
    return laid_out(state, runs, tokens)


def laid_out(state: State, runs: list[Run], tokens: list[int]) -> Batch:
    """The batch of these runs, whose rows have these tokens."""
    table = np.array(
        [(lane, first + rows, at, rows, sampled) for _, lane, at, first, rows, sampled, _ in runs],
        np.int64,
    ).reshape(-1, 5)
    columns = np.empty((3, len(tokens)), np.int64)
    selected = np.empty(sum(run.sampled for run in runs), np.int64)
    page = spread(table, state.tables, state.opened.rules.page_rows, columns, selected)
    assert page < state.opened.pages, "a row has no leased page"
    positions, lanes, pages = columns
    return Batch(runs, np.array(tokens, np.int64), positions, lanes, pages, selected, table)
