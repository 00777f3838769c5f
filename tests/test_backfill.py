"""A tape's log goes into its file while the run goes on, and nothing stays of what does it."""

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from kvtape.events.errors import TapeError
from kvtape.events.tape import TapeWriter
from kvtape.events.verify import verify
from kvtape.replay import backfill
from kvtape.replay.recorder import TapeRecorder

from .tape_records import OPENED, a_run

EVERY, LONGEST_SECONDS = 8, 20


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has work after a few appends."""
    monkeypatch.setattr(backfill, "EVERY", EVERY)


def in_the_file_itself(path: Path) -> int:
    """Rows of events that need no log beside the file."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        rows: int = connection.execute("SELECT count(*) FROM events").fetchone()[0]
    except sqlite3.Error:  # not even its tables, or half of a page
        rows = 0
    connection.close()
    return rows


@pytest.mark.parametrize("closed", [True, False])
def test_rows_reach_the_file_long_before_an_append_would_have_to_bring_them(
    tmp_path: Path, closed: bool
) -> None:
    path, before, rows = tmp_path / "run.tape", {*threading.enumerate()}, 1
    recorder = TapeRecorder(TapeWriter.create(path, OPENED), stop_on_error=True)
    for count, turn in enumerate(a_run(10 * EVERY), 1):
        recorder.append(*turn)
        rows += len(turn[2])
        if count == EVERY - 1:
            assert in_the_file_itself(path) == 0
        if count % EVERY == 0:
            until = time.monotonic() + LONGEST_SECONDS
            while in_the_file_itself(path) < rows and time.monotonic() < until:
                time.sleep(0.001)
            assert in_the_file_itself(path) == rows
    recorder.close("done") if closed else recorder.abandon()
    assert {*threading.enumerate()} == before
    assert verify(path) == []


@pytest.mark.parametrize("stops", [True, False])
def test_a_tape_that_cannot_grow_takes_its_thread_along(tmp_path: Path, stops: bool) -> None:
    path, before = tmp_path / "run.tape", {*threading.enumerate()}
    writer = TapeWriter.create(path, OPENED)
    recorder, turns = TapeRecorder(writer, stop_on_error=stops), a_run(400)
    pages = writer._driver.execute("PRAGMA page_count").fetchone()[0]
    writer._driver.execute(f"PRAGMA max_page_count={pages + 40}")

    def write_all() -> None:
        for turn in turns:
            recorder.append(*turn)

    if stops:
        with pytest.raises(TapeError, match="cannot grow"):
            write_all()
    else:
        write_all()
    assert {*threading.enumerate()} == before
    assert verify(path) == []


def test_what_fails_beside_the_writing_is_left_to_an_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def fails(writer: TapeWriter) -> None:
        asked.append("once")
        raise TapeError("the disk is gone")

    monkeypatch.setattr(TapeWriter, "empty_log", fails)
    path = tmp_path / "run.tape"
    recorder = TapeRecorder(TapeWriter.create(path, OPENED), stop_on_error=True)
    for turn in a_run(5 * EVERY):
        recorder.append(*turn)
    recorder.close("done")
    assert asked == ["once"]
    assert verify(path) == []
