"""The signals that end a server: at once while it loads, in order once it serves."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


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
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within this, a signal raises KeyboardInterrupt; outside, `told` is all there is of it."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.told.set()
        if self._at_once:
            raise KeyboardInterrupt
