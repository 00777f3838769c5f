"""A step's rows with their windows of drafts, as the tables that the program reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat

import numpy as np
from numpy.typing import NDArray

from ...core.kernels.glm_memory import GlmStep
from ...core.state import State, Stream
from ...events.facts import AnyFact, PromptStepRun, RoundRun
from ...events.records import Sampling
from ..batch import Batch, Run

NO_END = -1
CLEAN = 2**62  # a run without poison
PLAIN = (0x3F800000, 0, 0)  # repetition 1, frequency and presence 0, as patterns

Drafts = NDArray[np.int64]


@dataclass(slots=True)
class GlmBatch:
    """rows: the ragged batch, windows included.  windows: by run, whether it is a round's window.

    following: by run, the known token after its last row, -1 where it is drawn.
    """

    rows: Batch
    windows: list[bool]
    following: list[int]


def drafts_of(stream: Stream, most: int) -> int:
    """How many drafts a stream takes a round: none with penalties, which count its own drafts."""
    s: Sampling = stream.request.sampling
    plain = (s.repetition_bits, s.frequency_bits, s.presence_bits) == PLAIN
    return most if stream.request.draft and plain else 0


def batch_with_drafts(
    state: State,
    facts: Sequence[AnyFact],
    drafts: Drafts,
    counts: NDArray[np.int64],
    *,
    every_row: bool,
) -> GlmBatch:
    """The batch of a step. drafts [lanes, most] and counts [lanes]: what is drafted by lane."""
    runs: list[Run] = []
    windows: list[bool] = []
    following: list[int] = []
    tokens: list[int] = []
    for fact in facts:
        if isinstance(fact, PromptStepRun):
            stream, last = state.streams[fact.stream], fact.first + fact.rows
            accepts = last == len(stream.tokens)
            sampled = fact.rows if every_row else int(accepts)
            _append(runs, stream, fact.first, fact.rows, sampled, accepts)
            tokens += stream.tokens[fact.first : last]
            windows.append(False)
            following.append(-1 if accepts else int(stream.tokens[last]))
        elif isinstance(fact, RoundRun):
            for lane in fact.lanes:
                stream = state.in_lane(lane)
                first = len(stream.tokens) - 1
                count = _window(state, stream, first, int(counts[lane]))
                _append(runs, stream, first, count, count, True)
                tokens += [stream.tokens[-1], *drafts[lane, : count - 1].tolist()]
                windows.append(True)
                following.append(-1)
    return GlmBatch(_batch(state, runs, tokens), windows, following)


def comes_to_an_end(state: State, run: Run, window: bool, new: Sequence[int]) -> bool:
    """Whether a run ends at a mark, or is the last of its prompt or reply. new: tokens kept.

    There its states are summed: they may be kept, or are about to be forgotten.
    """
    if not window:
        return run.accepts or (run.first + run.rows) % state.opened.rules.mark_rows == 0
    stream = state.streams[run.stream]
    request = stream.request
    full = stream.new_tokens + len(new) >= request.max_new
    return full or (not request.ignore_eos and new[-1] in request.eos)


def _window(state: State, stream: Stream, first: int, drafted: int) -> int:
    """Rows of a window: no more than the reply may still get, and than the pages hold."""
    left = stream.request.max_new - stream.new_tokens
    leased = stream.pages * state.opened.rules.page_rows - first
    count = min(1 + min(drafted, drafts_of(stream, drafted)), left, leased)
    assert count > 0, f"stream {stream.stream} has no row to run at {first}"
    return count


def _append(
    runs: list[Run], stream: Stream, first: int, rows: int, sampled: int, accepts: bool
) -> None:
    at = runs[-1].at + runs[-1].rows if runs else 0
    runs.append(Run(stream.stream, int(stream.lane), at, first, rows, sampled, accepts))


def _batch(state: State, runs: list[Run], tokens: list[int]) -> Batch:
    positions: list[int] = []
    lanes: list[int] = []
    selected: list[int] = []
    for _, lane, at, first, count, sampled, _ in runs:
        end = at + count
        positions += range(first, first + count)
        lanes += repeat(lane, count)
        selected += range(end - sampled, end)
    rows = [np.array(column, np.int64) for column in (tokens, positions, lanes, selected)]
    pages = state.tables[rows[2], rows[1] // state.opened.rules.page_rows].astype(np.int64)
    assert not runs or int(pages.max()) < state.opened.pages, "a row has no leased page"
    return Batch(runs, rows[0], rows[1], rows[2], pages, rows[3])


def step_tables(state: State, batch: GlmBatch, drafts: int, spare_page: int, side: int) -> GlmStep:
    """The step's tables. spare_page: where rows past a stream's pages go, to be read by nobody."""
    rows, page_rows = batch.rows, state.opened.rules.page_rows
    runs = rows.runs
    streams = [state.streams[run.stream] for run in runs]
    following = np.empty_like(rows.tokens)
    following[:-1] = rows.tokens[1:]
    following[[run.at + run.rows - 1 for run in runs]] = batch.following
    starts = accumulate((run.sampled for run in runs), initial=0)
    sampled = [(start, run.sampled) for start, run in zip(starts, runs, strict=False)]
    last = [() if one.request.ignore_eos else one.request.eos for one in streams]
    most = max([len(stream.request.eos) for stream in streams] + [1])
    ends = [(*ids, *repeat(NO_END, most - len(ids))) for ids in last]
    wants = [
        drafts_of(stream, drafts) if run.accepts else 0
        for run, stream in zip(runs, streams, strict=True)
    ]
    tables = state.tables.copy()
    np.putmask(tables, tables == state.opened.pages, spare_page)
    return GlmStep(
        tokens=rows.tokens,
        positions=rows.positions,
        lanes=rows.lanes,
        selected=rows.selected,
        tables=tables,
        runs=_columns([(run.lane, run.at, run.first, run.rows) for run in runs], 4),
        next_tokens=following,
        sampled=_columns(sampled, 2),
        windows=np.array(batch.windows, np.int64),
        kept=np.array([run.rows for run in runs], np.int64),
        ends=_columns(ends, most),
        wants=np.array(wants, np.int64),
        limits=np.array([stream.pages * page_rows for stream in streams], np.int64),
        poisoned=np.array([CLEAN] * len(runs), np.int64),
        side=side,
    )


def empty_tables(lanes: int) -> GlmStep:
    """The tables of a step without rows."""
    none, pairs = np.zeros(0, np.int64), np.zeros((0, 2), np.int64)
    return GlmStep(
        tokens=none, positions=none, lanes=none, selected=none,
        tables=np.zeros((lanes, 1), np.int32), runs=np.zeros((0, 4), np.int64), next_tokens=none,
        sampled=pairs, windows=none, kept=none, ends=np.zeros((0, 1), np.int64), wants=none,
        limits=none, poisoned=none, side=0,
    )  # fmt: skip


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(-1, width)
