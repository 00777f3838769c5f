"""A server that is started to be measured: its command, its settings, its first answer."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..devices.http.serve import bind
from .measure_client import NotMeasured
from .server_process import NotServed, ended, wait_until_served

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
    with ended(process):
        try:
            left = begun + seconds - time.perf_counter()
            wait_until_served(process, [url + route for route in ROUTES], left, log)
            yield Started(url, time.perf_counter() - begun)
        except NotServed as error:
            raise NotMeasured(str(error)) from None
