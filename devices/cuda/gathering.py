"""Where ranks hand each other columns: a launch that can be told from the others of a step."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from .card import Array, Launch


class Gather(Protocol):
    """How one rank's columns come to all. What is bound runs in every step, on all ranks alike.

    said: the way, for whoever starts a server.
    """

    said: str

    def bind(self, x: Array, first: int, last: int) -> list[Launch]:
        """Launches after which x [rows, width] has every rank's columns; [first, last) are own.

        All ranks bind the same gathers in the same order.
        """
        ...

    def compare(self) -> list[Launch]:
        """Launches that stand before a step's first gather: whether all ranks mean the same step.

        A step that was begun with another header is found by `check` after it.
        """
        ...

    def begin(self, step: int, header: int) -> None:
        """A step is about to be put into the stream."""
        ...

    def end(self) -> None:
        """All of it is in the stream."""
        ...

    def check(self, step: int) -> None:
        """The stream has been waited for. Raises RankLost: another step, or a rank that is gone."""
        ...

    def close(self) -> None:
        """No step comes any more."""
        ...


class Alone:
    """A rank without others has every column already, and nobody to compare a step with."""

    said = ""

    def bind(self, x: Array, first: int, last: int) -> list[Launch]:
        """Nothing to do."""
        return []

    def compare(self) -> list[Launch]:
        """Nobody to ask."""
        return []

    def begin(self, step: int, header: int) -> None:
        """Nobody is told."""

    def end(self) -> None:
        """Nobody is told."""

    def check(self, step: int) -> None:
        """Nobody can be lost."""

    def close(self) -> None:
        """Nothing is held."""


alone = Alone()


@dataclass(frozen=True, slots=True)
class Gathering:
    """A launch in which the host takes part, so that no graph can hold it."""

    do: Launch

    def __call__(self) -> None:
        """Hand over."""
        self.do()


def pieces(launches: Iterable[Launch]) -> Iterator[list[Launch] | Gathering]:
    """Launches cut at what the host does: what stands between two cuts can be one graph."""
    piece: list[Launch] = []
    for launch in launches:
        if isinstance(launch, Gathering):
            if piece:
                yield piece
            yield launch
            piece = []
        else:
            piece.append(launch)
    if piece:
        yield piece
