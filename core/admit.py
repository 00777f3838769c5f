"""Admission: who is refused, who waits, and with which pages a stream begins."""

from collections.abc import Generator, Iterator

from ..events import commands as c
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import NO_STATE, Lane, Rank, StreamId
from .keep import store_of
from .plan_pages import in_windows
from .state import Phase, State, Stream, table_pages
from .store import NO_HIT, Hit, Store, drop
from .waiting import wait_for, waits


def arrive(state: State, wish: c.Arrive) -> Iterator[AnyFact]:
    """Queue a request, or refuse what can never be served."""
    refusal = _refusal(state, wish)
    if refusal is not None:
        yield refusal
        return
    yield f.RequestArrived(**{name: getattr(wish, name) for name in _ARRIVAL})
    yield f.StreamQueued(stream=_next_stream(state), request=wish.request, choice=0)


_ARRIVAL = tuple(name for name in f.RequestArrived.model_fields if name != "kind")


def _next_stream(state: State) -> StreamId:
    return StreamId(state.next_stream)


def rows_wanted(state: State, prompt_tokens: int, max_new: int) -> int:
    """Rows a stream may come to write: its prompt, its reply, and drafts past the last token."""
    return prompt_tokens + max_new + state.opened.rules.drafts


def pages_for(state: State, rows: int) -> int:
    """Pages that hold so many rows."""
    return -(-rows // state.opened.rules.page_rows)


def pages_wanted(state: State, prompt_tokens: int, max_new: int) -> int:
    """Pages that a stream has to itself: those it may come to write, in windows a whole one."""
    if in_windows(state.opened):
        return table_pages(state.opened.context, state.opened.rules.page_rows)
    return pages_for(state, rows_wanted(state, prompt_tokens, max_new))


def _refusal(state: State, wish: c.Arrive) -> f.RequestRefused | None:
    opened, rules = state.opened, state.opened.rules

    def refused(reason: str, need: int, have: int) -> f.RequestRefused:
        return f.RequestRefused(
            request=wish.request, session=wish.session, reason=reason, need=need, have=have
        )

    total = len(wish.prompt) + wish.max_new
    pages = pages_wanted(state, len(wish.prompt), wish.max_new)
    if wish.request in state.requests:
        return refused("duplicate_request", 1, 0)
    if not wish.prompt:
        return refused("empty_prompt", 1, 0)
    if wish.max_new < 1:
        return refused("no_room_for_a_reply", 1, wish.max_new)
    if min(wish.prompt) < 0 or max(wish.prompt) >= rules.vocab:
        return refused("token_out_of_range", max(max(wish.prompt), -min(wish.prompt)), rules.vocab)
    if total > opened.context:
        return refused("context_length_exceeded", total, opened.context)
    if pages > opened.pages:
        return refused("larger_than_pool", pages, opened.pages)
    waiting = len(state.queue) - state.lanes.count(None)  # a free lane is about to be taken
    if waiting >= opened.queue:
        return refused("queue_full", waiting + 1, opened.queue)
    return None


def admit(state: State) -> Iterator[AnyFact]:
    """Seat who is next in the queue while there is a lane and a promise for it.

    Nobody passes it, unless it waits for a prefix: then it holds nothing, and keeps its place.
    """
    store, at = store_of(state), 0
    while at < len(state.queue) and None in state.lanes:
        stream = state.streams[state.queue[at]]
        if waits(state, stream):
            at += 1
            continue
        hit = store.match(state, stream)
        wait = wait_for(state, stream, hit)
        if wait is not None:
            yield wait
        elif not (yield from _begin(state, store, stream, hit)):
            return


def _begin(state: State, store: Store, stream: Stream, hit: Hit) -> Generator[AnyFact, None, bool]:
    """Seat a stream on the pages of its hit; False where there is no promise for it."""
    wanted = pages_wanted(state, stream.prompt_tokens, stream.request.max_new)
    if hit.state != NO_STATE and not store.fits(state, hit, wanted - len(hit.pages)):
        hit = NO_HIT  # a hit must not hold a stream back
    promise = wanted - len(hit.pages)
    if hit.state == NO_STATE and not store.fits(state, hit, promise):
        return False
    yield from store.make_room(state, promise, hit, stream.request.request)
    yield f.StreamBegun(
        stream=stream.stream,
        lane=Lane(state.lanes.index(None)),
        kept_pages=len(hit.pages),
        promise_pages=promise,
        marks=store.marks(state, stream, hit),
        owner=Rank(0),
        state=hit.state,
    )
    yield from store.seat(state, stream, hit)
    return True


def resume_acked(state: State, answer: c.ResumeAcked) -> Iterator[AnyFact]:
    """Go on from a state that every rank read back as it was kept; otherwise begin at row 0."""
    stream = state.streams.get(StreamId(answer.stream))
    if stream is None or stream.phase is not Phase.RESUMING or stream.state != answer.state:
        return  # cancelled while the ranks were reading
    mark = stream.pages * state.opened.rules.page_rows  # it has leased nothing past it yet
    kept = state.kept.get(answer.state)
    why = (
        answer.why or _unlike(kept.digest, answer.digest, mark == kept.mark) if kept else "dropped"
    )
    if answer.ok and not why:
        yield f.StateResumed(
            stream=answer.stream, state=answer.state, mark=mark, digest=answer.digest
        )
        return
    yield f.PagesReturned(stream=answer.stream, pages=tuple(state.table(stream)))
    yield f.ResumeRefused(
        stream=answer.stream, state=answer.state, rank=answer.rank, why=why or "refused"
    )
    if answer.state in state.kept:
        yield drop(state.kept[answer.state], "damaged", stream.request.request)


def _unlike(kept: dict[str, str], found: dict[str, str], whole: bool) -> str:
    """Which part was not read back as it was kept; a shorter resume has no whole to compare."""
    if not whole:
        return ""
    return next((f"{part}_differ" for part in sorted(kept) if kept[part] != found.get(part)), "")
