"""The rows of a run as they are stored, in order, before anything is believed of them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from .canon import Resolver, decode_command, decode_fact
from .chain import COMMAND, FACT, GENESIS, link
from .commands import AnyCommand
from .errors import BrokenRecord
from .facts import AnyFact
from .schema import BLOBS, COMMANDS, CONTENT, EVENTS

SEQ_MAX = 2**63 - 1


class StoredRow(NamedTuple):
    """A row of `commands` or `events`; whoever edits a tape may have put anything anywhere."""

    seq: Any
    step: Any
    side: int
    kind: Any
    stream: Any
    session: Any
    body: Any
    chain: Any

    def decode(self, resolve: Resolver) -> AnyCommand | AnyFact:
        """The record; raises BrokenRecord where bytes or columns are not those of any."""
        if not isinstance(self.body, str):
            raise BrokenRecord(f"its body is no text but {self.body!r:.60}")
        if not isinstance(self.seq, int) or not isinstance(self.step, int):
            raise BrokenRecord(f"its seq and step are {self.seq!r:.60} and {self.step!r:.60}")
        decode = decode_fact if self.side == FACT else decode_command
        record = decode(self.body.encode("utf-8", "surrogateescape"), resolve)
        if record.kind != self.kind:
            raise BrokenRecord(f"its kind is {self.kind!r:.60}, its body a {record.kind}")
        return record

    def link(self, previous: bytes, run: int) -> bytes | None:
        """What it is chained by after `previous`; None where its columns are no row's."""
        typed = isinstance(self.kind, str) and isinstance(self.body, str)
        numbers = isinstance(self.seq, int) and isinstance(self.step, int)
        stream = isinstance(self.stream, int | None)
        if not (typed and numbers and stream) or len(previous) != len(GENESIS):
            return None
        return link(
            previous,
            run=run,
            seq=self.seq,
            step=self.step,
            side=self.side,
            stream=self.stream,
            kind=self.kind.encode("utf-8", "surrogateescape"),
            body=self.body.encode("utf-8", "surrogateescape"),
        )


def stored_rows(
    connection: sa.Connection, run: int, first: int = 0, last: int = SEQ_MAX
) -> Iterator[StoredRow]:
    """Commands and facts of a run with `first <= seq <= last`, by seq, as of one moment."""
    sides = []
    for table, side in ((COMMANDS, COMMAND), (EVENTS, FACT)):
        is_fact = side == FACT
        columns: tuple[sa.ColumnElement[Any], ...] = (
            table.c.seq,
            table.c.step,
            sa.literal_column(str(side)).label("side"),
            table.c.kind,
            EVENTS.c.stream if is_fact else sa.null().label("stream"),
            EVENTS.c.session if is_fact else sa.null().label("session"),
            table.c.body,
            table.c.chain,
        )
        within = table.c.run == run
        if first > 0:  # for the whole run no bound, which would hide an edited row below 0
            within &= table.c.seq >= first
        if last < SEQ_MAX:
            within &= table.c.seq <= last
        sides.append(sa.select(*columns).where(within))
    asked = (
        sa.union_all(*sides)
        .order_by("seq")
        .compile(connection.engine, compile_kwargs={"literal_binds": True})
    )
    # Rows go through the driver's own cursor: the layers above it cost more than SQLite does.
    yield from map(StoredRow._make, driver(connection).execute(str(asked)))


def driver(connection: sa.Connection) -> Any:
    """The connection below SQLAlchemy's."""
    found = connection.connection.driver_connection
    assert found is not None
    return found


_BYTES = {
    table.name: f"SELECT bytes FROM {table.name} WHERE digest = ?" for table in (CONTENT, BLOBS)
}


def content_of(connection: sa.Connection, name: str, table: sa.Table = CONTENT) -> bytes:
    """The bytes of a content (or blob) row; KeyError where there is none."""
    found = driver(connection).execute(_BYTES[table.name], (name,)).fetchone()
    if found is None or not isinstance(found[0], bytes):
        raise KeyError(name)
    return found[0]
