"""What ranks say to each other: facts down, reports up, and an abort that everyone hears."""

from collections.abc import Sequence
from typing import Protocol

from ..events.facts import AnyFact
from ..events.ids import Rank
from .device import Report


class RankLost(Exception):
    """A rank died, hung past the limit or refused a step; the message names rank and step."""


class Leader(Protocol):
    """Rank 0's end of the control channel."""

    def send(self, step: int, facts: Sequence[AnyFact], *, every_row: bool = False) -> None:
        """Give a step's facts to every follower and wait until they acknowledge its header.

        every_row: as a device's launch has it.
        """
        ...

    def collect(self, step: int) -> list[Report]:
        """The followers' reports of a step, by rank. Raises RankLost."""
        ...

    def close(self, reason: str) -> None:
        """End the followers' loops; nothing waits for ever."""
        ...


class Follower(Protocol):
    """A follower's end of the control channel."""

    rank: Rank
    every_row: bool  # of the step received last

    def receive(self) -> tuple[int, Sequence[AnyFact]] | None:
        """The next step's facts, None when the run is over."""
        ...

    def report(self, report: Report) -> None:
        """Say what this rank did."""
        ...

    def fail(self, error: BaseException) -> None:
        """Say that this rank cannot go on."""
        ...
