"""The next step: prompt rows up to the budget, and a round of every lane with a pending token."""

from collections.abc import Iterator

from ..events import facts as f
from ..events.facts import AnyFact
from ..events.records import known
from .state import Phase, State, Stream


def next_step(state: State) -> Iterator[AnyFact]:
    """Lease what the step's rows need and say which rows run; prompts oldest first."""
    rules, prompting, pending = state.opened.rules, [], []
    for stream_id in state.lanes:
        if stream_id is None:
            continue
        stream = state.streams[stream_id]
        if stream.phase is Phase.PROMPTING:
            prompting.append(stream)
        elif stream.phase is Phase.DECODING and stream.rows == len(stream.tokens) - 1:
            pending.append(stream)
    budget = state.opened.prompt_rows
    for stream in sorted(prompting, key=lambda stream: stream.stream):
        if budget > 0:
            rows = min(budget, _rows_to_next_cut(state, stream))
            budget -= rows
            yield from lease(state, stream, stream.rows + rows)
            yield f.PromptStepRun(stream=stream.stream, first=stream.rows, rows=rows)
    for stream in pending:
        rows = stream.rows + window_rows(state, stream)
        if rows > stream.pages * rules.page_rows:
            yield from lease(state, stream, rows)
    if pending:
        lanes = tuple([stream.lane for stream in pending])
        yield known(f.RoundRun, kind="round_run", lanes=lanes)


def window_rows(state: State, stream: Stream) -> int:
    """Rows of a round's window: the pending token and the drafts after it."""
    return 1 + (state.opened.rules.drafts if stream.request.draft else 0)


def _rows_to_next_cut(state: State, stream: Stream) -> int:
    """Rows up to the next mark, where a copy is to be taken, or to the last known token."""
    end = len(stream.tokens)
    if state.opened.rules.snapshots:
        end = min([mark for mark in stream.marks if mark > stream.rows] + [end])
    return end - stream.rows


def lease(state: State, stream: Stream, rows: int) -> Iterator[AnyFact]:
    """Grow a stream's table to hold so many rows, against its promise."""
    missing = -(-rows // state.opened.rules.page_rows) - stream.pages
    if missing > 0:
        yield f.PagesLeased(
            stream=stream.stream, first=stream.pages, pages=state.book.next(missing)
        )
