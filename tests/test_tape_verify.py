"""Verify: every edit by SQL that changes what a reader returns is found, seal or no seal."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.events.canon import content_name
from kvtape.events.errors import TapeError
from kvtape.events.facts import RanksParted
from kvtape.events.files import SEAL_BYTES
from kvtape.events.seal import Seal, read_seal, seal
from kvtape.events.tape import TapeWriter, Times
from kvtape.events.verify import verify

from .tape_records import OPENED, a_run, a_sum, made

COLUMNS = {
    "runs": ("run", "format", "rows", "chain"),
    "commands": ("seq", "run", "step", "kind", "body", "chain"),
    "events": ("seq", "run", "step", "kind", "stream", "session", "body", "chain"),
    "content": ("digest", "bytes"),
    "blobs": ("digest", "bytes"),
    "times": ("run", "step"),
}
EVERY_COLUMN = [(table, column) for table, columns in COLUMNS.items() for column in columns]
BLOB = b"a row of rank 1"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed tape of two runs with content, a blob and times."""
    path = tmp_path_factory.mktemp("whole") / "run.tape"
    for append in (False, True):
        with TapeWriter.create(path, OPENED, {"weights": "w"}, append=append) as writer:
            for step, commands, facts in a_run():
                writer.append(step, commands, facts, Times(step, step, step))
            parted = made(
                RanksParted,
                step=5,
                part="rows",
                stream=0,
                ranks=(0, 1),
                values=(a_sum(1), a_sum(2)),
                layer=0,
                position=0,
                blobs=(writer.keep(BLOB),),
            )
            writer.append(6, (), (parted,))
    assert verify(path) == []
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A copy of the tape that a test may spoil."""
    return Path(shutil.copy(whole, tmp_path / "run.tape"))


def resealed(path: Path, *statements: str, values: tuple[Any, ...] = ()) -> list[str]:
    """The kinds of findings after an edit by someone who also seals the file anew."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - SEAL_BYTES)
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement, values)
    connection.commit()
    connection.close()
    seal(path)
    assert read_seal(path) == Seal.WHOLE
    return [finding.kind for finding in verify(path)]


def test_an_untouched_tape_has_no_findings(copy: Path) -> None:
    assert resealed(copy) == []


@pytest.mark.parametrize(("table", "column"), EVERY_COLUMN)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_an_edited_cell_is_found(
    whole: Path,
    tmp_path_factory: pytest.TempPathFactory,
    table: str,
    column: str,
    data: st.DataObject,
) -> None:
    path = Path(shutil.copy(whole, tmp_path_factory.mktemp("edit") / "run.tape"))
    connection = sqlite3.connect(path)
    order = "run, seq" if table == "times" else "rowid"  # else SQLite chooses, by the columns
    cells = connection.execute(f"SELECT {column} FROM {table} ORDER BY {order}").fetchall()
    connection.close()
    at = data.draw(st.integers(0, len(cells) - 1))
    new = data.draw(other_than(cells[at][0]))
    if table == "times":
        rowid = f"(run, seq) = (SELECT run, seq FROM times LIMIT 1 OFFSET {at})"
    else:
        rowid = f"rowid = (SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET {at})"
    try:
        found = resealed(path, f"UPDATE {table} SET {column} = ? WHERE {rowid}", values=(new,))
    except sqlite3.IntegrityError:
        return  # two rows of one key: SQLite itself refuses
    except TapeError as error:
        assert "run.tape" in str(error)  # noqa: PT017 - found, in another way
        return
    assert found != []


def other_than(cell: Any) -> st.SearchStrategy[Any]:
    """Values near a cell's, never the same."""
    numbers = st.integers(-2, 40)
    texts = st.text("0123456789abcdef{}:,\"'é ", max_size=8)
    near: st.SearchStrategy[Any] = st.one_of(st.none(), numbers, texts, st.binary(max_size=4))
    if isinstance(cell, str | bytes) and cell:

        def changed(at: int) -> Any:
            if isinstance(cell, bytes):
                return cell[:at] + bytes([cell[at] ^ 1]) + cell[at + 1 :]
            return cell[:at] + chr(ord(cell[at]) ^ 1) + cell[at + 1 :]

        near = st.one_of(near, st.integers(0, len(cell) - 1).map(changed))
    if isinstance(cell, int):
        # A text of the same number is the same number to SQLite.
        near = near.filter(lambda new: not isinstance(new, str) or not new.strip().isdigit())
    return near.filter(lambda new: new != cell or type(new) is not type(cell))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rows_deleted_swapped_or_added_are_found(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = Path(shutil.copy(whole, tmp_path_factory.mktemp("rows") / "run.tape"))
    table = data.draw(st.sampled_from(["commands", "events", "content", "blobs", "runs"]))
    connection = sqlite3.connect(path)
    rowids = [row[0] for row in connection.execute(f"SELECT rowid FROM {table}")]
    connection.close()
    at = data.draw(st.sampled_from(rowids))
    what = data.draw(st.sampled_from(["delete", "swap", "add"]))
    if what == "delete":
        edits = [f"DELETE FROM {table} WHERE rowid = {at}"]
    elif what == "swap" and table == "events":
        other = data.draw(st.sampled_from([rowid for rowid in rowids if rowid != at]))
        edits = [
            f"UPDATE events SET seq = -1, run = -1 WHERE rowid = {at}",
            f"CREATE TEMP TABLE place AS SELECT seq, run FROM events WHERE rowid = {other}",
            *(
                [f"DELETE FROM events WHERE rowid = {other}"]
                if data.draw(st.booleans())
                else [f"UPDATE events SET seq = 999 WHERE rowid = {other}"]
            ),
            f"UPDATE events SET (seq, run) = (SELECT seq, run FROM place) WHERE rowid = {at}",
        ]
    elif table in ("content", "blobs"):
        name = content_name(b"more")
        edits = [f"INSERT INTO {table} VALUES ('{name}', x'{b'more'.hex()}')"]
    else:
        columns = "*" if table == "runs" else ", ".join(COLUMNS[table])
        edits = [
            f"CREATE TEMP TABLE more AS SELECT {columns} FROM {table} WHERE rowid = {at}",
            "UPDATE more SET run = 3" if table == "runs" else "UPDATE more SET seq = 900",
            f"INSERT INTO {table} SELECT {columns} FROM more",
        ]
    try:
        assert resealed(path, *edits) != []
    except TapeError as error:
        assert "run.tape" in str(error)  # noqa: PT017 - found, in another way


@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        ("UPDATE events SET session = 'bob' WHERE session = 'alice' AND seq = 5", "column"),
        ("UPDATE events SET step = step + 1 WHERE seq = 5", "chain"),
        ("UPDATE events SET chain = x'00' WHERE seq = 5", "chain"),
        ("UPDATE events SET body = body || ' ' WHERE seq = 5", "body"),
        ("DELETE FROM events WHERE seq = 5", "order"),
        ("DELETE FROM commands", "order"),
        ("UPDATE content SET bytes = x'00000000'", "content"),
        ("DELETE FROM content", "content"),
        ("UPDATE blobs SET bytes = x'00'", "blob"),
        ("DELETE FROM blobs", "blob"),
        ("DELETE FROM runs WHERE run = 2", "run"),
        ("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)", "run"),
        ("UPDATE runs SET hints = 'x'", "run"),
        ("UPDATE times SET step = 9 WHERE step = 2", "times"),
        ("UPDATE times SET seq = 3 WHERE step = 2", "times"),
        ("DROP VIEW digests", "schema"),
        ("DROP INDEX events_by_session", "schema"),
        ("CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM commands; END", "schema"),
        ("CREATE TABLE more (a)", "schema"),
        ("ALTER TABLE events ADD COLUMN more TEXT", "schema"),
    ],
)
def test_what_was_edited_is_named(copy: Path, edit: str, kind: str) -> None:
    assert kind in resealed(copy, edit)


def test_an_index_of_sums_that_lies_is_found(copy: Path) -> None:
    lie = (
        "CREATE VIEW digests AS SELECT run, seq, 0 step, 0 stream, 'x' part, 'y' value FROM events"
    )
    assert "schema" in resealed(copy, "DROP VIEW digests", lie)


@pytest.mark.parametrize("edit", ["UPDATE times SET wall_ns = 7", "UPDATE runs SET hints = '{}'"])
def test_what_the_chain_leaves_out_the_seal_covers(copy: Path, edit: str) -> None:
    connection = sqlite3.connect(copy)
    connection.execute(edit)
    connection.commit()
    connection.close()
    assert [finding.kind for finding in verify(copy)] == ["seal"]


def test_a_seal_that_was_taken_off_is_missed(copy: Path) -> None:
    with copy.open("r+b") as file:
        file.truncate(copy.stat().st_size - SEAL_BYTES)
    assert [finding.kind for finding in verify(copy)] == ["seal"]
