"""The book's digest: one value over all that every rank must know alike."""

from array import array
from hashlib import blake2b

from .state import Phase, State

_PHASES = {phase: at for at, phase in enumerate(Phase)}


def book_digest(state: State) -> str:
    """32 hex digits over holders, promises, tables, streams, the queue and the kept states."""
    hasher = blake2b(digest_size=16)
    hasher.update(state.book.leases.data)
    hasher.update(state.book.kept.data)
    counts = array("q", [state.book.promised, state.next_stream, state.next_state, state.clock])
    tables, width = state.tables.tobytes(), state.tables.strides[0]
    for stream in state.streams.values():
        counts.extend(
            (
                stream.stream,
                stream.lane,
                _PHASES[stream.phase],
                stream.rows,
                len(stream.tokens),
                stream.tokens[-1],
                stream.promise,
                stream.pages,
                stream.kept_pages,
                stream.state,
            )
        )
        if stream.pages:
            first = stream.lane * width
            hasher.update(tables[first : first + stream.pages * state.tables.itemsize])
    counts.extend(state.queue)
    for kept in state.kept.values():
        counts.extend((kept.state, kept.mark, kept.used, kept.hit))
        counts.extend(kept.pages)
    hasher.update(counts)
    return hasher.hexdigest()
