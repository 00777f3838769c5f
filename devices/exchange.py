"""What the ranks of one process share: a meeting, the columns they hand over, the abort."""

from threading import Event, Lock, Thread
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from ..core.kernels.program_memory import Shared
from ..core.kernels.team import ABORT, WORDS
from ..events.ids import Rank

WATCH_S = 0.5  # how often the watchdog looks


class Exchange:
    """One for a group of ranks. A step that outlasts the limit is aborted for all of them.

    columns: float32 elements of the widest gather, needed where there is more than one rank.
    """

    def __init__(self, world: int, threads: int, rows: int, columns: int, limit_s: float) -> None:
        self.limit_s = limit_s
        self.reason = ""
        group = np.zeros(WORDS, np.int64)
        self.shared = Shared(
            group,
            np.zeros((2, columns if world > 1 else 0), np.float32),
            np.zeros((2, world * threads, rows, 2), np.uint64),
        )
        self._meetings: list[NDArray[np.int64]] = [group]
        self._running: dict[Rank, tuple[int, float]] = {}
        self._lock = Lock()
        self._closed = Event()
        self._watch = Thread(target=self._look, name="kvtape watchdog", daemon=True)
        self._watch.start()

    def meeting(self) -> NDArray[np.int64]:
        """A meeting place for the threads of one rank; an abort reaches it too."""
        words = np.zeros(WORDS, np.int64)
        self._meetings.append(words)
        return words

    def begin(self, rank: Rank, step: int) -> None:
        """The watchdog looks at the clock from now on."""
        self._running[rank] = (step, monotonic())

    def end(self, rank: Rank) -> None:
        """The rank's step is over."""
        self._running.pop(rank, None)

    def abort(self, reason: str) -> None:
        """Send every thread of every rank home; the first reason stays."""
        with self._lock:
            self.reason = self.reason or reason
        for words in self._meetings:
            words[ABORT] = 1

    def close(self) -> None:
        """No rank can run a step after this."""
        self.abort("the device was closed")
        self._closed.set()
        if self._watch.is_alive():
            self._watch.join()

    def _look(self) -> None:
        while not self._closed.wait(WATCH_S):
            now = monotonic()
            for rank, (step, since) in list(self._running.items()):
                if now - since > self.limit_s:
                    self.abort(f"rank {rank} has been in step {step} for {self.limit_s:g} s")
