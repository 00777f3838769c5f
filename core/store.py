"""What the machine asks of a store of kept states: which prefixes, where, and who goes first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import NO_STATE, PageId, RequestId, StateId
from ..events.records import known
from .state import KeptState, State, Stream, flagged

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

    def fits(self, state: State, hit: Hit, want: int) -> bool:
        """Whether so many pages could be promised beside a hit, if all else that is idle went."""
        ...

    def make_room(self, state: State, want: int, hit: Hit, request: RequestId) -> Iterator[AnyFact]:
        """Drop states, weakest first, until so many pages can be promised; `fits` says they can."""
        ...

    def seat(self, state: State, stream: Stream, hit: Hit) -> Iterator[AnyFact]:
        """Give a stream that has just begun the pages of the rows that it takes over."""
        ...

    def marks(self, state: State, stream: Stream, hit: Hit) -> tuple[int, ...]:
        """Rows past a hit, ascending, at which states are kept while the prompt runs."""
        ...

    def keep(self, state: State, stream: Stream, mark: int) -> Iterator[AnyFact]:
        """Keep the first `mark` rows of a stream, unless they are kept already or do not fit."""
        ...

    def check(self, state: State) -> None:
        """Assert that the kept states, and streams that resume one, are as this store has them."""
        ...


def may_go(state: State, stream: Stream) -> list[StateId]:
    """The states one of which goes for a state that a stream leaves: none that is being read back.

    What the stream itself has left goes after all others, so that its marks do not push each other
    out; where states are pages alone it goes first, as its pages are the next one's too.
    """
    opened = state.opened
    stay = resuming(state) if flagged(opened, "keep_resuming") else set()
    others = [one for one in state.kept if one not in stay]
    if not flagged(opened, "marks"):
        return others
    own = [one for one in others if state.kept[one].by == stream.stream]
    foreign = [one for one in others if state.kept[one].by != stream.stream]
    return (foreign or own) if opened.rules.snapshots else (own or foreign)


def drop(kept: KeptState, why: str, request: RequestId) -> f.StateDropped:
    """The fact that a state goes."""
    kind = "state_dropped"
    return known(f.StateDropped, kind=kind, state=kept.state, why=why, request=request)


def digest_at_mark(state: State, stream: Stream, mark: int) -> dict[str, str]:
    """The sums at the mark: at the last whole page of pages alone, at the last row of copies.

    Of pages alone there are none at a mark that the rows have passed by a page.
    """
    rules = state.opened.rules
    if not rules.snapshots:
        if stream.rows // rules.page_rows * rules.page_rows != mark:
            return {}
        return {"rows": stream.sums["marks"]} if "marks" in stream.sums else {}
    return {part: total for part, total in stream.sums.items() if part not in VOLATILE}


def resuming(state: State) -> set[StateId]:
    """The kept states that the ranks are reading back for a stream."""
    return state.kept.keys() & state.resuming.values()
