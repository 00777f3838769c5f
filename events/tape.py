"""The writer: one transaction an append, durable before anyone is told of it."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from .canon import content_name
from .commands import AnyCommand
from .errors import TapeError
from .facts import FORMAT, AnyFact, RunClosed, RunOpened
from .files import check_readable, create_file, remove_files
from .lock import WriterLock
from .rows import RowMaker
from .schema import (
    BLOBS,
    COMMANDS,
    CONTENT,
    EVENTS,
    RUNS,
    TIMES,
    check_format,
    create_tables,
    dump_hints,
    one_file,
    reading_engine,
    told,
    writing_engine,
)
from .seal import seal, unseal

TIMES_TOGETHER, TIMES_NS = 32, 10**9  # clocks wait for so many appends, or so long, to be written


class Times(NamedTuple):
    """Clocks of one append, in nanoseconds: wall, monotonic, and how long the device computed.

    They prove nothing, so they may be written later: a crash loses those of the last few appends.
    """

    wall_ns: int
    mono_ns: int
    device_ns: int


class TapeWriter:
    """One run, being written; `TapeWriter.create` makes one.

    After an error nothing more is written: whoever goes on without a tape knows where it ends.
    Used by one thread at a time, not always the same, but for empty_log.
    """

    def __init__(self, path: Path, engine: sa.Engine, lock: WriterLock) -> None:
        self.path = path
        self.run = 0
        self.step = 0  # of the last append
        self.ended = False  # the run's RunClosed is on the tape
        self._engine = engine
        self._lock = lock
        self._connection = engine.connect()
        # Rows go through the driver's own cursor: the layers above it cost more than SQLite does.
        self._driver: Any = self._connection.connection.driver_connection
        assert self._driver is not None
        self._cursor: Any = self._driver.cursor()
        self._into = {
            table.name: str(statement.compile(engine))
            for table, statement in (
                (COMMANDS, insert(COMMANDS)),
                (EVENTS, insert(EVENTS)),
                (TIMES, insert(TIMES)),
                (CONTENT, insert(CONTENT).on_conflict_do_nothing()),
                (BLOBS, insert(BLOBS).on_conflict_do_nothing()),
            )
        }
        self._maker = RowMaker(0)
        self._blobs: dict[str, bytes] = {}
        self._times: list[tuple[int, ...]] = []  # not yet written
        self._waits_since = 0  # the monotonic clock of their first
        self._steps = 0
        self._dead = False

    @classmethod
    def create(
        cls,
        path: str | Path,
        opened: RunOpened,
        hints: Mapping[str, str] | None = None,
        *,
        append: bool = False,
        run: int | None = None,
        synchronous: str = "NORMAL",
    ) -> Self:
        """A tape with its run opened, as row 0; an existing file is refused unless `append`.

        A file that another writer holds is refused either way.

        hints: what helps to find things again (`weights`: a path), outside the chain.
        run: its number, otherwise the one after the last of the file.
        """
        path = Path(path)
        fresh = not (append and path.exists())
        if fresh:
            create_file(path)
        lock = WriterLock(path)
        try:
            if not fresh:
                _check_appendable(path)
            with told(path):
                writer = cls(path, writing_engine(path, synchronous), lock)
                writer._open(opened, dict(hints or {}), run, fresh=fresh)
        except BaseException:
            if fresh:
                remove_files(path)
            lock.release()
            raise
        return writer

    def _open(
        self, opened: RunOpened, hints: dict[str, str], run: int | None, *, fresh: bool
    ) -> None:
        try:
            self._connection.exec_driver_sql("BEGIN IMMEDIATE")
            if fresh:
                create_tables(self._connection)
            last = self._connection.execute(sa.select(sa.func.max(RUNS.c.run))).scalar() or 0
            self.run = last + 1 if run is None else run
            self._maker = RowMaker(self.run)
            self._connection.execute(
                sa.insert(RUNS).values(
                    run=self.run,
                    format=FORMAT,
                    hints=dump_hints(hints),
                )
            )
            self._write(0, (), (opened,), None)
            self._connection.commit()
        except BaseException:
            self.abandon()
            raise

    @property
    def seq(self) -> int:
        """The number that the next row gets."""
        return self._maker.seq

    def keep(self, blob: bytes) -> str:
        """Bytes that records of the next append name, or else are not kept; returns that name."""
        name = content_name(blob)
        self._blobs[name] = blob
        return name

    def append(
        self,
        step: int,
        commands: Sequence[AnyCommand],
        facts: Sequence[AnyFact],
        times: Times | None = None,
    ) -> range:
        """Make commands and their facts durable; returns the `seq` of the rows, commands first.

        step: that of the facts, never less than the last one's. For the reader, commands that come
        after facts begin a new turn even within a step; facts alone belong to the turn before them.
        """
        if self._dead:
            raise TapeError(f"{self.path} is no longer written: an earlier append failed")
        assert step >= self.step, f"step {step} after step {self.step}"
        assert not self.ended, "the run is closed, nothing can follow"
        first = self._maker.seq
        if not commands and not facts:
            return range(first, first)
        self._dead = True  # until all of it is durable
        try:
            with told(self.path):
                self._write(int(step), commands, facts, times)
                self._driver.commit()
        except BaseException:
            self.abandon()
            raise
        self._dead = False
        self.step = step
        self._steps += 1
        self.ended = RunClosed in map(type, facts)
        return range(first, self._maker.seq)

    def _write(
        self,
        step: int,
        commands: Sequence[AnyCommand],
        facts: Sequence[AnyFact],
        times: Times | None,
    ) -> None:
        first = self._maker.seq
        rows = self._maker.rows(step, commands, facts)
        many = self._cursor.executemany
        if rows.content:
            many(self._into["content"], list(rows.content.items()))
        if self._blobs:
            named = {name for one in (*commands, *facts) for name in getattr(one, "blobs", ())}
            blobs = [kept for kept in self._blobs.items() if kept[0] in named]
            if blobs:
                many(self._into["blobs"], blobs)
            self._blobs.clear()
        if rows.commands:
            many(self._into["commands"], rows.commands)
        if rows.events:
            many(self._into["events"], rows.events)
        if times is not None:
            waiting = self._times
            waiting.append((self.run, first, step, *map(int, times)))
            if len(waiting) == 1:
                self._waits_since = times.mono_ns
            if len(waiting) == TIMES_TOGETHER or times.mono_ns - self._waits_since >= TIMES_NS:
                self._write_times()

    def _write_times(self) -> None:
        if self._times:
            self._cursor.executemany(self._into["times"], self._times)
            self._times.clear()

    def empty_log(self) -> None:
        """Move what the log beside the file holds into it; may run beside an append, not a close.

        Nothing becomes more durable by it. What comes after it begins the log anew sooner.
        """
        with told(self.path), self._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").close()

    def close(self, reason: str = "closed", error: str = "") -> None:
        """End the run (`RunClosed`, unless it is on the tape), make one file of it, and seal it.

        error: what went wrong, in words.

        While others read the tape it cannot become one file: then TapeError says so, and the tape
        stays whole, but without a seal.
        """
        if not self.ended:
            ending = RunClosed(reason=reason, steps=self._steps, error=error)
            self.append(self.step + 1, (), (ending,))
        try:
            with told(self.path):
                self._write_times()
                self._connection.execute(
                    sa.update(RUNS)
                    .where(RUNS.c.run == self.run)
                    .values(rows=self._maker.seq, chain=self._maker.chain)
                )
                self._connection.commit()
                one_file(self._connection)
            self._let_go()
            seal(self.path)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the file: what was appended stays, the run stays open, no seal is put on."""
        if not self._dead and self._times:
            with suppress(sqlite3.Error):
                self._write_times()
                self._driver.commit()
        self._let_go()
        self._lock.release()

    def _let_go(self) -> None:
        self._dead = True
        if self._connection.closed:
            return
        self._cursor.close()
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
        if self._dead:
            return
        if error is None:
            self.close()
        else:
            self.abandon()


def _check_appendable(path: Path) -> None:
    """Refuse what is not a whole tape before a byte of it changes, then take its seal off."""
    check_readable(path)
    engine = reading_engine(path)
    try:
        with told(path), engine.connect() as connection:
            check_format(path, connection)
    finally:
        engine.dispose()
    unseal(path)
