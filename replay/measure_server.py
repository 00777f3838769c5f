"""A server that is started to be measured: its command, its settings, its first answer."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..devices.http.serve import bind
from .measure_client import NotMeasured

POLL_SECONDS = 0.05
STOP_SECONDS_MAX = 60.0
LOG_CHARACTERS = 600
ROUTES = ("/health", "/v1/models")  # the first that answers 200 says that it serves


@dataclass(frozen=True, slots=True)
class Started:
    """A server that serves: where, and after how many seconds."""

    url: str
    ready_s: float


def filled(command: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """The command with {port}, {label} and {launch} put in; other braces stay."""
    found = list(command)
    for name, value in names.items():
        found = [part.replace("{" + name + "}", value) for part in found]
    return found


def free_port() -> int:
    """A port that nobody listens on."""
    with bind("127.0.0.1", 0) as free:
        return int(free.getsockname()[1])


@contextmanager
def started(
    command: Sequence[str], settings: Mapping[str, str], url: str, log: Path, seconds: float
) -> Iterator[Started]:
    """A server process under these settings, ended in order afterwards; its output goes to log."""
    begun = time.perf_counter()
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=os.environ | settings,
            )  # fmt: skip
        except OSError as error:
            raise NotMeasured(f"{command[0]}: {error.strerror or error}") from None
    try:
        _wait(process, url, log, begun + seconds)
        yield Started(url, time.perf_counter() - begun)
    finally:
        _end(process)


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path, until: float) -> None:
    while time.perf_counter() < until:
        if process.poll() is not None:
            raise NotMeasured(f"the server ended with {process.returncode}: {last_of(log)}")
        if any(_answers(url + route) for route in ROUTES):
            return
        time.sleep(POLL_SECONDS)
    raise NotMeasured(f"no answer at {url}: {last_of(log)}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_of(log: Path) -> str:
    """The end of what a server said."""
    said = log.read_text(errors="replace").strip()
    return said[-LOG_CHARACTERS:] or "it said nothing"
