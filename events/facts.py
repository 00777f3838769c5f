"""Facts: what happened and cannot be refused."""

from typing import Literal

from .ids import Lane, PageId, Rank, RequestId, SessionId, StateId, StreamId, Token
from .records import Digests, FamilyRules, Ids, Later, LaterText, Record, Sampling, Sum

FORMAT = 1  # of the tape: bump when a field or its meaning changes (traces/README.md)


class Fact(Record):
    """Something that is true from now on; `kind` is data, never a class path."""


# --- the run -------------------------------------------------------------------------------------


class RunOpened(Fact):
    """One life of an engine begins, under these settings."""

    kind: Literal["run_opened"] = "run_opened"
    format: int
    contract: int
    weights: str
    build: str
    model: str
    model_digest: str
    family: str
    rules: FamilyRules
    lanes: int
    context: int
    pages: int
    prompt_rows: int
    queue: int
    states: int
    order: str
    plan: dict[str, int]
    world: int
    devices: tuple[str, ...]
    flags: dict[str, int]
    poison: str
    digests: str
    text: str


class RunClosed(Fact):
    """The run ended in order, or was stopped for this reason; error: what went wrong, in words."""

    kind: Literal["run_closed"] = "run_closed"
    reason: str
    steps: int
    error: LaterText = ""


# --- requests ------------------------------------------------------------------------------------


class RequestArrived(Fact):
    """A request was accepted into the run."""

    kind: Literal["request_arrived"] = "request_arrived"
    request: RequestId
    session: SessionId
    prompt: Ids
    history_tokens: int
    max_new: int
    sampling: Sampling
    stop: tuple[str, ...]
    eos: tuple[Token, ...]
    ignore_eos: bool
    draft: bool
    salt: str
    system_tokens: Later = 0
    rewind_tokens: Later = 0


class RequestRefused(Fact):
    """A request that can never be served, and by how much it is too large."""

    kind: Literal["request_refused"] = "request_refused"
    request: RequestId
    session: SessionId
    reason: str
    need: int
    have: int


class RequestCancelled(Fact):
    """Whoever asked is gone, or asked to stop."""

    kind: Literal["request_cancelled"] = "request_cancelled"
    request: RequestId
    why: str


class RequestFinished(Fact):
    """A stream's reply is complete: reason is stop, length, cancelled or fault."""

    kind: Literal["request_finished"] = "request_finished"
    stream: StreamId
    request: RequestId
    reason: str
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    token_sha: str


# --- streams and pages ---------------------------------------------------------------------------


class StreamQueued(Fact):
    """A request waits for a lane; choice is its index among the replies of that request."""

    kind: Literal["stream_queued"] = "stream_queued"
    stream: StreamId
    request: RequestId
    choice: int


class StreamWaits(Fact):
    """A queued stream lets others pass until stream `behind` keeps its mark, or will not."""

    kind: Literal["stream_waits"] = "stream_waits"
    stream: StreamId
    behind: StreamId
    mark: int


class StreamBegun(Fact):
    """A stream took a lane: its first `kept_pages` pages are a kept state's, `state` is resumed."""

    kind: Literal["stream_begun"] = "stream_begun"
    stream: StreamId
    lane: Lane
    kept_pages: int
    promise_pages: int
    marks: tuple[int, ...]
    owner: Rank
    state: StateId


class StreamReleased(Fact):
    """A stream left its lane."""

    kind: Literal["stream_released"] = "stream_released"
    stream: StreamId
    lane: Lane


class PagesLeased(Fact):
    """Free pages became pages `first`, `first + 1`, ... of a stream's table."""

    kind: Literal["pages_leased"] = "pages_leased"
    stream: StreamId
    first: int
    pages: tuple[PageId, ...]


class PagesAdopted(Fact):
    """Pages of a kept state became the head of a stream's table."""

    kind: Literal["pages_adopted"] = "pages_adopted"
    stream: StreamId
    pages: tuple[PageId, ...]


class PagesSwapped(Fact):
    """From page `first` on a stream uses a kept state's equal pages in place of its own."""

    kind: Literal["pages_swapped"] = "pages_swapped"
    stream: StreamId
    first: int
    pages: tuple[PageId, ...]


class PagesReturned(Fact):
    """A stream let go of its whole table, in table order."""

    kind: Literal["pages_returned"] = "pages_returned"
    stream: StreamId
    pages: tuple[PageId, ...]


# --- kept states ---------------------------------------------------------------------------------


class SnapshotTaken(Fact):
    """A stream's first `mark` rows are kept: by these pages and, where the family needs it, a copy.

    shared: the copy leaves the rows on pages out.  digest: the sums at the mark, by part.
    """

    kind: Literal["snapshot_taken"] = "snapshot_taken"
    state: StateId
    stream: StreamId
    mark: int
    shared: bool
    pages: tuple[PageId, ...]
    digest: dict[str, Sum]


class StateResumed(Fact):
    """A stream goes on from a kept state; digest is what was read back, by part."""

    kind: Literal["state_resumed"] = "state_resumed"
    stream: StreamId
    state: StateId
    mark: int
    digest: dict[str, Sum]


class ResumeRefused(Fact):
    """A rank could not resume; the stream begins again at row 0 with pages of its own."""

    kind: Literal["resume_refused"] = "resume_refused"
    stream: StreamId
    state: StateId
    rank: Rank
    why: str


class StateDropped(Fact):
    """A kept state is gone: evicted, moved_past, reclaimed, flushed or damaged; for a request."""

    kind: Literal["state_dropped"] = "state_dropped"
    state: StateId
    why: str
    request: RequestId


# --- compute -------------------------------------------------------------------------------------


class PromptStepRun(Fact):
    """Rows `first` to `first + rows - 1` of a stream are computed in this step."""

    kind: Literal["prompt_step_run"] = "prompt_step_run"
    stream: StreamId
    first: int
    rows: int


class RoundRun(Fact):
    """The streams in these lanes each run one window: the pending token and their drafts."""

    kind: Literal["round_run"] = "round_run"
    lanes: tuple[Lane, ...]


class RowsKept(Fact):
    """Tokens that a step's streams keep: stream i gets tokens[starts[i]:starts[i + 1]]."""

    kind: Literal["rows_kept"] = "rows_kept"
    streams: tuple[StreamId, ...]
    starts: tuple[int, ...]
    tokens: tuple[Token, ...]


# --- checks --------------------------------------------------------------------------------------


class StepClosed(Fact):
    """A step's outcome is complete: sums by stream and part, the book's digest, faulty streams."""

    kind: Literal["step_closed"] = "step_closed"
    step: int
    digests: Digests
    book: Sum
    flagged: tuple[StreamId, ...]


class RanksParted(Fact):
    """Ranks hold different values of a replicated part; blobs name each rank's bytes of a row."""

    kind: Literal["ranks_parted"] = "ranks_parted"
    step: int
    part: str
    stream: StreamId
    ranks: tuple[Rank, ...]
    values: tuple[Sum, ...]
    layer: int
    position: int
    blobs: tuple[str, ...]


class SumsBroken(Fact):
    """A rank's memory no longer sums to its running digest (law I11)."""

    kind: Literal["sums_broken"] = "sums_broken"
    step: int
    rank: Rank
    stream: StreamId
    part: str
    kept: Sum
    found: Sum


class PoisonRead(Fact):
    """A poisoned value entered a sum: the first one of the step, by cache, table page and row."""

    kind: Literal["poison_read"] = "poison_read"
    step: int
    rank: Rank
    stream: StreamId
    layer: int
    position: int


class FaultInjected(Fact):
    """One bit of a rank's memory was flipped on purpose, before this step computes."""

    kind: Literal["fault_injected"] = "fault_injected"
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


AnyFact = (
    RunOpened
    | RunClosed
    | RequestArrived
    | RequestRefused
    | RequestCancelled
    | RequestFinished
    | StreamQueued
    | StreamWaits
    | StreamBegun
    | StreamReleased
    | PagesLeased
    | PagesAdopted
    | PagesSwapped
    | PagesReturned
    | SnapshotTaken
    | StateResumed
    | ResumeRefused
    | StateDropped
    | PromptStepRun
    | RoundRun
    | RowsKept
    | StepClosed
    | RanksParted
    | SumsBroken
    | PoisonRead
    | FaultInjected
)

RESERVED = frozenset({"state_image"})  # opens a segment once tapes rotate; no build writes it yet
