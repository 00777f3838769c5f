"""What the machine asks of a store of kept states: which prefixes, where, and who goes first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import NO_STATE, PageId, RequestId, StateId
from .state import KeptState, State, Stream

VOLATILE = frozenset({"logits", "tokens", "drafts", "marks"})  # parts a resume does not bring back


@dataclass(frozen=True, slots=True)
class Hit:
    """What of a prompt is kept: a state, the row it is resumed at, and pages that it lends."""

    state: StateId = NO_STATE
    mark: int = 0
    pages: tuple[PageId, ...] = ()


NO_HIT = Hit()


class Store(Protocol):
    """A way to keep states. It reads the state and says facts; `apply` alone makes them so."""

    def match(self, state: State, stream: Stream) -> Hit:
        """The longest kept prefix that a queued prompt repeats; one row is left to run."""
        ...

    def room(self, state: State, hit: Hit) -> int:
        """Pages that could be promised beside a hit, if everything else that is idle went."""
        ...

    def make_room(self, state: State, want: int, hit: Hit, request: RequestId) -> Iterator[AnyFact]:
        """Drop states, weakest first, until so many pages can be promised; `room` says they can."""
        ...

    def seat(self, state: State, stream: Stream, hit: Hit) -> Iterator[AnyFact]:
        """Give a stream that has just begun the pages of the rows that it takes over."""
        ...

    def marks(self, state: State, stream: Stream, start: int) -> tuple[int, ...]:
        """Rows past `start`, ascending, at which states are kept while the prompt runs."""
        ...

    def keep(self, state: State, stream: Stream, mark: int) -> Iterator[AnyFact]:
        """Keep the first `mark` rows of a stream, unless they are kept already or do not fit."""
        ...

    def check(self, state: State) -> None:
        """Assert that the kept states, and streams that resume one, are as this store has them."""
        ...


def drop(kept: KeptState, why: str, request: RequestId) -> f.StateDropped:
    """The fact that a state goes."""
    return f.StateDropped(state=kept.state, why=why, request=request)


def digest_at_mark(state: State, stream: Stream) -> dict[str, str]:
    """The sums at the mark: at the last whole page of pages alone, at the last row of copies."""
    if not state.opened.rules.snapshots:
        return {"rows": stream.sums["marks"]} if "marks" in stream.sums else {}
    return {part: total for part, total in stream.sums.items() if part not in VOLATILE}


def prompt_marks(
    state: State, stream: Stream, start: int, history: int, others: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """History's end, and others where they are a gap away from it and from `start`.

    All are floored to the family's grid; none stands at `start` or before it.
    """
    rules = state.opened.rules
    if stream.prompt_tokens < rules.min_prompt:
        return ()
    first, *more = (row // rules.mark_rows * rules.mark_rows for row in (history, *others))
    marks = [first] if first > start else []
    for mark in more:
        gap = min(abs(mark - other) for other in (start, *marks))
        if mark > start and gap >= max(rules.min_gap, 1):
            marks.append(mark)
    return tuple(sorted(marks))


def last_mark(state: State, stream: Stream) -> int:
    """The last row at which a prompt may be kept: a row and the lookahead are left to run."""
    return stream.prompt_tokens - max(1, state.opened.rules.lookahead)
