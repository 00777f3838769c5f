"""A server as a process of its own: until it answers, what it said last, and its end."""

import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .signals import unwinding

POLL_SECONDS = 0.02
ASK_SECONDS = 5.0
STOP_SECONDS_MAX = 60.0
LOG_CHARACTERS = 2000


class NotServed(Exception):
    """A server ended, or did not answer in time; the message says which, and what it said last."""


def wait_until_served(
    process: "subprocess.Popen[bytes]", urls: Sequence[str], seconds: float, log: Path | None = None
) -> None:
    """Return at the first 200 of any of these addresses. Raises NotServed."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        if process.poll() is not None:
            raise NotServed(f"the server ended with {process.returncode}{_last_of(log)}")
        if any(_answers(url) for url in urls):
            return
        time.sleep(POLL_SECONDS)
    raise NotServed(f"no answer at {urls[0]} after {seconds:.0f} s{_last_of(log)}")


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """However this is left, by SIGTERM too, the server is ended with it."""
    with unwinding():
        try:
            yield
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a server in order, or at once if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=ASK_SECONDS) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _last_of(log: Path | None) -> str:
    if log is None:
        return ""
    said = log.read_text(errors="replace").strip()
    return f": {said[-LOG_CHARACTERS:] or 'it said nothing'}"
