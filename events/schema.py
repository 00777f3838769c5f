"""The tables of a tape, and all that is special about keeping them in SQLite."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from .errors import NotATape, TapeError, TornTape, WrongFormat
from .facts import FORMAT
from .files import beside
from .seal import Seal, read_seal

APPLICATION_ID = 0x6B767470  # "kvtp", in the header of every tape

META = sa.MetaData()


def _number(name: str, *, null: bool = False, key: bool = False) -> "sa.Column[int]":
    return sa.Column(name, sa.BigInteger, nullable=null, primary_key=key, autoincrement=False)


def _text(name: str, *, null: bool = False, key: bool = False) -> "sa.Column[str]":
    return sa.Column(name, sa.Text, nullable=null, primary_key=key)


def _bytes(name: str, *, null: bool = False) -> "sa.Column[bytes]":
    return sa.Column(name, sa.LargeBinary, nullable=null)


# hints: a JSON map outside the chain (where the weights lay).
# rows, chain: their number and the last link, of a run that was closed in order.
RUNS = sa.Table(
    "runs",
    META,
    _number("run", key=True),
    _number("format"),
    _text("hints"),
    _number("rows", null=True),
    _bytes("chain", null=True),
)

COMMANDS = sa.Table(
    "commands",
    META,
    _number("seq"),
    _number("run"),
    _number("step"),
    _text("kind"),
    _text("body"),
    _bytes("chain"),
    sa.PrimaryKeyConstraint("run", "seq"),
)

EVENTS = sa.Table(
    "events",
    META,
    _number("seq"),
    _number("run"),
    _number("step"),
    _text("kind"),
    _number("stream", null=True),
    _text("session", null=True),
    _text("body"),
    _bytes("chain"),
    sa.PrimaryKeyConstraint("run", "seq"),
)

BY_SESSION = sa.Index(
    "events_by_session",
    EVENTS.c.run,
    EVENTS.c.session,
    EVENTS.c.seq,
    sqlite_where=EVENTS.c.session.is_not(None),
    postgresql_where=EVENTS.c.session.is_not(None),
)

# Clocks of the append whose first row is `seq`: outside chain, digests and decisions.
TIMES = sa.Table(
    "times",
    META,
    _number("run", key=True),
    _number("seq", key=True),
    _number("step"),
    _number("wall_ns"),
    _number("mono_ns"),
    _number("device_ns"),
    sqlite_with_rowid=False,
)

CONTENT = sa.Table("content", META, _text("digest", key=True), _bytes("bytes"))
BLOBS = sa.Table("blobs", META, _text("digest", key=True), _bytes("bytes"))

# The index of sums is a view, so that it cannot disagree with the facts it is made of.
DIGESTS = sa.table(
    "digests",
    *(sa.column(name) for name in ("run", "seq", "step", "stream", "part", "value")),
)
DIGESTS_VIEW = """CREATE VIEW digests AS
SELECT e.run, e.seq, json_extract(e.body, '$.step') AS step,
  json_extract(e.body, '$.digests.streams[' || v.key || ']') AS stream,
  p.key AS part, v.value AS value
FROM events e, json_each(e.body, '$.digests.parts') p, json_each(p.value) v
WHERE e.kind = 'step_closed'
UNION ALL
SELECT run, seq, json_extract(body, '$.step'), NULL, 'book', json_extract(body, '$.book')
FROM events WHERE kind = 'step_closed'"""


def dump_hints(hints: Mapping[str, str]) -> str:
    """The text of a run's hints."""
    return json.dumps(dict(hints.items()), sort_keys=True, separators=(",", ":"))


def writing_engine(path: Path, synchronous: str) -> sa.Engine:
    """An engine on an existing file, in WAL mode: NORMAL survives a kill, FULL a power loss."""
    assert synchronous in ("NORMAL", "FULL"), synchronous

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=5.0, check_same_thread=False)
        # A step touches eight pages and fills one: small ones are half the bytes to write.
        connection.execute("PRAGMA page_size=2048")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA wal_autocheckpoint=8000")  # pages; empty_log comes before
        return connection

    return sa.create_engine("sqlite://", creator=connect, poolclass=NullPool)


def reading_engine(path: Path) -> sa.Engine:
    """An engine that changes nothing; without a `-wal` beside it, a tape has no writer to heed."""
    live = beside(path, "-wal").exists()
    uri = path.absolute().as_uri() + ("?mode=ro" if live else "?mode=ro&immutable=1")

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=5.0, check_same_thread=False)
        # Text that is not UTF-8 must reach the decoder, which says so, and not fail on the way.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        return connection

    return sa.create_engine("sqlite://", creator=connect, poolclass=NullPool)


def create_tables(connection: sa.Connection) -> None:
    """All tables, the view and the marks in the header, within the caller's transaction."""
    META.create_all(connection)
    connection.exec_driver_sql(DIGESTS_VIEW)
    connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
    connection.exec_driver_sql(f"PRAGMA user_version={FORMAT}")


def one_file(connection: sa.Connection) -> None:
    """Move everything into the main file, so that none is left beside it."""
    connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").close()
    connection.exec_driver_sql("PRAGMA journal_mode=DELETE").close()


def check_format(path: Path, connection: sa.Connection) -> None:
    """Refuse what is not a tape, and tapes of another format."""
    application = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    found = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if (application, found) != (APPLICATION_ID, FORMAT) and read_seal(path) is Seal.BROKEN:
        raise TornTape(f"{path} is damaged: its bytes changed since it was closed")
    if application != APPLICATION_ID:
        log = beside(path, "-wal")
        lacks = "" if log.exists() else f"; if it was being written, {log.name} belongs beside it"
        raise NotATape(f"{path} is an SQLite file, but not a tape{lacks}")
    if found != FORMAT:
        raise WrongFormat(
            f"{path} is format {found}, this build reads {FORMAT}: "
            f"read it with a build of format {found}{_build_of(connection)}"
        )
    tables = set(sa.inspect(connection).get_table_names())
    for table in META.sorted_tables:
        if table.name not in tables:
            raise NotATape(f"{path} lacks the table {table.name}")


def _build_of(connection: sa.Connection) -> str:
    """Which build wrote a tape of another format, as far as that can be told."""
    try:
        build = connection.exec_driver_sql(
            "SELECT json_extract(body, '$.build') FROM events WHERE kind = 'run_opened'"
        ).scalar()
    except SQLAlchemyError:
        return ""
    return f", such as {build}" if build else ""


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turns what SQLite says into what is wrong with the tape."""
    try:
        yield
    except UnicodeError:  # of a message that quotes damaged text
        raise TornTape(f"{path} is torn or damaged: its schema is no text") from None
    except (sqlite3.Error, SQLAlchemyError) as error:
        said = str(getattr(error, "orig", None) or error)
        raise _meaning(path, said) from None


def _meaning(path: Path, said: str) -> TapeError:
    if "not a database" in said:
        return NotATape(f"{path} is not a tape: it is no SQLite file")
    if "disk I/O" in said:
        return TornTape(f"{path} is torn, or its disk fails: {said}")
    if "malformed" in said:
        return TornTape(f"{path} is torn or damaged: {said}")
    if "no such" in said:
        return NotATape(f"{path} is not a whole tape: {said}")
    if "full" in said:
        return TapeError(f"{path} cannot grow: {said}")
    if "locked" in said:
        return TapeError(f"{path} is held by another process: {said}")
    return TapeError(f"{path}: {said}")
