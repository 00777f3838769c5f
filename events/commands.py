"""Commands: wishes and news from outside, all that `decide` may read beside the state."""

from typing import Literal

from pydantic import Field

from .ids import Rank, RequestId, SessionId, StateId, StreamId, Token
from .records import Digests, Ids, Later, LaterText, Record, Sampling, Sum

# One for all: a default that is given as a value is copied for every record, deeply.
NO_DIGESTS = Digests()


class Command(Record):
    """Something the machine is asked or told; it may be refused."""


class Arrive(Command):
    """A client wants a reply to this prompt.

    Of its tokens, how many stand before places where other prompts may part from it, 0 where none
    is known: history_tokens before the coming reply, system_tokens before the first message that is
    the user's own, rewind_tokens before the user's latest message.
    """

    kind: Literal["arrive"] = "arrive"
    request: RequestId
    session: SessionId
    prompt: Ids
    history_tokens: int = 0
    max_new: int
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    eos: tuple[Token, ...] = ()
    ignore_eos: bool = False
    draft: bool = True
    salt: str = ""
    system_tokens: Later = 0
    rewind_tokens: Later = 0


class Cancel(Command):
    """A client left or asked to stop."""

    kind: Literal["cancel"] = "cancel"
    request: RequestId
    why: str


class StopMatched(Command):
    """The text of the first `tokens` reply tokens holds one of the request's stop strings."""

    kind: Literal["stop_matched"] = "stop_matched"
    request: RequestId
    tokens: int


class Flush(Command):
    """Drop every kept state that no stream is using."""

    kind: Literal["flush"] = "flush"


class ResumeAcked(Command):
    """The ranks' answer to a resume: the sums read back, or which rank could not and why."""

    kind: Literal["resume_acked"] = "resume_acked"
    stream: StreamId
    state: StateId
    rank: Rank
    ok: bool
    why: str
    digest: dict[str, Sum]


class DeviceDone(Command):
    """A step is computed: accepted tokens in indptr form, and streams that raised the NaN flag.

    digests and book stay off the tape here: they stand in the step's StepClosed.
    """

    kind: Literal["device_done"] = "device_done"
    step: int
    streams: tuple[StreamId, ...]
    starts: tuple[int, ...]
    tokens: tuple[Token, ...]
    flagged: tuple[StreamId, ...]
    digests: Digests = Field(default_factory=lambda: NO_DIGESTS, exclude=True)
    book: Sum = Field(default="", exclude=True)


class PartingFound(Command):
    """Rank 0 compared the ranks' sums of a replicated part and they differ."""

    kind: Literal["parting_found"] = "parting_found"
    step: int
    part: str
    stream: StreamId
    ranks: tuple[Rank, ...]
    values: tuple[Sum, ...]
    layer: int
    position: int
    blobs: tuple[str, ...]


class BreakFound(Command):
    """A rank summed its live rows anew and did not get its running digest."""

    kind: Literal["break_found"] = "break_found"
    step: int
    rank: Rank
    stream: StreamId
    part: str
    kept: Sum
    found: Sum


class PoisonFound(Command):
    """A check kernel met a poisoned value."""

    kind: Literal["poison_found"] = "poison_found"
    step: int
    rank: Rank
    stream: StreamId
    layer: int
    position: int


class Inject(Command):
    """Flip one bit of a rank's memory before the next step computes (a test of the checks)."""

    kind: Literal["inject"] = "inject"
    rank: Rank
    stream: StreamId
    part: str
    layer: int
    cache: str
    position: int
    head: int
    column: int
    bit: int
    when: str


class Close(Command):
    """End the run after this step; error: what went wrong, in words, where something did."""

    kind: Literal["close"] = "close"
    reason: str
    error: LaterText = ""


AnyCommand = (
    Arrive
    | Cancel
    | StopMatched
    | Flush
    | ResumeAcked
    | DeviceDone
    | PartingFound
    | BreakFound
    | PoisonFound
    | Inject
    | Close
)
