"""The benchmark's book layer with a tape: every fact that names pages, as the machine says it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..events import facts as f
from ..events.commands import Arrive
from ..events.facts import AnyFact, RunOpened
from ..events.ids import PageId, RequestId, StateId
from ..events.records import known
from ..events.tape import TapeWriter
from .bench_pool import Held, Pool
from .bench_turns import Turn


class TapedPool(Pool):
    """A pool whose facts are durable, `together` steps of the machine in one commit."""

    def __init__(
        self, opened: RunOpened, wishes: Sequence[Arrive], tape: TapeWriter, together: int = 1
    ) -> None:
        super().__init__(opened, wishes)
        self.commits = self.facts = 0
        self._tape = tape
        self._together = together
        self._steps = 0
        self._news: list[AnyFact] = []

    def begin(self, turn: Turn) -> None:
        """Pages that a stream takes over, after what went for it."""
        super().begin(turn)
        held = self._streams[turn.stream]
        if held.found:
            pages = _pages(held.table[: held.found])
            kind = "pages_adopted"
            self._news.append(known(f.PagesAdopted, kind=kind, stream=turn.stream, pages=pages))

    def let_go(self, turn: Turn, states: list[StateId]) -> None:
        """States that went."""
        for state in states:
            fact = known(
                f.StateDropped,
                kind="state_dropped",
                state=state,
                why="reclaimed",
                request=RequestId(str(turn.stream)),
            )
            self._news.append(fact)

    def lease(self, turn: Turn) -> None:
        """Pages that a stream leases."""
        super().lease(turn)
        held = self._streams[turn.stream]
        first = held.pages - turn.pages
        fact = known(
            f.PagesLeased,
            kind="pages_leased",
            stream=turn.stream,
            first=first,
            pages=_pages(held.table[first : held.pages]),
        )
        self._news.append(fact)

    def keep(self, turn: Turn) -> None:
        """Pages that a stream uses in place of its own, run by run, before the states it leaves."""
        held, at = self._streams[turn.stream], len(self._news)
        before = held.table[: turn.pages].copy()
        super().keep(turn)
        runs = _runs(before != held.table[: turn.pages]) if self.pool.swapped else []
        self._news[at:at] = [
            known(
                f.PagesSwapped,
                kind="pages_swapped",
                stream=turn.stream,
                first=first,
                pages=_pages(held.table[first:last]),
            )
            for first, last in runs
        ]

    def left(self, turn: Turn, held: Held, made: list[int]) -> None:
        """States that a stream left."""
        for number, pages in enumerate(made, self.states - len(made)):
            fact = known(
                f.SnapshotTaken,
                kind="snapshot_taken",
                state=StateId(number),
                stream=turn.stream,
                mark=pages,
                shared=True,
                pages=_pages(held.table[:pages]),
                digest={},
            )
            self._news.append(fact)

    def end(self, turn: Turn) -> None:
        """Pages that a stream gives back."""
        held = self._streams[turn.stream]
        pages, kind = _pages(held.table[: held.pages]), "pages_returned"
        self._news.append(known(f.PagesReturned, kind=kind, stream=turn.stream, pages=pages))
        super().end(turn)

    def step(self, turn: Turn) -> None:
        """Make durable what was said."""
        self._steps += 1
        if self._steps % self._together == 0:
            self.commit()

    def commit(self) -> None:
        """One commit of all that is not durable yet."""
        if self._news:
            self._tape.append(self._steps, (), self._news)
            self.commits += 1
            self.facts += len(self._news)
            self._news = []


def _pages(table: NDArray[np.int32]) -> tuple[PageId, ...]:
    return tuple(table.tolist())


def _runs(differ: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """From where to where, excluded, places differ."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], differ, [0]))))
    return [(int(first), int(last)) for first, last in zip(edges[::2], edges[1::2], strict=True)]
