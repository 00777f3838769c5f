"""What the door asks of a running engine, and what an engine tells of a request."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from ...events.commands import Arrive
from ...events.ids import RequestId, StreamId, Token

# --- news of one request, in their order; none is told before its facts are durable ---------------


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is in the run. May be left out: the first tokens say so as well."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next reply ids, an end-of-turn id included."""

    ids: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The run will not serve the request; reason, need and have are RequestRefused's."""

    reason: str
    need: int = 0
    have: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The reply is complete: reason is stop, length, cancelled or fault; seq are event numbers.

    drafted, accepted: tokens that were drafted for it, and those of them that were kept.
    rounds: decode rounds it took.  miss: why its prompt was resumed no further, "" if it was
    resumed at its last possible mark.
    """

    reason: str
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    token_sha: str
    seq_first: int
    seq_last: int
    logits_digest: str
    stream: StreamId
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    miss: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The run itself ended before the reply did."""

    message: str


End = Refused | Finished | Failed
News = Accepted | Tokens | End


class Reply(Protocol):
    """The news of one request, read on the door's event loop; the last one is an End."""

    @property
    def ended(self) -> bool:
        """Whether the End is known, read or not."""
        ...

    def close(self) -> None:
        """Stop reading: the iteration ends, later news are dropped."""
        ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> News: ...


class QueueFull(Exception):
    """No room to wait in; the client may try again."""


class EngineClosed(Exception):
    """The run is over or ending."""


@dataclass(frozen=True, slots=True)
class Info:
    """What does not change while an engine runs; created in Unix seconds."""

    model: str
    model_digest: str
    contract: int
    context: int
    vocab: int
    lanes: int
    eos: tuple[Token, ...]
    created: int


@dataclass(frozen=True, slots=True)
class Health:
    """ok: requests are served. status: one word for people, such as ok, loading or parted."""

    ok: bool
    status: str


@dataclass(frozen=True, slots=True)
class Flushed:
    """Kept states that a flush dropped, those that streams are using, and pages that are free."""

    dropped: int
    kept: int
    pages_free: int


@dataclass(frozen=True, slots=True)
class Meters:
    """Counts since the run began, and levels of this moment.

    hits, misses: of the prompts that came into a lane, those that resumed a kept state and, by
    reason, those that did not.  missed_tokens: by reason, rows that a kept state could have held
    and none did, of hits too.  evicted, reclaimed: kept states that went to keep another, and to
    give a stream its pages.  not_kept: states that the store had no place for.  failed: kept states
    that the ranks could not read back.  pages_by_holder: each page once.  store_bytes: of copies.
    """

    requests_running: int = 0
    requests_waiting: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_drafts: int = 0
    cached_tokens: int = 0
    rounds: int = 0
    steps: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_held: int = 0  # by kept states
    kept_states: int = 0
    kept_states_max: int = 0
    store_bytes: int = 0
    store_bytes_max: int = 0
    hits: int = 0
    kept: int = 0
    evicted: int = 0
    reclaimed: int = 0
    not_kept: int = 0
    failed: int = 0
    refused: int = 0  # requests
    queue_age_seconds: float = 0.0
    misses: Mapping[str, int] = field(default_factory=dict)
    missed_tokens: Mapping[str, int] = field(default_factory=dict)
    pages_by_holder: Mapping[str, int] = field(default_factory=dict)

    @property
    def lookups(self) -> int:
        """Prompts that were looked for in the store."""
        return self.hits + sum(self.misses.values())


class Engine(Protocol):
    """A run that serves. The door calls every method on its event loop: none may wait.

    cancel and stop_matched never raise, whatever became of the request.
    """

    @property
    def info(self) -> Info:
        """What does not change while the engine runs."""
        ...

    def submit(self, arrive: Arrive) -> Reply:
        """Put a request to the run. Raises QueueFull or EngineClosed."""
        ...

    def cancel(self, request: RequestId, why: str) -> None:
        """Nobody waits for this reply any more."""
        ...

    def stop_matched(self, request: RequestId, tokens: int) -> None:
        """The text of the first `tokens` reply tokens holds a stop string."""
        ...

    async def flush(self) -> Flushed:
        """Drop every kept state that no stream is using; once durable, what became of them.

        Raises EngineClosed.
        """
        ...

    def health(self) -> Health:
        """Whether requests are served."""
        ...

    def meters(self) -> Meters:
        """The figures behind /metrics."""
        ...


# --- text: what a model with a tokenizer adds -----------------------------------------------------


class BadPrompt(Exception):
    """Text or messages that cannot become a prompt; the message says why."""


class Detokeniser(Protocol):
    """Turns one reply's ids into text as they come."""

    def push(self, token: int) -> str:
        """The text this id completes, empty while a character is unfinished."""
        ...

    def flush(self) -> str:
        """What is left at the end."""
        ...


class Rendered(NamedTuple):
    """ids: a prompt's.  history: how many of them stand before the coming reply.  thinking: the
    reply begins within `<think>`.  system, rewind: how many stand before the first message that is
    no system message, and before the user's latest one; 0 where that is not known."""

    ids: Sequence[int]
    history: int = 0
    thinking: bool = False
    system: int = 0
    rewind: int = 0


class TextSide(Protocol):
    """Tokenizer and chat template of the model; called from several threads at once."""

    def encode(self, text: str) -> Sequence[int]:
        """The ids of a whole prompt that is no chat. Raises BadPrompt."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> Rendered:
        """The prompt that asks for the next message of a chat.

        options: what else the chat template may ask for by name. Raises BadPrompt.
        """
        ...

    @property
    def tags(self) -> Mapping[str, bool]:
        """The tags that the vocabulary holds as one token each, and whether each can be text."""
        ...

    def detokeniser(self, shown: Collection[str] = ()) -> Detokeniser:
        """A fresh one for one reply; shown: tags whose text is given in any case."""
        ...
