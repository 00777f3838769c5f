"""A tape's log goes into its file beside the writing, so that no append waits for the disk.

SQLite would do so in an append now and then, which then waits for tens of milliseconds; it still
does where the thread here cannot keep up.
"""

from contextlib import suppress
from threading import Event, Thread

from ..events.errors import TapeError
from ..events.tape import TapeWriter

EVERY = 256  # appends: about two thousand pages of the log


class Backfill:
    """A thread beside a writer, from its first EVERY appends on until it is closed."""

    def __init__(self, writer: TapeWriter) -> None:
        self._writer = writer
        self._appends = 0
        self._due = Event()
        self._ended = False
        self._thread: Thread | None = None

    def appended(self) -> None:
        """One append more is durable, in the log."""
        self._appends += 1
        if self._appends % EVERY == 0 and not self._ended:
            self._due.set()
            if self._thread is None:
                self._thread = Thread(target=self._work, name="kvtape backfill", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread, and wait for it; harmless when done before."""
        self._ended = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        with suppress(TapeError):  # what goes wrong here does so in an append, too, which says so
            while True:
                self._due.wait()
                self._due.clear()
                if self._ended:
                    return
                self._writer.empty_log()
