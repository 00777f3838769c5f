"""Apply: makes a fact so in the state. It cannot refuse: what does not fit is a broken tape."""

from collections.abc import Callable, Sequence
from typing import Any

from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import NO_STATE, StateId
from .digests import StreamSums
from .marks import is_common
from .state import NO_LANE, NO_STREAM, KeptState, Phase, State, Stream
from .waiting import waits


def apply(state: State, fact: AnyFact) -> None:
    """Change the state by one fact."""
    assert not state.closed, f"the run is closed, yet there is {fact.kind}"
    _APPLY[fact.kind](state, fact)


def _run_opened(state: State, fact: f.RunOpened) -> None:
    assert fact == state.opened, "a run opens once"


def _run_closed(state: State, fact: f.RunClosed) -> None:
    state.closed = True


def _request_arrived(state: State, fact: f.RequestArrived) -> None:
    assert fact.request not in state.requests, f"request {fact.request} arrives twice"
    state.arrived = fact


def _stream_queued(state: State, fact: f.StreamQueued) -> None:
    request = state.arrived
    assert request is not None and request.request == fact.request, "a stream queues as it arrives"
    assert fact.stream == state.next_stream, f"stream {fact.stream}, expected {state.next_stream}"
    state.arrived = None
    state.next_stream += 1
    state.streams[fact.stream] = Stream(
        fact.stream, request, fact.choice, tokens=list(request.prompt)
    )
    state.requests[fact.request] = fact.stream
    state.queue.append(fact.stream)


def _stream_waits(state: State, fact: f.StreamWaits) -> None:
    stream = state.streams[fact.stream]
    assert stream.phase is Phase.QUEUED, f"stream {fact.stream} is {stream.phase}"
    stream.behind, stream.awaited = fact.behind, fact.mark
    assert waits(state, stream), f"stream {fact.behind} has no mark {fact.mark} to come"


def _stream_begun(state: State, fact: f.StreamBegun) -> None:
    assert fact.stream in state.queue, f"stream {fact.stream} is not in the queue"
    at = state.queue.index(fact.stream)
    passed = [one for one in state.queue[:at] if not waits(state, state.streams[one])]
    assert not passed, f"{fact.stream} is not next in the queue, {passed[0]} is"
    assert state.lanes[fact.lane] is None, f"lane {fact.lane} is taken"
    _fits_its_table(state, fact)
    state.queue.pop(at)
    state.lanes[fact.lane] = fact.stream
    stream = state.streams[fact.stream]
    stream.lane = fact.lane
    stream.kept_pages = fact.kept_pages
    stream.promise = fact.promise_pages
    stream.marks = list(fact.marks)
    stream.state = fact.state
    stream.behind, stream.awaited = NO_STREAM, 0
    stream.phase = Phase.PROMPTING
    if fact.state != NO_STATE:
        stream.phase = Phase.RESUMING
        state.resuming[fact.stream] = fact.state
        _stays(state, fact.state, 1)
    state.book.promised += fact.promise_pages
    assert state.book.promised <= state.book.free, "more pages promised than there are"


def _stays(state: State, kept: StateId, more: int) -> None:
    """A kept state is being read back by one stream more, or less."""
    if state.tree is not None:
        state.tree.stays(kept, more)


def _fits_its_table(state: State, fact: f.StreamBegun) -> None:
    most = state.tables.shape[1]
    assert 0 <= fact.kept_pages <= most, f"{fact.kept_pages} kept pages, a table has {most}"


def _pages_adopted(state: State, fact: f.PagesAdopted) -> None:
    stream = state.streams[fact.stream]
    assert stream.pages == 0, f"stream {fact.stream} adopts pages below its own"
    state.book.adopt(fact.pages)
    kept = stream.kept_pages
    assert len(fact.pages) == kept, f"adopts {len(fact.pages)} pages, it began with {kept} kept"
    state.tables[stream.lane, : len(fact.pages)] = fact.pages
    stream.pages = len(fact.pages)


def _pages_leased(state: State, fact: f.PagesLeased) -> None:
    stream = state.streams[fact.stream]
    assert fact.first == stream.pages, f"leases page {fact.first} of a table of {stream.pages}"
    taken = state.book.take(len(fact.pages))
    assert taken == fact.pages, f"the tape leases {fact.pages}, the free list gives {taken}"
    assert stream.promise >= len(fact.pages), f"stream {fact.stream} leases past its promise"
    state.tables[stream.lane, fact.first : fact.first + len(fact.pages)] = fact.pages
    stream.pages += len(fact.pages)
    stream.promise -= len(fact.pages)
    state.book.promised -= len(fact.pages)


def _pages_swapped(state: State, fact: f.PagesSwapped) -> None:
    stream = state.streams[fact.stream]
    last = fact.first + len(fact.pages)
    assert last <= stream.pages, f"swaps page {last} of a table of {stream.pages}"
    mine = state.table(stream)[fact.first : last]
    state.book.adopt(fact.pages)
    state.book.give_back(mine)
    state.tables[stream.lane, fact.first : last] = fact.pages


def _pages_returned(state: State, fact: f.PagesReturned) -> None:
    stream = state.streams[fact.stream]
    mine = tuple(state.table(stream))
    assert fact.pages == mine, f"returns {fact.pages}, the table holds {mine}"
    state.book.give_back(mine)
    state.tables[stream.lane, : stream.pages] = state.opened.pages
    stream.pages = stream.kept_pages = 0


def _snapshot_taken(state: State, fact: f.SnapshotTaken) -> None:
    assert fact.state == state.next_state, f"state {fact.state}, expected {state.next_state}"
    stream = state.streams[fact.stream]
    assert fact.mark <= stream.rows, f"mark {fact.mark} is past row {stream.rows}"
    ahead = fact.mark + state.opened.rules.lookahead
    state.next_state += 1
    state.clock += 1
    stream.marks = [mark for mark in stream.marks if mark > fact.mark]
    state.book.keep(fact.pages)
    kept = KeptState(
        state=fact.state,
        mark=fact.mark,
        pages=fact.pages,
        tokens=tuple(stream.tokens[:ahead]),
        salt=stream.request.salt,
        used=state.clock,
        hit=False,
        digest=dict(fact.digest),
        by=fact.stream,
        common=is_common(state.opened.rules, stream.request, fact.mark),
        last=stream.request.prompt if state.opened.rules.snapshots else (),
    )
    state.kept[fact.state] = kept
    if state.tree is not None:
        whole = stream.prompt_tokens // state.opened.rules.page_rows
        state.tree.add(fact.state, stream.told(ahead), kept.salt, fact.pages, fact.stream, whole)


def _state_resumed(state: State, fact: f.StateResumed) -> None:
    stream, kept = state.streams[fact.stream], state.kept[fact.state]
    assert stream.phase is Phase.RESUMING, f"stream {fact.stream} is {stream.phase}"
    state.clock += 1
    kept.used, kept.hit = state.clock, True
    if state.opened.rules.snapshots:
        kept.last = stream.request.prompt
    if state.tree is not None:
        rows = state.opened.rules.page_rows
        whole = stream.prompt_tokens // rows
        state.tree.resumed(fact.state, fact.mark // rows, fact.stream, whole)
    stream.phase = Phase.PROMPTING
    del state.resuming[fact.stream]
    stream.rows = stream.cached = fact.mark
    stream.sums = dict(fact.digest)


def _resume_refused(state: State, fact: f.ResumeRefused) -> None:
    stream = state.streams[fact.stream]
    assert stream.phase is Phase.RESUMING, f"stream {fact.stream} is {stream.phase}"
    assert stream.pages == 0, f"stream {fact.stream} still holds pages of a refused resume"
    state.lanes[stream.lane] = None
    state.book.promised -= stream.promise
    stream.lane, stream.promise, stream.state = NO_LANE, 0, NO_STATE
    stream.marks = []
    stream.phase = Phase.QUEUED
    _stays(state, state.resuming.pop(fact.stream), -1)
    state.queue.insert(0, fact.stream)


def _state_dropped(state: State, fact: f.StateDropped) -> None:
    kept = state.kept.pop(fact.state)
    state.book.drop(kept.pages)
    if state.tree is not None:
        state.tree.drop(fact.state)


def _prompt_step_run(state: State, fact: f.PromptStepRun) -> None:
    stream = state.streams[fact.stream]
    assert stream.phase is Phase.PROMPTING, f"stream {fact.stream} is {stream.phase}"
    assert fact.first == stream.rows, f"prompt step at {fact.first}, rows end at {stream.rows}"
    stream.marks = [mark for mark in stream.marks if mark > fact.first]
    stream.rows += fact.rows
    assert stream.rows <= stream.pages * state.opened.rules.page_rows, "rows past the table"
    if stream.rows == len(stream.tokens):
        stream.phase = Phase.DECODING


def _round_run(state: State, fact: f.RoundRun) -> None:
    decoding = Phase.DECODING
    for lane in fact.lanes:
        stream = state.in_lane(lane)
        assert stream.phase is decoding, f"stream {stream.stream} is {stream.phase}"
        assert stream.rows == len(stream.tokens) - 1, "a round needs one pending token"
        stream.marks = []


def _rows_kept(state: State, fact: f.RowsKept) -> None:
    streams, new, first = state.streams, fact.tokens, fact.starts[0]
    vocab = state.opened.rules.vocab
    assert not new or 0 <= min(new) <= max(new) < vocab, _odd(new, vocab)
    for stream_id, last in zip(fact.streams, fact.starts[1:], strict=True):
        if stream_id in streams:  # otherwise it finished between the launch and its outcome
            stream = streams[stream_id]
            tokens = stream.tokens
            tokens += new[first:last]
            stream.rows = len(tokens) - 1
        first = last


def _odd(tokens: Sequence[int], vocab: int) -> str:
    odd = next(token for token in tokens if not 0 <= token < vocab)
    return f"token {odd} of a reply, the vocabulary has {vocab}"


def _step_closed(state: State, fact: f.StepClosed) -> None:
    state.step = fact.step + 1
    streams, digests = state.streams, fact.digests
    for at, stream_id in enumerate(digests.streams):
        if stream_id in streams:
            streams[stream_id].sums = StreamSums(digests, at)


def _request_finished(state: State, fact: f.RequestFinished) -> None:
    stream = state.streams[fact.stream]
    assert stream.phase is not Phase.FINISHED, f"stream {fact.stream} is finished already"
    stream.phase = Phase.FINISHED
    _stays(state, state.resuming.pop(fact.stream, NO_STATE), -1)


def _stream_released(state: State, fact: f.StreamReleased) -> None:
    stream = state.streams.pop(fact.stream)
    assert stream.pages == 0, f"stream {fact.stream} leaves with {stream.pages} pages"
    assert stream.phase is Phase.FINISHED, f"stream {fact.stream} leaves while {stream.phase}"
    if fact.lane == NO_LANE:
        state.queue.remove(fact.stream)
    else:
        state.lanes[fact.lane] = None
    state.book.promised -= stream.promise
    del state.requests[stream.request.request]
    if state.tree is not None:
        state.tree.ended(fact.stream)


def _nothing(state: State, fact: AnyFact) -> None:
    """Refusals, news and checks change no state."""


_APPLY: dict[str, Callable[[State, Any], None]] = {
    "run_opened": _run_opened,
    "run_closed": _run_closed,
    "request_arrived": _request_arrived,
    "request_refused": _nothing,
    "request_cancelled": _nothing,
    "request_finished": _request_finished,
    "stream_queued": _stream_queued,
    "stream_waits": _stream_waits,
    "stream_begun": _stream_begun,
    "stream_released": _stream_released,
    "pages_leased": _pages_leased,
    "pages_adopted": _pages_adopted,
    "pages_swapped": _pages_swapped,
    "pages_returned": _pages_returned,
    "snapshot_taken": _snapshot_taken,
    "state_resumed": _state_resumed,
    "resume_refused": _resume_refused,
    "state_dropped": _state_dropped,
    "prompt_step_run": _prompt_step_run,
    "round_run": _round_run,
    "rows_kept": _rows_kept,
    "step_closed": _step_closed,
    "ranks_parted": _nothing,
    "sums_broken": _nothing,
    "poison_read": _nothing,
    "fault_injected": _nothing,
}
