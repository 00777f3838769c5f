"""The files beside a tape: a log that another left there is refused, one that lacks is named."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from kvtape.events import files
from kvtape.events.errors import NotATape, TapeError, TornTape
from kvtape.events.files import beside, is_sealed
from kvtape.events.reader import Tape
from kvtape.events.seal import Seal, read_seal
from kvtape.events.tape import TapeWriter
from kvtape.events.verify import verify

from .tape_records import OPENED, a_run
from .test_tape import write_run


def left_behind(folder: Path) -> Path:
    """A tape whose writer was gone at once, with its log beside it."""
    written, path = folder / "written.tape", folder / "dead.tape"
    writer = TapeWriter.create(written, OPENED)
    for turn in a_run(3):
        writer.append(*turn)
    for suffix in ("", "-wal"):
        shutil.copy(beside(written, suffix), beside(path, suffix))
    writer.close()
    return path


def append(path: Path) -> None:
    TapeWriter.create(path, OPENED, append=True).close()


READS: tuple[Callable[[Path], object], ...] = (Tape.open, verify, append)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_sealed_tape_is_not_read_through_the_log_of_another(
    read: Callable[[Path], object], suffix: str, tmp_path: Path
) -> None:
    path, own = left_behind(tmp_path), tmp_path / "own.tape"
    write_run(own)
    log = beside(path, "-wal").rename(beside(path, suffix))
    shutil.move(own, path)  # as one restores a tape over what a crash left
    before = path.read_bytes(), log.read_bytes()
    with pytest.raises(TapeError, match=rf"dead\.tape{suffix} beside it is of another tape"):
        read(path)
    assert (path.read_bytes(), log.read_bytes()) == before
    log.unlink()
    assert read_seal(path) is Seal.WHOLE and verify(path) == []


def test_a_tape_that_is_sealed_just_then_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left_behind(tmp_path)
    writer = TapeWriter.create(path, OPENED, append=True)

    def late(asked: Path) -> bool:
        writer.close()
        return is_sealed(asked)

    monkeypatch.setattr(files, "is_sealed", late)
    files.refuse_foreign_log(path)
    assert read_seal(path) is Seal.WHOLE


def test_a_sealed_tape_is_read_beside_an_empty_log(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    beside(path, "-wal").touch()
    with Tape.open(path) as tape:
        assert tape.closed is not None


def test_the_log_of_a_tape_that_was_not_closed_is_its_own(tmp_path: Path) -> None:
    path = left_behind(tmp_path)
    with Tape.open(path) as tape:
        assert [list(step.facts) for step in tape.steps()] == [turn[2] for turn in a_run(3)]
        assert tape.closed is None
    append(path)
    assert verify(path) == []


def test_a_young_tape_without_its_log_says_what_it_lacks(tmp_path: Path) -> None:
    path = left_behind(tmp_path)
    beside(path, "-wal").unlink()
    with pytest.raises(NotATape, match=r"if it was being written, dead\.tape-wal belongs beside"):
        Tape.open(path)


@pytest.mark.parametrize("field", ["user_version", "application_id"])
def test_a_damaged_header_is_no_other_format(field: str, tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA {field}=77")
    connection.close()
    with pytest.raises(TornTape, match=r"run\.tape is damaged"):
        Tape.open(path)
