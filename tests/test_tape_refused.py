"""Files that are no tape, or no longer a whole one: named, never a traceback of someone else's."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.events.errors import BrokenRecord, NotATape, TapeError, TornTape, WrongFormat
from kvtape.events.facts import FORMAT
from kvtape.events.reader import Tape
from kvtape.events.seal import seal, unseal
from kvtape.events.tape import TapeWriter
from kvtape.events.verify import verify

from .tape_records import OPENED
from .test_tape import write_run


def read_all(path: Path) -> None:
    """Everything that a reader offers."""
    with Tape.open(path) as tape:
        list(tape.entries())
        list(tape.digests())
        list(tape.times())
        tape.sessions()
        assert tape.hints is not None


def edit(path: Path, *statements: str) -> None:
    """Change a tape behind our back."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("what", ["text", "zeros", "empty", "folder", "missing", "other_sqlite"])
def test_what_is_no_tape_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "run.tape"
    match what:
        case "text":
            path.write_text("not a tape at all\n" * 100)
        case "zeros":
            path.write_bytes(bytes(8192))
        case "empty":
            path.touch()
        case "folder":
            path.mkdir()
        case "other_sqlite":
            edit(path, "CREATE TABLE songs (title TEXT)")
        case _:
            pass
    before = path.read_bytes() if path.is_file() else b""
    for use in (read_all, verify):
        with pytest.raises(TapeError, match=r"run\.tape") as told:
            use(path)
        assert told.value.exit_code == 2
    if what != "missing":
        with pytest.raises(TapeError, match=r"run\.tape"):
            TapeWriter.create(path, OPENED, append=True)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_another_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    unseal(path)
    edit(path, f"PRAGMA user_version={FORMAT + 1}")
    seal(path)
    for use in (read_all, verify):
        with pytest.raises(
            WrongFormat,
            match=rf"run\.tape is format {FORMAT + 1}, .* reads {FORMAT}: .*0\.1\.0",
        ) as told:
            use(path)
        assert told.value.exit_code == 3


@pytest.mark.parametrize("table", ["runs", "commands", "events", "times", "content", "blobs"])
def test_a_missing_table_is_named(tmp_path: Path, table: str) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    edit(path, f"DROP TABLE {table}")
    for use in (read_all, verify):
        with pytest.raises(NotATape, match=rf"run\.tape.*{table}"):
            use(path)


def test_an_edited_body_is_named_with_run_and_row(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    edit(path, "UPDATE events SET body = replace(body, '\"lane\":1', '\"lane\": 1')")
    with pytest.raises(BrokenRecord, match=r"run\.tape: run 1, row \d+: stream_begun: ") as told:
        read_all(path)
    assert told.value.exit_code == 2


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_truncated_tape_is_told(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("torn") / "run.tape"
    write_run(path, rounds=20)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    try:
        assert [finding.kind for finding in verify(path)] != []
    except (TornTape, NotATape) as error:
        assert error.exit_code == 2  # noqa: PT017 - either answer is right


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_below_the_rows_never_escapes_as_a_foreign_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "run.tape"
    write_run(path)
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 30))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole)
    for use in (read_all, verify):
        try:
            use(path)
        except TapeError as error:
            assert "run.tape" in str(error)  # noqa: PT017 - it may also still be readable
