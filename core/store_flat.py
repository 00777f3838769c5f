"""The flat store: a kept state owns a copy of its rows beside the pool, within so many bytes."""

from collections.abc import Iterator
from operator import eq

from ..events import facts as f
from ..events.facts import AnyFact, RunOpened
from ..events.ids import RequestId, StateId
from .marks import places, spaced
from .state import KeptState, Phase, State, Stream, flagged
from .steps import lease
from .store import NO_HIT, Hit, digest_at_mark, drop, resuming


def state_bytes(opened: RunOpened, mark: int) -> int:
    """Bytes of a kept state on the first rank: its rows, and what does not grow with them."""
    return mark * opened.plan["row_bytes"] + opened.plan["snapshot_bytes"]


class FlatStore:
    """Kept states share nothing: no page is held, and a resume copies all rows into fresh pages."""

    def match(self, state: State, stream: Stream) -> Hit:
        """The longest kept state whose tokens, its lookahead included, the prompt repeats."""
        best = NO_HIT
        for kept in state.kept.values():
            if best.mark < kept.mark < stream.prompt_tokens and _repeats(stream, kept):
                best = Hit(kept.state, kept.mark)
        return best

    def fits(self, state: State, hit: Hit, want: int) -> bool:
        """Whether so many pages can be promised; no kept state stands on any."""
        return want <= state.book.available

    def make_room(self, state: State, want: int, hit: Hit, request: RequestId) -> Iterator[AnyFact]:
        """No kept state frees a page."""
        assert state.book.available >= want, f"{want} pages were free and are not"
        yield from ()

    def seat(self, state: State, stream: Stream, hit: Hit) -> Iterator[AnyFact]:
        """Lease pages for the rows that every rank is about to copy in."""
        yield from lease(state, stream, hit.mark)

    def marks(self, state: State, stream: Stream, hit: Hit) -> tuple[int, ...]:
        """As many as the budget holds together. Prompts of ids alone have no history, and none."""
        opened, marks, left = state.opened, [], _budget(state)
        history, others = places(state, stream, hit.state, tail=False)
        for mark in spaced(opened.rules, stream.prompt_tokens, hit.mark, history, others):
            if state_bytes(opened, mark) <= left:
                left -= state_bytes(opened, mark)
                marks.append(mark)
        return tuple(sorted(marks))

    def keep(self, state: State, stream: Stream, mark: int) -> Iterator[AnyFact]:
        """Copy the rows, dropping other states until the budget holds this one."""
        rules, opened = state.opened.rules, state.opened
        assert mark % rules.mark_rows == 0 and mark > 0, f"mark {mark} is off the grid"
        if any(kept.mark == mark and _repeats(stream, kept) for kept in state.kept.values()):
            return  # the same rows are kept already
        left = _budget(state) - state_bytes(opened, mark)
        spare = [] if left < 0 else _victims(state, stream, mark)
        held = held_bytes(state)
        if held - sum(state_bytes(opened, kept.mark) for kept in spare) > left:
            return  # nothing goes for a state that would not fit even then
        for kept in spare:
            if held <= left:
                break
            held -= state_bytes(opened, kept.mark)
            yield drop(kept, "evicted", stream.request.request)
        yield f.SnapshotTaken(
            state=StateId(state.next_state),
            stream=stream.stream,
            mark=mark,
            shared=False,
            pages=(),
            digest=digest_at_mark(state, stream, mark),
        )

    def check(self, state: State) -> None:
        """The copies keep to their budget, hold no page, and are read into pages for their rows."""
        held, budget = held_bytes(state), _budget(state)
        assert held <= budget, f"{held} bytes of kept states, the budget is {budget}"
        for kept in state.kept.values():
            assert kept.pages == (), f"state {kept.state} holds pages"
        for stream in state.streams.values():
            source = state.kept.get(stream.state) if stream.phase is Phase.RESUMING else None
            if source is not None and stream.pages:
                rows = stream.pages * state.opened.rules.page_rows
                assert rows == source.mark, f"pages for {rows} rows, the state has {source.mark}"


def held_bytes(state: State) -> int:
    """Bytes of all kept states."""
    return sum(state_bytes(state.opened, kept.mark) for kept in state.kept.values())


def _budget(state: State) -> int:
    return state.opened.plan["cache_bytes"]


def _repeats(stream: Stream, kept: KeptState) -> bool:
    """Whether a prompt begins with a state's tokens, under the same salt."""
    if kept.salt != stream.request.salt or len(kept.tokens) > len(stream.tokens):
        return False
    return all(map(eq, kept.tokens, stream.tokens))


def _victims(state: State, stream: Stream, mark: int) -> list[KeptState]:
    """Who goes, first to last: what a prompt moved past, oldest first, then the longest unused.

    A state that a stream is still resuming stays; what this stream itself has left goes last, and
    one that many prompts may part from is not moved past by any of them.
    """
    stay, further = resuming(state), flagged(state.opened, "marks")

    def rank(kept: KeptState) -> tuple[bool, bool, int]:
        own = further and kept.by == stream.stream
        passed = kept.mark < mark and _repeats(stream, kept)
        if further:
            passed = not kept.common and (passed or _extended(state, kept))
        return (own, not passed, kept.used)

    return sorted((kept for kept in state.kept.values() if kept.state not in stay), key=rank)


def _extended(state: State, kept: KeptState) -> bool:
    """Whether a state that was kept later has all of a state's tokens, and more."""
    count = len(kept.tokens)
    return any(
        other.state > kept.state
        and other.mark > kept.mark
        and other.salt == kept.salt
        and other.tokens[count - 1] == kept.tokens[-1]  # most part here, at no cost
        and other.tokens[:count] == kept.tokens
        for other in state.kept.values()
    )
