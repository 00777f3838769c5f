"""Steps as graphs: a bucket of rows is lowered, run once and captured when it is first needed."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from .card import Card, Launch
from .gathering import Gathering, pieces

Lower = Callable[[int], list[Launch]]


def buckets_of(rows: int) -> tuple[int, ...]:
    """Powers of two below the most rows of a step, and that number itself."""
    found = [1]
    while found[-1] * 2 < rows:
        found.append(found[-1] * 2)
    return (*found, rows) if rows > 1 else (1,)


class Graphs:
    """What runs a number of rows: the graph of the smallest bucket that has room for them.

    A graph is made at the first step of its bucket. The launches run once before they are captured,
    over the very step that needs them: no kernel may be compiled or loaded while a graph is made.
    Where the host takes part in a gather, a step is several graphs.
    """

    def __init__(self, card: Card, lower: Lower, *, rows: int, captures: bool = True) -> None:
        self.buckets = buckets_of(rows)
        self._card, self._lower, self._captures = card, lower, captures
        self._graphs: dict[int, Launch] = {}

    def bucket(self, rows: int) -> int:
        """The rows that a step of so many is filled up to; 0 of 0."""
        return self.buckets[bisect_left(self.buckets, rows)] if rows else 0

    def lowered(self, rows: int) -> list[Launch]:
        """What a bucket of so many rows launches."""
        return self._lower(rows)

    def run(self, rows: int) -> None:
        """Put a step of so many rows, filled up to its bucket, into the stream."""
        bucket = self.bucket(rows)
        if not bucket:
            return
        if bucket in self._graphs:
            self._graphs[bucket]()
            return
        launches = self._lower(bucket)

        all_of(launches)()
        if self._captures:
            launches = [
                one if isinstance(one, Gathering) else self._card.captured(all_of(one))
                for one in pieces(launches)
            ]
        self._graphs[bucket] = all_of(launches)

    def close(self) -> None:
        """Let the graphs go."""
        self._graphs.clear()


def all_of(launches: Sequence[Launch]) -> Launch:
    """Several launches as one."""

    def launch_all() -> None:
        for launch in launches:
            launch()

    return launch_all
