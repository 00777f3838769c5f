"""Where ranks hand each other columns: a launch that can be told from the others of a step."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .card import Array, Launch

Gather = Callable[[Array, int, int], None]  # a float buffer [rows, width], own columns


def alone(x: Array, first: int, last: int) -> None:
    """A rank without others has every column already."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """A launch after which x [rows, width] has the columns of every rank; [first, last) are own."""

    gather: Gather
    x: Array
    first: int
    last: int

    def __call__(self) -> None:
        """Hand over."""
        self.gather(self.x, self.first, self.last)


def gathering(gather: Gather, x: Array, first: int, last: int) -> list[Launch]:
    """A gather as launches: none for a rank without others."""
    return [] if gather is alone else [Gathering(gather, x, first, last)]


def pieces(launches: Iterable[Launch]) -> Iterator[list[Launch] | Gathering]:
    """Launches cut at their gathers: what stands between two of them can be one graph."""
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
