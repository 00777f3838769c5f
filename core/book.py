"""The book's digest: one value over all that every rank must know alike."""

from array import array
from hashlib import blake2b

from .state import Phase, State

_PHASES = {phase: at for at, phase in enumerate(Phase)}


def book_digest(state: State) -> str:
    """32 hex digits over holders, promises, tables, streams, the queue and the kept states."""
    book, tables = state.book, state.tables.tobytes()
    width, word = state.tables.strides[0], state.tables.itemsize
    held: list[bytes] = [book.leases.tobytes(), book.kept.tobytes()]
    counts = [book.promised, state.next_stream, state.next_state, state.clock]
    for stream in state.streams.values():
        tokens, lane, pages = stream.tokens, stream.lane, stream.pages
        counts += (
            stream.stream,
            lane,
            _PHASES[stream.phase],
            stream.rows,
            len(tokens),
            tokens[-1],
            stream.promise,
            pages,
            stream.kept_pages,
            stream.state,
        )
        if pages:
            held.append(tables[lane * width : lane * width + pages * word])
    counts += state.queue
    for kept in state.kept.values():
        counts += (kept.state, kept.mark, kept.used, kept.hit)
        counts += kept.pages
    held.append(array("q", counts).tobytes())
    return blake2b(b"".join(held), digest_size=16).hexdigest()
