"""State: what the engine knows. Plain values, changed only by `apply`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ..events.facts import RequestArrived, RunOpened
from ..events.ids import NO_STATE, Lane, PageId, RequestId, StateId, StreamId, Token
from .evict import policy_of
from .pages import PageBook
from .tree import PromptTree

NO_LANE, NO_STREAM = Lane(-1), StreamId(-1)
RADIX, FLAT = 0, 1  # flag `store` of a run: where kept states stand


class Phase(StrEnum):
    """Where a stream is in its life."""

    QUEUED = "queued"
    RESUMING = "resuming"  # in a lane, waiting for the ranks to answer
    PROMPTING = "prompting"
    DECODING = "decoding"
    FINISHED = "finished"  # still in its lane, its reply complete


@dataclass(slots=True)
class Stream:
    """A conversation in flight.

    tokens: prompt and accepted reply ids.  rows: kept rows, `len(tokens) - 1` once decoding.
    promise: pages it may still lease.  marks: where states are still to be kept, ascending.
    behind, awaited: in the queue, whose mark it waits for, and at which row that stands.
    """

    stream: StreamId
    request: RequestArrived
    choice: int
    phase: Phase = Phase.QUEUED
    lane: Lane = NO_LANE
    tokens: list[int] = field(default_factory=list)
    rows: int = 0
    pages: int = 0
    kept_pages: int = 0
    promise: int = 0
    marks: list[int] = field(default_factory=list)
    state: StateId = NO_STATE
    behind: StreamId = NO_STREAM
    awaited: int = 0
    cached: int = 0
    sums: Mapping[str, str] = field(default_factory=dict)
    _told: NDArray[np.int32] | None = field(default=None, repr=False, compare=False)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def new_tokens(self) -> int:
        """Tokens of the reply so far."""
        return len(self.tokens) - len(self.request.prompt)

    def told(self, count: int) -> NDArray[np.int32]:
        """The first tokens, at most `count`, as an array; of the prompt it is made once."""
        if count > len(self.request.prompt):
            return np.array(self.tokens[:count], np.int32)
        if self._told is None:
            self._told = np.array(self.request.prompt, np.int32)
        return self._told[:count]


@dataclass(slots=True)
class KeptState:
    """The first `mark` rows of a stream that was, ready to be resumed.

    by: that stream.  common: it ends where others' prompts may part from its own.
    last: the last prompt that used it, where a family asks for that.
    """

    state: StateId
    mark: int
    pages: tuple[PageId, ...]
    tokens: tuple[int, ...]  # mark + lookahead of them
    salt: str
    used: int  # the clock of its last use
    hit: bool
    digest: dict[str, str]
    by: StreamId = NO_STREAM
    common: bool = False
    last: tuple[Token, ...] = ()


@dataclass(slots=True)
class State:
    """Everything `decide` may read: the book, the streams, the kept states.

    tables [lanes, table_pages] int32: page ids by lane; the tail points at the reserved page
    for reads.
    """

    opened: RunOpened
    book: PageBook
    tables: NDArray[np.int32]
    tree: PromptTree | None  # rank 0 alone holds one, for the radix store
    step: int = 0
    clock: int = 0
    next_stream: int = 0
    next_state: int = 0
    lanes: list[StreamId | None] = field(default_factory=list)
    queue: list[StreamId] = field(default_factory=list)
    streams: dict[StreamId, Stream] = field(default_factory=dict)
    requests: dict[RequestId, StreamId] = field(default_factory=dict)
    kept: dict[StateId, KeptState] = field(default_factory=dict)
    resuming: dict[StreamId, StateId] = field(default_factory=dict)  # what ranks are reading back
    arrived: RequestArrived | None = None  # between its arrival and its place in the queue
    closed: bool = False

    def in_lane(self, lane: Lane) -> Stream:
        """The stream seated in a lane."""
        stream = self.lanes[lane]
        assert stream is not None, f"lane {lane} is empty"
        return self.streams[stream]

    def table(self, stream: Stream) -> list[PageId]:
        """The page ids of a seated stream, in row order."""
        pages: list[PageId] = self.tables[stream.lane, : stream.pages].tolist()
        return pages


def table_pages(context: int, page_rows: int) -> int:
    """Entries of a lane's table: the context's pages and one for rows past it."""
    return -(-context // page_rows) + 1


def store_flag(opened: RunOpened) -> int:
    """Which store a run keeps its states in."""
    return opened.flags.get("store", RADIX)


def flagged(opened: RunOpened, behaviour: str) -> bool:
    """Whether a run decides by a behaviour that older runs did not have."""
    return bool(opened.flags.get(behaviour, 0))


def open_state(opened: RunOpened, *, leader: bool = True) -> State:
    """The state of a run before its first event; followers hold no prompt tree."""
    rules, width = opened.rules, table_pages(opened.context, opened.rules.page_rows)
    return State(
        opened=opened,
        book=PageBook(opened.pages, opened.order),
        tables=np.full((opened.lanes, width), opened.pages, np.int32),
        tree=PromptTree(rules.page_rows, rules.lookahead, opened.pages, policy_of(opened))
        if leader and store_flag(opened) == RADIX
        else None,
        lanes=[None] * opened.lanes,
    )
