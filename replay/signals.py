"""The signals that end a server, in order or at once while it loads, and what began a server."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

GRACE_SECONDS = 5.0  # for threads of an interrupted load to come to an end
LEFT = b"told to end while loading; what it was loading did not end by itself\n"


class Signals:
    """Catches SIGINT and SIGTERM in the main thread, also where SIGINT was inherited as ignored."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self._at_once = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within this, a signal raises KeyboardInterrupt; outside, `told` is all there is of it.

        It may be raised where a lock that other threads wait for was just taken, which then stays
        taken, or where a compiler calls back, which swallows it: so a process that is still there
        after a while leaves as it is. Nothing that counts is written before a model is loaded.
        """
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.told.set()
        if self._at_once:
            self._before.setdefault(signal.SIGALRM, signal.signal(signal.SIGALRM, _leave))
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
            raise KeyboardInterrupt


@contextmanager
def unwinding() -> Iterator[None]:
    """Within this, SIGTERM raises SystemExit, so that what was begun is ended on the way out.

    On a program's main thread; another hears no signal.
    """
    if threading.current_thread() is not threading.main_thread() or _unwinds():
        yield
        return
    before = signal.signal(signal.SIGTERM, _unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _unwinds() -> bool:
    """Whether something around this one already does, or was told to and is on its way out."""
    return signal.getsignal(signal.SIGTERM) in (_unwind, signal.SIG_IGN)


def _unwind(number: int, frame: FrameType | None) -> None:
    """Once: being told again must not cut short what ends a server."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)  # as a shell has it


def _leave(number: int, frame: FrameType | None) -> None:
    """End the process, with no lock taken."""
    os.write(2, LEFT)
    os._exit(0)
