"""Kept states: which store a run has, when a stream leaves a state in it, and its flush."""

from collections.abc import Iterator

from ..events import commands as c
from ..events.facts import AnyFact
from ..events.ids import NO_STATE, RequestId
from .state import FLAT, RADIX, State, Stream, store_flag
from .store import Store, drop
from .store_flat import FlatStore
from .store_radix import RadixStore

_STORES: dict[int, Store] = {RADIX: RadixStore(), FLAT: FlatStore()}


def store_of(state: State) -> Store:
    """The store of a run, as its flags say."""
    return _STORES[store_flag(state.opened)]


def keep_due(state: State) -> Iterator[AnyFact]:
    """Keep a state of every stream whose rows have come to its next mark."""
    for stream_id in state.lanes:
        if stream_id is not None and (stream := state.streams[stream_id]).marks:
            yield from keep_marks(state, stream)


def keep_marks(state: State, stream: Stream) -> Iterator[AnyFact]:
    """Keep a state of a stream at each mark that its rows have come to."""
    for mark in tuple(stream.marks):
        if mark <= stream.rows and computed(state, stream):
            yield from keep(state, stream, mark)


def computed(state: State, stream: Stream) -> bool:
    """Whether a stream's rows are in memory: its sums say so, where a run has them.

    Where it has none, every step's outcome comes before what is decided next.
    """
    opened = state.opened
    unsummed = opened.digests in ("off", "book") and opened.flags.get("keep_unsummed", 0)
    return bool(stream.sums or unsummed)


def keep(state: State, stream: Stream, mark: int) -> Iterator[AnyFact]:
    """Keep the first `mark` rows of a stream in the run's store."""
    yield from store_of(state).keep(state, stream, mark)


def flush(state: State, command: c.Flush) -> Iterator[AnyFact]:
    """Drop every kept state that no stream is resuming."""
    resuming = {stream.state for stream in state.streams.values() if stream.state != NO_STATE}
    for kept in tuple(state.kept.values()):
        if kept.state not in resuming:
            yield drop(kept, "flushed", RequestId(""))
