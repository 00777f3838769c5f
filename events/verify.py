"""Whether a tape is what was written: chain, bytes, columns, content, schema and seal."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import sqlalchemy as sa

from .canon import content_name
from .chain import FACT, GENESIS
from .commands import AnyCommand
from .errors import BrokenRecord
from .facts import FORMAT, AnyFact, RunOpened
from .files import beside, check_readable
from .lock import being_written
from .rows import Owners
from .schema import (
    BLOBS,
    BY_SESSION,
    COMMANDS,
    CONTENT,
    DIGESTS_VIEW,
    EVENTS,
    META,
    RUNS,
    TIMES,
    check_format,
    dump_hints,
    reading_engine,
    told,
)
from .seal import Seal, read_seal
from .stored import StoredRow, content_of, stored_rows

Look = Callable[[StoredRow, AnyCommand | AnyFact], None]
Wrong = tuple[str, str]  # a finding's kind, and what it says

_NAMES_BLOBS = frozenset(
    model for model in (*get_args(AnyCommand), *get_args(AnyFact)) if "blobs" in model.model_fields
)


class Finding(NamedTuple):
    """One thing that is not as it was written.

    kind: seal, store, schema, run, order, body, column, chain, content, blob or times.
    where: the run and row, or the table and digest.  says: what was found and what belongs there.
    """

    kind: str
    where: str
    says: str


def verify(path: str | Path) -> list[Finding]:
    """Every edit that changes what a reader returns; raises TapeError where nothing can be read.

    A tape closed in order is judged by its seal as well, a crashed one by its rows alone.
    """
    return list(find(path))


def find(path: str | Path, look: Look = lambda row, record: None) -> Iterator[Finding]:
    """The findings of `verify`, as they come; look: is shown each record that could be read."""
    path = Path(path)
    check_readable(path)
    with told(path):
        engine = reading_engine(path)
        try:
            with engine.connect() as connection:
                check_format(path, connection)
                yield from _store(connection)
                yield from _schema(connection)
                audit = _Audit(connection, look)
                yield from audit.runs()
                yield from audit.kept()
        finally:
            engine.dispose()
    yield from _seal(path, audit.closed)


def _seal(path: Path, closed: bool) -> Iterator[Finding]:
    match read_seal(path):
        case Seal.BROKEN:
            yield Finding("seal", path.name, "the file's bytes changed since it was closed")
        case Seal.NONE if closed and not being_written(path):
            says = "the run was closed in order, but its seal is gone"
            if beside(path, "-wal").exists():
                says = "the run was closed in order, but whoever read it then kept it from its seal"
            yield Finding("seal", path.name, says)
        case _:
            pass


def _store(connection: sa.Connection) -> Iterator[Finding]:
    """What SQLite itself says of its pages and indexes."""
    for said in connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars():
        if said != "ok":
            yield Finding("store", "file", str(said))


def _schema(connection: sa.Connection) -> Iterator[Finding]:
    """Whether tables, view and index are ours, and nothing beside them changes what they hold."""
    found = {
        name: (kind, sql)
        for kind, name, sql in connection.exec_driver_sql(
            "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        )
    }
    known = {table.name: "table" for table in META.sorted_tables}
    known |= {"digests": "view", str(BY_SESSION.name): "index"}
    for name, (kind, sql) in found.items():
        if known.get(name) != kind:
            yield Finding("schema", name, f"a {kind} that no tape has")
        elif kind == "view" and sql != DIGESTS_VIEW:
            yield Finding("schema", name, "the index of sums is not made as it should be")
    for name, kind in known.items():
        if name not in found:
            yield Finding("schema", name, f"the {kind} is missing")
    for table in META.sorted_tables:
        rows = connection.exec_driver_sql(f"PRAGMA table_xinfo({table.name})")
        columns = [(row.name, row.hidden) for row in rows]
        if columns != [(column.name, 0) for column in table.columns]:
            listed = ", ".join(str(name) for name, _ in columns)
            yield Finding("schema", table.name, f"its columns are {listed}")


class _Audit:
    """Walks the rows of every run and keeps in mind which content and blobs they name."""

    def __init__(self, connection: sa.Connection, look: Look) -> None:
        self.closed = False  # the last run ended in order
        self._look = look
        self._connection = connection
        self._content: set[str] = set()
        self._blobs: set[str] = set()
        self._last = "", b""  # the content that was asked for last, and its name

    def runs(self) -> Iterator[Finding]:
        """What is wrong with runs and their rows."""
        listed = self._connection.execute(sa.select(RUNS).order_by(RUNS.c.run)).all()
        numbers = [row.run for row in listed]
        if not numbers:
            yield Finding("run", "runs", "no run is listed")
        elif numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            yield Finding("run", "runs", f"the runs {numbers} leave some out")
        for table in (COMMANDS, EVENTS, TIMES):
            for run in self._connection.scalars(sa.select(table.c.run).distinct()):
                if run not in numbers:
                    yield Finding("run", table.name, f"rows of run {run!r:.40}, not listed in runs")
        for row in listed:
            yield from self._hints(row)
            yield from self._rows(row)
            yield from self._times(row.run)

    def _hints(self, listed: Any) -> Iterator[Finding]:
        if listed.format != FORMAT:
            yield Finding("run", f"run {listed.run}", f"its format is {listed.format!r:.40}")
        try:
            whole = dump_hints(json.loads(listed.hints)) == listed.hints
        except (ValueError, TypeError, AttributeError):
            whole = False
        if not whole:
            yield Finding("run", f"run {listed.run}", f"its hints are {listed.hints!r:.60}")

    def _rows(self, listed: Any) -> Iterator[Finding]:
        walk = _Walk(listed.run)
        for row in stored_rows(self._connection, listed.run):
            wrong = walk.place(row)
            try:
                record = row.decode(self._resolve)
            except BrokenRecord as error:
                kind = "content" if "content row" in str(error) else "body"
                wrong.append((kind, str(error)))
            else:
                if type(record) in _NAMES_BLOBS:
                    self._blobs.update(record.blobs)  # type: ignore[union-attr]
                wrong += walk.own(row, record)
                self._look(row, record)
            for kind, says in wrong:
                yield Finding(kind, f"run {listed.run}, row {row.seq!r:.40}", says)
        where = f"run {listed.run}"
        yield from (Finding("run", where, says) for says in walk.end(listed.rows, listed.chain))
        self.closed = walk.last == "run_closed"

    def _resolve(self, name: str) -> bytes:
        if name != self._last[0]:  # a wish and its fact name the same
            self._content.add(name)
            self._last = name, content_of(self._connection, name)
        return self._last[1]

    def _times(self, run: int) -> Iterator[Finding]:
        """Clocks prove nothing, but each must belong to a row of the run."""
        rows = sa.union_all(
            *(sa.select(table.c.run, table.c.seq, table.c.step) for table in (COMMANDS, EVENTS))
        ).subquery()
        same = (rows.c.run == TIMES.c.run) & (rows.c.seq == TIMES.c.seq)
        wanted = sa.select(TIMES, rows.c.step.label("row_step")).outerjoin(rows, same)
        for row in self._connection.execute(wanted.where(TIMES.c.run == run)):
            where = f"run {run}, times of row {row.seq!r:.40}"
            if row.step != row.row_step:
                yield Finding("times", where, f"step {row.step!r:.40}, the row's is {row.row_step}")
            if not all(isinstance(ns, int) for ns in (row.wall_ns, row.mono_ns, row.device_ns)):
                yield Finding("times", where, "a clock that is no integer")

    def kept(self) -> Iterator[Finding]:
        """What is wrong with content and blob rows, once all runs are walked."""
        for table, kind, needed in (
            (CONTENT, "content", self._content),
            (BLOBS, "blob", self._blobs),
        ):
            found = set()
            for name, data in self._connection.execute(sa.select(table)):
                found.add(name)
                where = f"{table.name} {name!r:.40}"
                if not isinstance(data, bytes) or content_name(data) != name:
                    yield Finding(kind, where, "its bytes are not those it is named by")
                elif name not in needed:
                    yield Finding(kind, where, "no record names it")
            for name in sorted(needed - found):
                yield Finding(kind, f"{table.name} {name!r:.40}", "it is missing")


class _Walk:
    """Follows one run row by row."""

    def __init__(self, run: int) -> None:
        self.last = ""  # the kind of the last row
        self._run = run
        self._chain = GENESIS
        self._next = 0
        self._step = 0
        self._owners = Owners()

    def place(self, row: StoredRow) -> list[Wrong]:
        """What is wrong with a row's number, step and link."""
        seq, step = row.seq, row.step
        if not isinstance(seq, int) or not isinstance(step, int):
            return [("column", f"seq {seq!r:.40} and step {step!r:.40} are no integers")]
        wrong: list[Wrong] = []
        if seq != self._next:
            wrong.append(("order", f"row {self._next} should stand here"))
        self._next = seq + 1
        if step < self._step:
            wrong.append(("order", f"step {step} after step {self._step}"))
        self._step = step
        if row.link(self._chain, self._run) != row.chain:
            wrong.append(("chain", "it is not what was chained to the row before it"))
        self._chain = row.chain if isinstance(row.chain, bytes) else bytes(32)
        return wrong

    def own(self, row: StoredRow, record: AnyCommand | AnyFact) -> list[Wrong]:
        """What is wrong with a row's columns and place, its record being readable."""
        wrong: list[Wrong] = []
        if self.last == "run_closed":
            wrong.append(("order", f"a {record.kind} after the run was closed"))
        if (type(record) is RunOpened) != (row.seq == 0):
            wrong.append(("order", f"a {record.kind} as row {row.seq}"))
        self.last = record.kind
        if row.side == FACT:
            found, owner = (row.stream, row.session), self._owners.of(cast(AnyFact, record))
            if found != owner:
                says = f"its stream and session are {found!r:.80}, they were {owner!r}"
                wrong.append(("column", says))
        return wrong

    def end(self, rows: Any, chain: Any) -> Iterator[str]:
        """What is wrong with a run as a whole."""
        if self._next == 0:
            yield "it has no rows"
        if (rows, chain) == (None, None):
            return
        if rows != self._next:
            yield f"it was closed with {rows!r:.40} rows, and holds {self._next}"
        if chain != self._chain:
            yield "its last link is not the one it was closed with"
