"""Whoever keeps a run's facts: the tape, or nobody."""

import logging
import time
from collections.abc import Sequence

from ..events.commands import AnyCommand
from ..events.errors import TapeError
from ..events.facts import AnyFact
from ..events.tape import TapeWriter, Times
from .backfill import Backfill

LOG = logging.getLogger("kvtape.tape")


class NoTape:
    """Keeps nothing but the count, so that receipts still number events.

    next_seq: what the next command or fact is numbered.
    """

    def __init__(self) -> None:
        self.next_seq = 0

    def append(self, step: int, commands: Sequence[AnyCommand], facts: Sequence[AnyFact]) -> int:
        """Count them."""
        first = self.next_seq + len(commands)
        self.next_seq = first + len(facts)
        return first

    def keep(self, blob: bytes) -> None:
        """Nothing keeps bytes."""

    def close(self, reason: str, error: str = "") -> None:
        """Nothing to close."""

    def abandon(self) -> None:
        """Nothing to let go of."""


class TapeRecorder:
    """Writes each step in one transaction, with its clocks beside it.

    When the tape cannot be written the run stops, unless it was told to go on without one.
    """

    def __init__(self, writer: TapeWriter, *, stop_on_error: bool) -> None:
        self._writer = writer
        self._stop = stop_on_error
        self._without = NoTape()
        self._lost = False
        self._last = time.monotonic_ns()
        self._backfill = Backfill(writer)

    @property
    def next_seq(self) -> int:
        """What the next command or fact is numbered."""
        return self._without.next_seq if self._lost else self._writer.seq

    def append(self, step: int, commands: Sequence[AnyCommand], facts: Sequence[AnyFact]) -> int:
        """Make them durable; the number of the first fact."""
        without = self._without.append(step, commands, facts)
        if self._lost:
            return without
        now = time.monotonic_ns()
        times, self._last = Times(time.time_ns(), now, now - self._last), now
        try:
            first = self._writer.append(step, commands, facts, times).start + len(commands)
        except TapeError as error:
            self._backfill.close()
            if self._stop:
                raise
            self._lost = True
            LOG.error("%s; serving goes on without a tape, which ends at step %d", error, step)
            return without
        self._backfill.appended()
        return first

    def keep(self, blob: bytes) -> None:
        """Put bytes on the tape that the next facts name."""
        if not self._lost:
            self._writer.keep(blob)

    def close(self, reason: str, error: str = "") -> None:
        """End the run on the tape and seal it; a tape that was lost stays as it is."""
        self._backfill.close()
        if not self._lost:
            self._writer.close(reason, error)

    def abandon(self) -> None:
        """Let go of a run that broke off: what was made durable stays, unsealed."""
        self._backfill.close()
        self._writer.abandon()
