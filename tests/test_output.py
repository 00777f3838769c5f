"""Output that a full disk cannot take is told in a line, and is no finding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvtape.events.tape import TapeWriter

from .tape_records import OPENED

FULL = Path("/dev/full")
SAID = "kvtape: standard output cannot be written: No space left on device\n"
THREADED = """
import sys, threading
from kvtape.replay.output import told_output

with told_output():
    print("a line")
    other = threading.Thread(target=sys.stdout.flush)
    other.start()
    other.join()
"""

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")


def onto(where: Path, *command: str | Path) -> tuple[int, str]:
    """The exit code of a program whose output goes there, and what it said of that."""
    with where.open("w") as output:
        done = subprocess.run(
            [sys.executable, *command], stdout=output, stderr=subprocess.PIPE, text=True,
            check=False, timeout=100,
        )  # fmt: skip
    return done.returncode, done.stderr


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    path = tmp_path / "run.tape"
    TapeWriter.create(path, OPENED).close("closed")
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",), ("--help",), ("doctor",), ("plan", "glm-tales"), ("audit", "TAPE"),
        ("audit", "TAPE", "--json"), ("why-miss", "TAPE"), ("trace", "export", "TAPE"),
    ],
)  # fmt: skip
def test_a_full_disk_is_told_once(arguments: tuple[str, ...], tape: Path) -> None:
    given = [str(tape) if word == "TAPE" else word for word in arguments]
    assert onto(FULL, "-m", "kvtape", *given) == (2, SAID)


def test_what_was_found_elsewhere_is_told_at_the_end() -> None:
    """A thread's end is not the program's."""
    assert onto(FULL, "-c", THREADED) == (2, SAID)


def test_output_that_is_taken_is_whole(tmp_path: Path, tape: Path) -> None:
    assert onto(tmp_path / "lines", "-m", "kvtape", "trace", "export", tape) == (0, "")
    assert (tmp_path / "lines").read_text().endswith("}\n")


def test_a_reader_that_has_seen_enough_is_no_fault(tape: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "kvtape", "audit", str(tape)], stdout=output,
            stderr=subprocess.PIPE, text=True, check=False, timeout=100,
        )  # fmt: skip
    assert done.stderr == ""
