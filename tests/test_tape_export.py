"""Export and import: the lines of a run are the run, and broken lines are refused by number."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.errors import BrokenLine, TapeError, WrongFormat
from kvtape.events.export import export, import_jsonl
from kvtape.events.facts import FORMAT
from kvtape.events.reader import Tape
from kvtape.events.records import Record
from kvtape.events.seal import Seal, read_seal
from kvtape.events.stored import StoredRow, stored_rows
from kvtape.events.tape import TapeWriter
from kvtape.events.verify import verify

from .tape_records import COMMANDS, LATER_FACTS, OPENED
from .test_tape import write_run


def lines_of(path: Path, run: int | None = None) -> list[str]:
    """The exported lines of a tape."""
    with Tape.open(path, run) as tape:
        return list(export(tape))


def rows_of(path: Path) -> list[StoredRow]:
    """The stored rows of a tape, chain and all."""
    with Tape.open(path) as tape:
        return list(stored_rows(tape._connection, tape.run))


def test_an_imported_tape_is_the_exported_one(tmp_path: Path) -> None:
    left, right = tmp_path / "left.tape", tmp_path / "right.tape"
    write_run(left)
    import_jsonl((line + "\n" for line in lines_of(left)), right)
    assert rows_of(right) == rows_of(left)
    assert lines_of(right) == lines_of(left)
    assert read_seal(right) == Seal.WHOLE
    assert verify(right) == []


def test_times_and_hints_leave_no_trace_in_the_lines(tmp_path: Path) -> None:
    left, right = tmp_path / "left.tape", tmp_path / "right.tape"
    write_run(left)
    with Tape.open(left) as tape, TapeWriter.create(right, OPENED, {"weights": "there"}) as writer:
        for step in tape.steps():
            writer.append(step.step, step.filled(), step.facts)
    assert lines_of(right) == lines_of(left)


Kind = TypeVar("Kind", bound=Record)


def names_blobs(records: Sequence[Record]) -> bool:
    """Whether one of them has a field for blobs."""
    return any("blobs" in type(record).model_fields for record in records)


def with_blobs(record: Kind, blobs: tuple[str, ...]) -> Kind:
    """The record, naming these blobs if it has a field for them."""
    return record.model_copy(update={"blobs": blobs}) if names_blobs([record]) else record


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.tuples(st.lists(COMMANDS, max_size=2), st.lists(LATER_FACTS, max_size=3))),
    closed=st.booleans(),
)
def test_any_run_survives_as_lines(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[list[c.AnyCommand], list[f.AnyFact]]],
    closed: bool,
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    left, right = folder / "left.tape", folder / "right.tape"
    writer = TapeWriter.create(left, OPENED, run=3)
    for step, (commands, facts) in enumerate(steps):
        blobs = (writer.keep(b"\x00\xff"),) if names_blobs([*commands, *facts]) else ()
        writer.append(
            step,
            [with_blobs(command, blobs) for command in commands],
            [with_blobs(fact, blobs) for fact in facts],
        )
    if closed:
        writer.close()
    else:
        writer.abandon()
    import_jsonl(lines_of(left), right)
    assert rows_of(right) == rows_of(left)
    assert lines_of(right) == lines_of(left)
    assert read_seal(right) == read_seal(left) == (Seal.WHOLE if closed else Seal.NONE)
    assert verify(right) == []


def test_each_run_of_a_file_has_its_own_lines(tmp_path: Path) -> None:
    path, second = tmp_path / "run.tape", tmp_path / "second.tape"
    write_run(path)
    first = lines_of(path)
    with TapeWriter.create(path, OPENED, append=True):
        pass
    assert lines_of(path, run=1) == first
    import_jsonl(lines_of(path, run=2), second)
    assert rows_of(second) == rows_of(path)


def test_token_ids_stand_readable_in_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    assert sum('"prompt":[1,2,3,300]' in line for line in lines_of(path)) == 2


@pytest.mark.parametrize(
    ("at", "old", "new", "says"),
    [
        (1, '"run":', '"ran":', "line 1: no head"),
        (2, "run_opened", "run_closed", "line 2: "),
        (2, '"seq":0', '"seq":1', "line 2: a run begins with run_opened as row 0"),
        (4, '"seq":2', '"seq":3', "line 4: row 3, row 2 should stand here"),
        (5, '"kind":"request_arrived"', '"kind":"state_image"', "line 5: state_image is reserved"),
        (5, '"kind":"request_arrived"', '"kind":"arrived"', "line 5: unknown kind of fact"),
        (5, '"fact"', '"command"', "line 5: unknown kind of command"),
        (5, '"max_new":4', '"max_new": 4', "line 5: request_arrived: .* canonical form"),
        (5, '"max_new":4', '"max_new":4.5', "line 5: request_arrived: max_new"),
        (5, '{"seq"', ' {"seq"', "line 5: neither a row nor a blob"),
        (-1, '"step":', '"step":-', "neither a row nor a blob"),
        (-1, '"step":5', '"step":3', "step 3 after step 4"),
    ],
)
def test_a_broken_line_is_refused_by_its_number(
    tmp_path: Path, at: int, old: str, new: str, says: str
) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    lines = lines_of(path)
    at = at if at < 0 else at - 1
    assert old in lines[at]
    lines[at] = lines[at].replace(old, new)
    with pytest.raises(BrokenLine, match=says) as told:
        import_jsonl(lines, tmp_path / "again.tape")
    assert told.value.exit_code == 2
    assert not (tmp_path / "again.tape").exists()


def test_lines_that_end_early_or_go_on_are_refused(tmp_path: Path) -> None:
    path, again = tmp_path / "run.tape", tmp_path / "again.tape"
    write_run(path)
    lines = lines_of(path)
    with pytest.raises(BrokenLine, match="line 1: no head"):
        import_jsonl([], again)
    with pytest.raises(BrokenLine, match="line 2: a run begins with run_opened"):
        import_jsonl(lines[:1], again)
    more = lines[-1].replace(f'"seq":{len(lines) - 2}', f'"seq":{len(lines) - 1}')
    with pytest.raises(BrokenLine, match=f"line {len(lines) + 1}: nothing can follow run_closed"):
        import_jsonl([*lines, more], again)
    with pytest.raises(WrongFormat) as told:
        import_jsonl([lines[0].replace(f":{FORMAT},", f":{FORMAT + 1},"), *lines[1:]], again)
    assert told.value.exit_code == 3
    with pytest.raises(TapeError, match="exists"):
        import_jsonl(lines, path)
