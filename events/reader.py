"""The reader: what a tape holds, step by step, without changing a byte of it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import sqlalchemy as sa

from .canon import fill_outcome
from .chain import FACT, GENESIS
from .commands import AnyCommand, DeviceDone
from .errors import BrokenRecord, TapeError
from .facts import AnyFact, RequestArrived, RunClosed, RunOpened, StepClosed, StreamQueued
from .files import check_readable
from .ids import RequestId, SessionId, StreamId
from .schema import (
    BLOBS,
    DIGESTS,
    EVENTS,
    RUNS,
    TIMES,
    check_format,
    reading_engine,
    told,
)
from .seal import Seal, read_seal
from .stored import SEQ_MAX, StoredRow, content_of, stored_rows


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a tape; stream and session are None for commands and for facts of many streams."""

    seq: int
    step: int
    record: AnyCommand | AnyFact
    is_fact: bool
    stream: StreamId | None
    session: SessionId | None


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the loop: commands, and the facts that followed; their rows begin at `first`."""

    step: int
    first: int
    commands: tuple[AnyCommand, ...]
    facts: tuple[AnyFact, ...]

    @property
    def command_seqs(self) -> range:
        """The `seq` of each command."""
        return range(self.first, self.first + len(self.commands))

    @property
    def fact_seqs(self) -> range:
        """The `seq` of each fact."""
        start = self.first + len(self.commands)
        return range(start, start + len(self.facts))

    def filled(self) -> tuple[AnyCommand, ...]:
        """The commands as they were given: outcomes with the sums of their step's `StepClosed`."""
        closed = {fact.step: fact for fact in self.facts if isinstance(fact, StepClosed)}
        return tuple(
            fill_outcome(command, closed[command.step])
            if isinstance(command, DeviceDone) and command.step in closed
            else command
            for command in self.commands
        )


@dataclass(frozen=True, slots=True)
class SessionOnTape:
    """What a tape holds of a session; `first` and `last` are the `seq` of its facts."""

    session: SessionId
    requests: tuple[RequestId, ...]
    streams: tuple[StreamId, ...]
    first: int
    last: int


class DigestRow(NamedTuple):
    """One sum after a step; the book's has no stream."""

    seq: int
    step: int
    stream: StreamId | None
    part: str
    value: str


class TimesRow(NamedTuple):
    """Clocks of the append that begins at `seq`, in nanoseconds."""

    seq: int
    step: int
    wall_ns: int
    mono_ns: int
    device_ns: int


class Tape:
    """One run of a tape, open for reading; `Tape.open` makes one."""

    def __init__(self, path: Path, engine: sa.Engine) -> None:
        self.path = path
        self.run = 0
        self._engine = engine
        self._connection = engine.connect()

    @classmethod
    def open(cls, path: str | Path, run: int | None = None) -> Self:
        """Open a run (the last, unless named) of a tape that is closed, crashed or being written.

        Raises TapeError, which says what is wrong, where, and with which code a command ends.
        """
        path = Path(path)
        check_readable(path)
        with told(path):
            tape = cls(path, reading_engine(path))
            try:
                check_format(path, tape._connection)
                tape._choose(run)
            except BaseException:
                tape.close()
                raise
        return tape

    def _choose(self, run: int | None) -> None:
        if not self.runs:
            raise TapeError(f"{self.path} holds no run")
        if run is not None and run not in self.runs:
            listed = ", ".join(map(str, self.runs))
            raise TapeError(f"{self.path} holds no run {run}, but {listed}")
        self.run = self.runs[-1] if run is None else run
        assert self.opened.kind == "run_opened"

    @cached_property
    def runs(self) -> tuple[int, ...]:
        """The runs of the file, ascending."""
        with told(self.path):
            return tuple(self._connection.scalars(sa.select(RUNS.c.run).order_by(RUNS.c.run)))

    @cached_property
    def opened(self) -> RunOpened:
        """Under which settings the run began."""
        first = self.at(0).record
        if not isinstance(first, RunOpened):
            raise BrokenRecord(f"{self.path}: run {self.run} begins with {first.kind}")
        return first

    @property
    def hints(self) -> dict[str, str]:
        """What helps to find things again, such as the place of the weights; outside the chain."""
        with told(self.path):
            text = self._connection.scalar(sa.select(RUNS.c.hints).where(RUNS.c.run == self.run))
        try:
            return {str(name): str(value) for name, value in json.loads(str(text)).items()}
        except (ValueError, AttributeError):
            raise BrokenRecord(f"{self.path}: the hints of run {self.run} are no map") from None

    @property
    def closed(self) -> RunClosed | None:
        """How the run ended; None while it goes on, or when it crashed."""
        last = self.at(self.last_seq).record
        return last if isinstance(last, RunClosed) else None

    @property
    def last_seq(self) -> int:
        """The `seq` of the last fact."""
        with told(self.path):
            newest = sa.select(sa.func.max(EVENTS.c.seq)).where(EVENTS.c.run == self.run)
            return int(self._connection.scalar(newest) or 0)

    @property
    def seal(self) -> Seal:
        """Whether the file's bytes are those it was closed with; reads all of it."""
        return read_seal(self.path)

    def entries(self, first: int = 0, last: int = SEQ_MAX) -> Iterator[Entry]:
        """Commands and facts with `first <= seq <= last`, in order."""
        return self._walk(first, last, facts_only=False)

    def facts(self, first: int = 0, last: int = SEQ_MAX) -> Iterator[tuple[int, AnyFact]]:
        """The facts among them, each with its `seq`."""
        for entry in self._walk(first, last, facts_only=True):
            yield entry.seq, entry.record  # type: ignore[misc]

    def _walk(self, first: int, last: int, *, facts_only: bool) -> Iterator[Entry]:
        """Rows in order; each is checked against the one before it, from the walk's second on."""
        chain = GENESIS if first <= 0 else None
        with told(self.path):
            for row in stored_rows(self._connection, self.run, first, last):
                entry = self._entry(row) if row.side == FACT or not facts_only else None
                if chain is not None and row.link(chain, self.run) != row.chain:
                    where = f"{self.path}: run {self.run}, row {row.seq}"
                    raise BrokenRecord(f"{where}: it is not what was chained to the row before it")
                chain = row.chain if isinstance(row.chain, bytes) else b""
                if entry is not None:
                    yield entry

    def at(self, seq: int) -> Entry:
        """One row by its number."""
        for entry in self.entries(seq, seq):
            return entry
        raise TapeError(f"{self.path}: run {self.run} has no row {seq}")

    def steps(self, first: int = 0, last: int = SEQ_MAX) -> Iterator[Step]:
        """The turns of the loop after `RunOpened`, in order; only rows `first` to `last` count."""
        turn: list[Entry] = []
        first = max(first, 1)
        for entry in self.entries(first - 1, last):  # so that the first of them is checked as well
            if entry.seq < first:
                continue
            if turn and (entry.step != turn[0].step or (turn[-1].is_fact and not entry.is_fact)):
                yield _step(turn)
                turn = []
            turn.append(entry)
        if turn:
            yield _step(turn)

    def sessions(self) -> list[SessionOnTape]:
        """The sessions of the run, in the order they came."""
        requests: dict[SessionId, list[RequestId]] = {}
        streams: dict[SessionId, list[StreamId]] = {}
        spans: dict[SessionId, tuple[int, int]] = {}
        with told(self.path):
            rows = self._connection.execute(
                sa.select(EVENTS.c.session, EVENTS.c.seq, EVENTS.c.kind)
                .where(EVENTS.c.run == self.run, EVENTS.c.session.is_not(None))
                .order_by(EVENTS.c.seq)
            )
            for session, seq, kind in rows:
                spans[session] = (spans.get(session, (seq, seq))[0], seq)
                if kind in ("request_arrived", "stream_queued"):
                    match self.at(seq).record:
                        case RequestArrived() as arrived:
                            requests.setdefault(session, []).append(arrived.request)
                        case StreamQueued() as queued:
                            streams.setdefault(session, []).append(queued.stream)
                        case _:
                            pass
        return [
            SessionOnTape(
                session, tuple(requests.get(session, ())), tuple(streams.get(session, ())), *span
            )
            for session, span in spans.items()
        ]

    def digests(self) -> Iterator[DigestRow]:
        """Every sum of every closed step, in order: the index, read without the records."""
        names = [DIGESTS.c[name] for name in DigestRow._fields]
        with told(self.path):
            wanted = sa.select(*names).where(DIGESTS.c.run == self.run).order_by(DIGESTS.c.seq)
            for row in self._connection.execute(wanted):
                yield DigestRow(*row)

    def times(self) -> Iterator[TimesRow]:
        """The clocks of every append that has some, in order."""
        names = [TIMES.c[name] for name in TimesRow._fields]
        with told(self.path):
            wanted = sa.select(*names).where(TIMES.c.run == self.run).order_by(TIMES.c.seq)
            for row in self._connection.execute(wanted):
                yield TimesRow(*row)

    def content(self, name: str) -> bytes:
        """The bytes of a content row (token ids as int32 little-endian); KeyError when missing."""
        with told(self.path):
            return content_of(self._connection, name)

    def blob(self, name: str) -> bytes:
        """Bytes that a record names, as a rank's row where ranks parted; KeyError when missing."""
        with told(self.path):
            return content_of(self._connection, name, BLOBS)

    def _entry(self, row: StoredRow) -> Entry:
        try:
            record = row.decode(self.content)
        except BrokenRecord as error:
            raise BrokenRecord(f"{self.path}: run {self.run}, row {row.seq}: {error}") from None
        return Entry(row.seq, row.step, record, row.side == FACT, row.stream, row.session)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _step(turn: list[Entry]) -> Step:
    commands = [entry.record for entry in turn if not entry.is_fact]
    facts = [entry.record for entry in turn if entry.is_fact]
    return Step(turn[0].step, turn[0].seq, tuple(commands), tuple(facts))  # type: ignore[arg-type]
