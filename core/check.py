"""The invariants: what is true of every state, asserted whole after any event."""

import numpy as np

from ..events.ids import NO_STATE
from .keep import store_of
from .plan_pages import in_windows
from .state import NO_LANE, Phase, State, Stream


def check(state: State) -> None:
    """Assert I1 to I10 of the book, as far as a state alone can show them.

    I1 holders, I2 promises, I3 nothing shared is written, I5 tables, I6 marks, I7 resumes,
    I9 windows. I4 (a page is leased again only after the drop that freed it) holds if I1 holds
    after every event.
    I8 and I10 speak of tokens and I11 of memory: replays and devices show those.
    """
    _check_holders(state)
    _check_promises(state)
    _check_seats(state)
    for stream in state.streams.values():
        _check_stream(state, stream)
    _check_kept(state)
    store_of(state).check(state)


def _check_holders(state: State) -> None:
    """I1: holders are exactly the leases and the kept states; free means none; nothing is lost."""
    book = state.book
    leases, kept = np.zeros(book.total, np.int32), np.zeros(book.total, np.int32)
    for stream in state.streams.values():
        for page in state.table(stream) if stream.lane != NO_LANE else ():
            leases[page] += 1
    for held in state.kept.values():
        for page in held.pages:
            kept[page] += 1
    assert np.array_equal(leases, book.leases), "I1: leases are not what the tables hold"
    assert np.array_equal(kept, book.kept), "I1: holds are not what the kept states hold"
    idle = np.count_nonzero((leases == 0) & (kept > 0))
    assert idle == book.idle, f"I1: kept states alone hold {idle} pages, the book says {book.idle}"
    free = [page for page in range(book.total) if leases[page] == 0 and kept[page] == 0]
    assert free == book.free_pages(), f"I1: free {book.free_pages()}, unheld {free}"


def _check_promises(state: State) -> None:
    """I2: what is promised is free, and is what the streams were promised."""
    promised = sum(stream.promise for stream in state.streams.values())
    assert promised == state.book.promised, f"I2: {promised} promised, the book says other"
    assert 0 <= state.book.promised <= state.book.free, "I2: more promised than free"


def _check_seats(state: State) -> None:
    """Every stream is in one lane or in the queue, and requests name them."""
    seated = [stream for stream in state.lanes if stream is not None]
    assert len(set(seated)) == len(seated), "a stream sits in two lanes"
    assert sorted(seated + state.queue) == sorted(state.streams), "a stream is nowhere, or twice"
    assert sorted(state.requests.values()) == sorted(state.streams), "requests and streams differ"
    resumes = {one.stream: one.state for one in state.streams.values() if _resumes(one)}
    assert resumes == state.resuming, f"{resumes} are resumed, the state says {state.resuming}"
    for lane, stream_id in enumerate(state.lanes):
        pages = 0 if stream_id is None else state.streams[stream_id].pages
        tail = state.tables[lane, pages:]
        assert (tail == state.opened.pages).all(), f"I5: lane {lane} has a page past its table"


def _resumes(stream: Stream) -> bool:
    return stream.phase is Phase.RESUMING


def _check_stream(state: State, stream: Stream) -> None:
    rules = state.opened.rules
    if stream.phase is Phase.QUEUED:
        assert stream.lane == NO_LANE and stream.pages == 0 and stream.promise == 0
        return
    if stream.phase is Phase.FINISHED or (stream.phase is Phase.RESUMING and not stream.pages):
        return  # about to leave, or about to adopt
    table = state.table(stream)
    assert len(set(table)) == len(table), f"I5: stream {stream.stream} has a page twice"
    assert stream.rows <= stream.pages * rules.page_rows, "rows past the table"
    assert stream.promise >= 0, f"stream {stream.stream} leased past its promise"
    assert stream.rows <= len(stream.tokens), "more rows than tokens"
    most = stream.prompt_tokens + stream.request.max_new + rules.drafts
    if in_windows(state.opened):
        most = state.opened.context + rules.page_rows  # and a page for rows past the window
    assert stream.pages + stream.promise == -(-most // rules.page_rows), "I9: a promise has leaked"
    assert stream.cached < max(stream.prompt_tokens, 1), "I7: a resume left no row to run"
    for mark in stream.marks:
        assert mark % rules.mark_rows == 0, f"I6: mark {mark} is off the grid"
    if stream.phase in (Phase.PROMPTING, Phase.DECODING):
        first = stream.rows // rules.page_rows
        for page in table[first:]:  # the rows that will be written next
            assert state.book.leases[page] == 1, f"I3: page {page} is shared and would be written"
            assert state.book.kept[page] == 0, f"I3: page {page} is kept and would be written"


def _check_kept(state: State) -> None:
    rules = state.opened.rules
    for kept in state.kept.values():
        assert kept.mark % rules.mark_rows == 0 and kept.mark % rules.page_rows == 0, "I6"
        assert len(kept.tokens) == min(kept.mark + rules.lookahead, len(kept.tokens)), "tokens"
        assert kept.used <= state.clock, "used after now"
    for stream in state.streams.values():
        assert stream.phase is not Phase.RESUMING or stream.state != NO_STATE, "resumes nothing"
