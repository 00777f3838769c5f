"""Where rank threads of one process meet to exchange values, and hear of a rank that stopped."""

from collections.abc import Sequence
from threading import Condition
from typing import Any

from ..core.link import RankLost


class Meeting:
    """A place for `world` threads. Every rank brings a value and leaves with everybody's.

    The first rank that stops gives its reason, and whoever waits or comes later hears it: nobody
    waits longer than the limit for a rank that does not come.
    """

    def __init__(self, world: int, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._condition = Condition()
        self._came = [0] * world
        self._values: tuple[list[Any], list[Any]] = ([None] * world, [None] * world)
        self._stopped = ""

    def exchange(self, rank: int, step: int, value: object) -> Sequence[Any]:
        """The values of all ranks, by rank; they stay until the next meeting but one."""
        with self._condition:
            self._came[rank] += 1
            turn = self._came[rank]
            values = self._values[turn % 2]
            values[rank] = value
            self._condition.notify_all()
            met = self._condition.wait_for(
                lambda: self._stopped or min(self._came) >= turn, self._limit_seconds
            )
            if not met:
                absent = [other for other, came in enumerate(self._came) if came < turn]
                self._stopped = f"rank {absent[0]} did not come in step {step}"
                self._condition.notify_all()
            if self._stopped and min(self._came) < turn:
                raise RankLost(
                    f"{self._stopped}; rank {rank} waited {self._limit_seconds:g} s at most"
                )
            return values

    def stop(self, reason: str) -> None:
        """Wake everybody: a rank will not come any more."""
        with self._condition:
            self._stopped = self._stopped or reason
            self._condition.notify_all()
