"""What a prompt found of itself in the store, why it was no more, and that in words."""

from dataclasses import dataclass
from enum import StrEnum

from ..events.ids import RequestId, SessionId, StateId, StreamId

# Why a state is not there, where no `StateDropped` says it.
HELD_BACK = "held_back"  # there it was; with it the stream would have had to wait
TOO_LARGE = "too_large"  # never kept: it is larger than the whole store
NO_ROOM = "no_room"  # never kept: what stood in the store could not go
NOT_SUMMED = "not_summed"  # never kept: the run sums no rows, and keeps nothing unsummed


class Reason(StrEnum):
    """Why rows of a prompt, up to its last possible mark, were computed and not resumed."""

    NO_STATE = "no_state"  # nothing like it was kept
    EDITED = "edited"  # something like it is kept, and the two part before its mark
    EVICTED = "evicted"  # what would have matched was dropped
    TOO_SHORT = "too_short"  # below the first mark, or below the least prompt that is kept
    REFUSED = "refused"  # what matched could not be taken, or what would match was not kept


@dataclass(frozen=True, slots=True)
class Gone:
    """A state of `mark` rows that went: why, for which request, at which event.

    refused: it was there and was not taken, or was due and not kept; request is whose it was, and
    why one of the words above, or a rank and its own word.
    """

    why: str
    request: RequestId
    seq: int
    mark: int
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Near:
    """The kept state most like a prompt: both agree up to row `differs_at`, short of its mark.

    request: who left it.  tokens: at the first difference, of the state and of the prompt.
    """

    state: StateId
    mark: int
    request: RequestId
    differs_at: int
    tokens: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Lookup:
    """One prompt's way into a lane; all in rows, which are tokens.

    seq: of its beginning.  last_mark: the furthest at which it could have been resumed.
    reason: None if it was resumed there.  lost_mark: how far the state that is `gone` would have
    brought it.  again: a finished prompt before it was the same, up to its last possible mark.
    """

    seq: int
    stream: StreamId
    request: RequestId
    session: SessionId
    prompt_tokens: int
    cached_tokens: int
    last_mark: int
    reason: Reason | None
    gone: Gone | None = None
    lost_mark: int = 0
    near: Near | None = None
    again: bool = False

    @property
    def missed(self) -> int:
        """Rows that were computed though a kept state could have held them."""
        return self.last_mark - self.cached_tokens

    @property
    def finding(self) -> bool:
        """Whether there was something to find, and it was not found."""
        return self.reason in (Reason.EDITED, Reason.EVICTED, Reason.REFUSED)


def said(lookup: Lookup) -> str:
    """Why a prompt was resumed no further, in words; without one of its own."""
    gone, near = lookup.gone, lookup.near
    match lookup.reason:
        case None:
            return "resumed at its last mark"
        case Reason.TOO_SHORT:
            return "too short to be kept"
        case Reason.EDITED:
            assert near is not None
            return (
                f"edited at token {near.differs_at}: "
                f"{near.request} left a state with its mark at {near.mark}"
            )
        case Reason.EVICTED:
            assert gone is not None
            return f"evicted: mark {lookup.lost_mark} was {_went(gone)}"
        case Reason.REFUSED:
            assert gone is not None
            return f"refused: mark {lookup.lost_mark} {_refused(gone)}"
        case _:
            part = f"past row {lookup.cached_tokens} " if lookup.cached_tokens else ""
            return f"no state: {part}nothing like it is kept"


def _went(gone: Gone) -> str:
    """How a state went, after its mark is named."""
    how = gone.why.replace("_", " ")
    whose = f" for {gone.request}" if gone.request else ""
    return f"{how}{whose} at event {gone.seq}"


def _refused(gone: Gone) -> str:
    """Why a state was not taken, or not kept, after its mark is named."""
    match gone.why:
        case "held_back":
            return "would have held the stream back"
        case "too_large":
            return f"of {gone.request} was not kept: too large for the store"
        case "no_room":
            return f"of {gone.request} was not kept: there was no room in the store"
        case "not_summed":
            return f"of {gone.request} was not kept: the run sums no rows"
        case why:
            return f"could not be read back at event {gone.seq} ({why.replace('_', ' ')})"
