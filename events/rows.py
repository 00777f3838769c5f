"""Commands and facts as the rows of a tape: numbered, owned by a stream and session, chained."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from .canon import encode
from .chain import COMMAND, FACT, GENESIS, link
from .commands import AnyCommand
from .facts import (
    AnyFact,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    StreamBegun,
    StreamQueued,
    StreamReleased,
)
from .ids import RequestId, SessionId, StreamId

# seq, run, step, kind, body, chain
CommandRow = tuple[int, int, int, str, str, bytes]
# seq, run, step, kind, stream, session, body, chain
EventRow = tuple[int, int, int, str, int | None, str | None, str, bytes]


# By kind of fact: whether it names a stream, whether a request.
_NAMES = {
    model: ("stream" in model.model_fields, "request" in model.model_fields)
    for model in get_args(AnyFact)
}
_TELLING = frozenset({RequestArrived, StreamQueued, StreamBegun})  # who owns what from now on
_ENDING = frozenset({RequestFinished, StreamReleased})


@dataclass(slots=True)
class Rows:
    """What one append writes; content holds large fields by name."""

    commands: list[CommandRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    content: dict[str, bytes] = field(default_factory=dict)


class Owners:
    """Which stream and session a fact belongs to, as far as the facts before it tell.

    Requests and streams are forgotten when they end, so that a long run holds only what is open.
    """

    def __init__(self) -> None:
        self._sessions: dict[RequestId, SessionId] = {}
        self._requests: dict[StreamId, RequestId] = {}
        self._open: dict[RequestId, int] = {}  # streams not yet gone
        self._seated: set[StreamId] = set()

    def of(self, fact: AnyFact) -> tuple[int | None, str | None]:
        """The stream and session columns of a fact, each None where it has no single one."""
        kind = type(fact)
        names_stream, names_request = _NAMES[kind]
        if not names_stream and not names_request:
            return None, None
        if kind in _TELLING:
            self._learn(fact)
        stream: StreamId | None = getattr(fact, "stream", None) if names_stream else None
        request: RequestId | None = getattr(fact, "request", None) if names_request else None
        if request is None and stream is not None:
            request = self._requests.get(stream)
        session = self._sessions.get(request) if request is not None else None
        if kind in _ENDING:
            self._end(fact)
        return (None, fact.session) if isinstance(fact, RequestRefused) else (stream, session)

    def _learn(self, fact: AnyFact) -> None:
        match fact:
            case RequestArrived():
                self._sessions[fact.request] = fact.session
            case StreamQueued():
                self._requests[fact.stream] = fact.request
                self._open[fact.request] = self._open.get(fact.request, 0) + 1
            case StreamBegun():
                self._seated.add(fact.stream)
            case _:
                pass

    def _end(self, fact: AnyFact) -> None:
        match fact:
            case StreamReleased():
                self._seated.discard(fact.stream)
                self._forget(fact.stream)
            case RequestFinished() if fact.stream not in self._seated:
                self._forget(fact.stream)
            case _:
                pass

    def _forget(self, stream: StreamId) -> None:
        request = self._requests.pop(stream, None)
        if request is None:
            return
        self._open[request] -= 1
        if self._open[request] == 0:
            del self._open[request]
            self._sessions.pop(request, None)


class RowMaker:
    """Numbers and chains the rows of one run.

    `seq` counts commands and facts together, from 0 (the run's `RunOpened`) without a gap; one
    chain runs through both tables in that order.
    """

    def __init__(self, run: int) -> None:
        self.run = run
        self.seq = 0  # of the next row
        self.chain = GENESIS
        self._owners = Owners()

    def rows(self, step: int, commands: Sequence[AnyCommand], facts: Sequence[AnyFact]) -> Rows:
        """The rows of one append: its commands, then its facts."""
        rows, run, seq, chain = Rows(), self.run, self.seq, self.chain
        kind: str
        for command in commands:
            kind, body = command.kind, encode(command, rows.content)
            chain = link(chain, run, seq, step, COMMAND, None, kind.encode(), body)
            rows.commands.append((seq, run, step, kind, body.decode(), chain))
            seq += 1
        for fact in facts:
            kind, body = fact.kind, encode(fact, rows.content)
            stream, session = self._owners.of(fact)
            chain = link(chain, run, seq, step, FACT, stream, kind.encode(), body)
            rows.events.append((seq, run, step, kind, stream, session, body.decode(), chain))
            seq += 1
        self.seq, self.chain = seq, chain
        return rows
