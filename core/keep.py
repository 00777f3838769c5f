"""Kept states: when a stream leaves one, which pages it shares, and who goes when room is short."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..events import commands as c
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import NO_STATE, PageId, RequestId, StateId
from .state import KeptState, State, Stream

VOLATILE = frozenset({"logits", "tokens", "drafts", "marks"})  # parts a resume does not bring back


def keep_due(state: State) -> Iterator[AnyFact]:
    """Keep a state of every stream whose rows have come to its next mark."""
    for stream_id in state.lanes:
        if stream_id is None:
            continue
        stream = state.streams[stream_id]
        for mark in tuple(stream.marks) if stream.marks else ():
            if mark <= stream.rows and stream.sums:
                yield from keep(state, stream, mark)


def keep(state: State, stream: Stream, mark: int) -> Iterator[AnyFact]:
    """Keep the first `mark` rows of a stream, on the tree's pages where the tree has them."""
    assert state.tree is not None, "only rank 0 keeps"
    rules, opened = state.opened.rules, state.opened
    count = mark // rules.page_rows
    assert mark % rules.mark_rows == 0 and count > 0, f"mark {mark} is off the grid"
    path = state.tree.walk(stream.tokens[: mark + rules.lookahead], stream.request.salt, count)
    theirs = tuple(node.page for node in path)
    yield from _swap(state, stream, theirs)
    if len(path) == count and (path[-1].ends or not rules.snapshots):
        return  # the same rows are kept already
    if opened.states == 0:
        return
    while len(state.kept) >= opened.states:
        yield _drop(_weakest(state, list(state.kept)), "evicted", stream.request.request)
    path = state.tree.walk(stream.tokens[: mark + rules.lookahead], stream.request.salt, count)
    pages = tuple(node.page for node in path) + tuple(state.table(stream))[len(path) : count]
    taken = f.SnapshotTaken(
        state=StateId(state.next_state),
        stream=stream.stream,
        mark=mark,
        shared=True,
        pages=pages,
        digest=_digest_at(state, stream),
    )
    yield taken
    if not rules.snapshots:  # any of its pages can be resumed at, so shorter states are spare
        for passed in state.tree.passed_by(taken.state):
            yield _drop(state.kept[passed], "moved_past", stream.request.request)


def _digest_at(state: State, stream: Stream) -> dict[str, str]:
    """The sums at the mark: at the last whole page of pages alone, at the last row of copies."""
    if not state.opened.rules.snapshots:
        return {"rows": stream.sums["marks"]} if "marks" in stream.sums else {}
    return {part: total for part, total in stream.sums.items() if part not in VOLATILE}


def _swap(state: State, stream: Stream, pages: Sequence[PageId]) -> Iterator[AnyFact]:
    """Use the tree's pages in place of the stream's equal ones, run by run."""
    mine = state.table(stream)[: len(pages)]
    first = 0
    while first < len(pages):
        last = first
        while last < len(pages) and mine[last] != pages[last]:
            last += 1
        if last > first:
            yield f.PagesSwapped(stream=stream.stream, first=first, pages=tuple(pages[first:last]))
        first = last + 1


def reclaimable(state: State, spared: StateId) -> int:
    """Pages that could be promised if every kept state went but the spared one."""
    idle = (state.book.leases == 0) & (state.book.kept > 0)
    if spared != NO_STATE:
        idle[np.asarray(state.kept[spared].pages)] = False
    return state.book.available + int(np.count_nonzero(idle))


def reclaim(state: State, want: int, spared: StateId, request: RequestId) -> Iterator[AnyFact]:
    """Drop kept states, weakest first, until so many pages can be promised."""
    while state.book.available < want:
        idle = [
            kept for kept in state.kept.values() if kept.state != spared and _frees(state, kept)
        ]
        assert idle, f"{want} pages were reclaimable and are not"
        yield _drop(_weakest(state, [kept.state for kept in idle]), "reclaimed", request)


def _frees(state: State, kept: KeptState) -> bool:
    """Whether dropping the state alone frees a page now."""
    pages = np.asarray(kept.pages)
    return bool(np.any((state.book.leases[pages] == 0) & (state.book.kept[pages] == 1)))


def _weakest(state: State, among: Sequence[StateId]) -> KeptState:
    """The state to give up first: moved past by another, then never hit, then longest unused."""
    tree = state.tree
    assert tree is not None

    def rank(state_id: StateId) -> tuple[bool, bool, int]:
        kept = state.kept[state_id]
        passed = tree.moved_past(state_id)
        return (not passed, kept.hit and not passed, kept.used)

    return state.kept[min(among, key=rank)]


def _drop(kept: KeptState, why: str, request: RequestId) -> f.StateDropped:
    return f.StateDropped(state=kept.state, why=why, request=request)


def flush(state: State, command: c.Flush) -> Iterator[AnyFact]:
    """Drop every kept state that no stream is resuming."""
    resuming = {stream.state for stream in state.streams.values() if stream.state != NO_STATE}
    for kept in tuple(state.kept.values()):
        if kept.state not in resuming:
            yield _drop(kept, "flushed", RequestId(""))
