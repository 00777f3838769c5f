"""Orders for ranks that are processes without a model: they answer, hang, refuse or fail."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvtape.core.device import HeldRows, Pair, Report, Running
from kvtape.core.families.family import UnsupportedShape
from kvtape.core.link import RankLost
from kvtape.core.state import State
from kvtape.devices.circle import Circle
from kvtape.devices.rank_main import Line
from kvtape.events.facts import AnyFact
from kvtape.events.ids import Rank, StreamId


@dataclass(frozen=True, slots=True)
class PlainOrder:
    """A rank of numbers. does, at the start or in step `at`: refuse, fail, die, hang, or nothing.

    In every step ranks hand each other their number and the step's.
    """

    rank: int
    world: int
    does: str = ""
    at: int = -1
    limit_s: float = 30.0

    def make(self, line: Line) -> "PlainRank":
        """The rank."""
        if self.at < 0:
            act(self.does)
        circle = Circle(self.rank, self.world, [line.meeting], self.limit_s)
        line.cut = circle.stop
        return PlainRank(self, circle)


def act(what: str) -> None:
    """Do something that ranks should not."""
    if what == "refuse":
        raise UnsupportedShape("this rank has no room")
    if what == "fail":
        raise ValueError("a bit fell out")
    if what == "die":
        os._exit(3)
    if what == "hang":
        time.sleep(3600)


class PlainRank:
    """A device whose rows are numbers made of their coordinates."""

    def __init__(self, order: PlainOrder, circle: Circle) -> None:
        self.order, self.circle = order, circle
        self.met: list[list[int]] = []
        self.steps = 0
        self.every_row = False

    def launch(self, state: State, facts: Sequence[AnyFact], *, every_row: bool = False) -> Running:
        """Meet the others."""
        self.steps += 1
        if self.steps == self.order.at:
            act(self.order.does)
        self.circle.step, self.every_row = self.steps, every_row
        words = self.circle.words([self.order.rank, self.steps])
        if (words[:, 1] != self.steps).any():
            raise RankLost(f"ranks are in other steps: {words.tolist()}")
        self.met.append(words[:, 0].tolist())
        return self

    def report(self) -> Report:
        """What everybody brought."""
        return Report(Rank(self.order.rank), self.steps, tokens=[*self.met[-1], self.every_row])

    def probe(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> Pair:
        """Numbers of the question and of the state's."""
        return first + rows, state.step

    def read(
        self, state: State, stream: StreamId, part: str, layer: int, position: int
    ) -> dict[int, bytes]:
        """The rank and the position."""
        return {self.order.rank: bytes([position])}

    def read_rows(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> dict[int, HeldRows]:
        """Rows of ones."""
        return {0: HeldRows(np.arange(first, first + rows), np.ones((rows, 1), np.uint64))}

    def layers(self, part: str) -> int:
        """As many as letters."""
        return len(part)

    def close(self) -> None:
        """Leave the others."""
        self.circle.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)
