"""A tape's write-ahead log goes into its file beside the writing, so that no append waits for it.

SQLite would do so in an append now and then, which then waits for the disk, for tens of
milliseconds; it still does where the thread here cannot keep up.
"""

from contextlib import suppress
from threading import Event, Thread

import sqlalchemy as sa

EVERY = 256  # appends: about two thousand pages of the log


class Backfill:
    """A thread of a writer's, from its first EVERY appends on until it is closed."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
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
        # What goes wrong here goes wrong in an append as well, which says so.
        with suppress(sa.exc.DBAPIError):
            while True:
                self._due.wait()
                self._due.clear()
                if self._ended:
                    return
                with self._engine.connect() as connection:
                    connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").close()
