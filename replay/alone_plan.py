"""What one session needs of a tape: its facts in their order, free of other sessions' places.

Streams are numbered anew; lanes and pages are left to whoever plays the plan. A state that was
resumed becomes rows to compute, so nothing that other sessions did can reach them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..core.apply import apply
from ..core.state import Phase, open_state
from ..events import facts as f
from ..events.facts import AnyFact, RunOpened
from ..events.ids import NO_STATE, Lane, Rank, RequestId, StreamId, Token
from ..events.reader import Step
from .difference import Difference
from .rerun import numbered, tokens_by_stream

Picks = Callable[[f.RequestArrived], bool]


@dataclass(frozen=True, slots=True)
class Window:
    """A round of these streams, by their numbers alone; lanes are known when it runs."""

    streams: tuple[StreamId, ...]


@dataclass(frozen=True, slots=True)
class Inherited:
    """Rows [0, mark) that a stream took over, and what the tape says that they sum to.

    taken: when the state was kept, empty if it was resumed at another mark.  read: at the resume.
    """

    stream: StreamId
    mark: int
    at: Difference
    taken: dict[str, str]
    read: dict[str, str]


@dataclass(frozen=True, slots=True)
class Expected:
    """What the tape says of a stream after a step: the tokens it was given, its sums."""

    stream: StreamId
    at: Difference
    tokens: tuple[int, ...]
    sums: dict[str, str]


@dataclass(slots=True)
class AloneTurn:
    """A turn of the tape, seen by the session: rows to rebuild, outcomes to expect, facts to do."""

    step: int
    inherited: list[Inherited] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)
    facts: list[AnyFact | Window] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Plan:
    """A session's turns, and settings with as many lanes and pages as it ever needs at once."""

    opened: RunOpened
    turns: list[AloneTurn]


def plan_alone(
    opened: RunOpened, steps: Iterable[Step], picks: Picks, *, with_faults: bool = False
) -> Plan:
    """Read a session's part of a tape; `picks` says which requests are of it."""
    reading = _Reading(opened, picks, with_faults)
    for step in steps:
        reading.read(step)
    room = {"lanes": max(reading.most_lanes, 1), "pages": max(reading.most_pages, 1), "states": 0}
    return Plan(opened.model_copy(update=room), reading.turns)


class _Reading:
    """Folds the whole tape and writes down what concerns the session."""

    def __init__(self, opened: RunOpened, picks: Picks, with_faults: bool) -> None:
        self.turns: list[AloneTurn] = []
        self.most_lanes = self.most_pages = 0
        self._state = open_state(opened, leader=False)
        self._picks = picks
        self._with_faults = with_faults
        self._number: dict[StreamId, StreamId] = {}
        self._picked = False  # the request that is about to be queued
        self._requests: set[RequestId] = set()
        self._seated: dict[StreamId, int] = {}  # of ours, with the pages each may come to hold
        self._taken: dict[int, f.SnapshotTaken] = {}

    def read(self, step: Step) -> None:
        turn = AloneTurn(step.step)
        tokens: dict[int, tuple[int, ...]] = {}
        for seq, fact in numbered(step):
            if isinstance(fact, f.RoundRun):
                self._round(fact, turn)
            apply(self._state, fact)
            if isinstance(fact, f.RowsKept):
                tokens = tokens_by_stream(fact)
                self._kept(fact, turn)
            elif isinstance(fact, f.StepClosed):
                self._closed(seq, fact, tokens, turn)
            elif isinstance(fact, f.StateResumed) and fact.stream in self._number:
                self._resumed(step.step, seq, fact, turn)
            elif isinstance(fact, f.SnapshotTaken):
                self._taken[fact.state] = fact
            else:
                self._other(fact, turn)
        if turn.facts or turn.expected or turn.inherited:
            self.turns.append(turn)

    def _other(self, fact: AnyFact, turn: AloneTurn) -> None:
        match fact:
            case f.RequestArrived():
                self._picked = self._picks(fact)
                if self._picked:
                    self._requests.add(fact.request)
                    turn.facts.append(fact)
            case f.StreamQueued():
                if self._picked:
                    self._number[fact.stream] = StreamId(len(self._number))
                    turn.facts.append(self._renumbered(fact))
            case f.StreamBegun():
                self._begun(fact, turn)
            case f.RequestCancelled():
                if fact.request in self._requests:
                    turn.facts.append(fact)
            case f.FaultInjected():
                if self._with_faults and fact.stream in self._number:
                    turn.facts.append(self._renumbered(fact))
            case f.PromptStepRun() | f.RequestFinished() | f.PagesReturned() | f.StreamReleased():
                self._own(fact, turn)
            case _:
                pass  # other streams' pages, kept states, checks: nothing of these is ours

    def _own(
        self,
        fact: f.PromptStepRun | f.RequestFinished | f.PagesReturned | f.StreamReleased,
        turn: AloneTurn,
    ) -> None:
        if fact.stream not in self._number:
            return
        if isinstance(fact, f.PagesReturned) and not self._finished(turn, fact.stream):
            return  # of a refused resume: alone it never resumed, and keeps its pages
        turn.facts.append(self._renumbered(fact))
        if isinstance(fact, f.StreamReleased):
            self._seated.pop(fact.stream, None)

    def _finished(self, turn: AloneTurn, stream: StreamId) -> bool:
        number = self._number[stream]
        return any(
            isinstance(one, f.RequestFinished) and one.stream == number for one in turn.facts
        )

    def _begun(self, fact: f.StreamBegun, turn: AloneTurn) -> None:
        """A stream that begins again after a refused resume is in its lane already."""
        if fact.stream not in self._number or fact.stream in self._seated:
            return
        stream = self._state.streams[fact.stream]
        rules = self._state.opened.rules
        rows = stream.prompt_tokens + stream.request.max_new + rules.drafts
        self._seated[fact.stream] = -(-rows // rules.page_rows)
        self.most_lanes = max(self.most_lanes, len(self._seated))
        self.most_pages = max(self.most_pages, sum(self._seated.values()))
        turn.facts.append(
            f.StreamBegun(
                stream=self._number[fact.stream],
                lane=Lane(0),
                kept_pages=0,
                promise_pages=self._seated[fact.stream],
                marks=(),
                owner=Rank(0),
                state=NO_STATE,
            )
        )

    def _round(self, fact: f.RoundRun, turn: AloneTurn) -> None:
        streams = (self._state.in_lane(lane).stream for lane in fact.lanes)
        ours = tuple(self._number[stream] for stream in streams if stream in self._number)
        if ours:
            turn.facts.append(Window(ours))

    def _kept(self, fact: f.RowsKept, turn: AloneTurn) -> None:
        starts: list[int] = [0]
        tokens: list[Token] = []
        streams: list[StreamId] = []
        for stream, given in tokens_by_stream(fact).items():
            if StreamId(stream) in self._number:
                streams.append(self._number[StreamId(stream)])
                tokens.extend(Token(token) for token in given)
                starts.append(len(tokens))
        if streams:
            kept = f.RowsKept(streams=tuple(streams), starts=tuple(starts), tokens=tuple(tokens))
            turn.facts.append(kept)

    def _closed(
        self, seq: int, fact: f.StepClosed, tokens: dict[int, tuple[int, ...]], turn: AloneTurn
    ) -> None:
        for stream, number in self._number.items():
            named = stream in fact.digests.streams
            if stream not in self._state.streams or not (named or stream in tokens):
                continue
            held = self._state.streams[stream]
            if held.phase is Phase.RESUMING:
                continue  # what it read back stands in the answer to its resume
            at = Difference(
                fact.step, seq, "", stream, position=held.rows, session=held.request.session
            )
            sums = fact.digests.of(stream) if named else {}
            turn.expected.append(Expected(number, at, tokens.get(stream, ()), sums))

    def _resumed(self, step: int, seq: int, fact: f.StateResumed, turn: AloneTurn) -> None:
        taken = self._taken.get(fact.state)
        whole = taken is not None and taken.mark == fact.mark
        session = self._state.streams[fact.stream].request.session
        at = Difference(step, seq, "", fact.stream, position=fact.mark, session=session)
        turn.inherited.append(
            Inherited(
                self._number[fact.stream],
                fact.mark,
                at,
                dict(taken.digest) if taken is not None and whole else {},
                dict(fact.digest),
            )
        )

    def _renumbered(self, fact: AnyFact) -> AnyFact:
        stream: StreamId = fact.stream  # type: ignore[union-attr]
        return fact.model_copy(update={"stream": self._number[stream]})
