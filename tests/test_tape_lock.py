"""One writer a tape: a second is refused at once, readers never are, and a killed one leaves it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvtape.events.errors import TapeError
from kvtape.events.lock import being_written
from kvtape.events.reader import Tape
from kvtape.events.seal import Seal
from kvtape.events.tape import TapeWriter
from kvtape.events.verify import verify
from kvtape.replay.run_diff import run_audit

from .tape_records import OPENED, a_run
from .test_tape import write_run

WRITER = """
import sys
from kvtape.events.facts import RunClosed
from kvtape.events.tape import TapeWriter
from kvtape.tests.tape_records import OPENED, a_run
writer = TapeWriter.create(sys.argv[1], OPENED, append=True)
if sys.argv[2] == "closing":
    writer.append(1, (), [RunClosed(reason="closed", steps=1)])
print("begun", flush=True)
sys.stdin.readline()
if not writer.ended:
    writer.append(*a_run(1)[0])
writer.close()
"""


@contextmanager
def another(path: Path, how: str = "open") -> Iterator[subprocess.Popen[str]]:
    """Another process that writes the tape until it is told to close it."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        assert process.stdout.readline() == "begun\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_writer_is_refused_at_once_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    with another(path) as writer:
        for _ in range(2):
            with pytest.raises(TapeError, match=r"run\.tape is being written by another process"):
                TapeWriter.create(path, OPENED, append=True)
        writer.communicate("close\n")
        assert writer.returncode == 0, "the first writer is not disturbed"
    assert not being_written(path) and verify(path) == []
    with Tape.open(path) as tape:
        assert tape.runs == (1, 2) and tape.seal == Seal.WHOLE
    with TapeWriter.create(path, OPENED, append=True) as third:
        assert third.run == 3


def test_a_second_writer_in_this_process_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    with TapeWriter.create(path, OPENED) as writer:
        with pytest.raises(TapeError, match="being written"):
            TapeWriter.create(path, OPENED, append=True)
        assert verify(path) == [], "reading it here"
        with pytest.raises(TapeError, match="being written"):
            TapeWriter.create(path, OPENED, append=True)
        writer.append(*a_run(1)[0])
    assert not being_written(path)


def test_a_killed_writer_leaves_no_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.tape"
    with another(path) as writer:
        assert being_written(path)
        writer.kill()
        writer.wait()
        assert not being_written(path)
    assert run_audit(path) == 0
    assert "never closed" in capsys.readouterr().out
    with TapeWriter.create(path, OPENED, append=True) as second:
        assert second.run == 2
    assert run_audit(path) == 0
    assert "closed" not in capsys.readouterr().out


@pytest.mark.parametrize("how", ["open", "closing"])
def test_a_live_tape_is_read_and_no_alarm_is_raised(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    with another(path, how):
        with Tape.open(path) as tape:
            assert tape.runs == (1, 2)
            assert (tape.closed is not None) == (how == "closing")
        assert run_audit(path) == 0
        assert "being written" in capsys.readouterr().out
        with pytest.raises(TapeError, match="being written"):
            TapeWriter.create(path, OPENED, append=True)


def test_a_tape_that_lost_its_seal_is_still_told(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    path.write_bytes(path.read_bytes()[:-48])
    assert ["seal is gone" in finding.says for finding in verify(path)] == [True]


def test_a_failed_writer_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    path.write_text("not a tape\n" * 99)
    for _ in range(2):
        with pytest.raises(TapeError, match="not a tape"):
            TapeWriter.create(path, OPENED, append=True)
        assert not being_written(path)
    TapeWriter.create(tmp_path / "mine.tape", OPENED).abandon()
    assert not being_written(tmp_path / "mine.tape")
