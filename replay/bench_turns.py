"""Whose turn it is in the benchmark's book layer: noted from a run of the whole machine.

What other servers measure as their pool of blocks has no requests, scheduler or facts. So a run of
the machine says who begins, leases, keeps and ends, and when; which pages that gives, what is
found, and who goes for it, the book says again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..core.state import State
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import StreamId

BEGIN, RESUME, LEASE, KEEP, END, STEP = range(6)


class Turn(NamedTuple):
    """What a stream does next, in its lane. pages: wanted as it begins, leased, or kept.

    hit: whether it may begin on what is found; a machine without room for that begins without.
    """

    what: int
    stream: StreamId
    lane: int = 0
    pages: int = 0
    hit: bool = False


@dataclass(slots=True)
class Turns:
    """A door that notes whose turn it is; a mark may leave two states, which is one turn."""

    turns: list[Turn] = field(default_factory=list)
    _lanes: dict[StreamId, int] = field(default_factory=dict)
    _marks: dict[StreamId, tuple[int, ...]] = field(default_factory=dict)

    def show(self, step: int, first_seq: int, facts: Sequence[AnyFact], state: State) -> None:
        """Note a step's turns; a page is a row."""
        before = len(self.turns)
        for fact in facts:
            match fact:
                case f.StreamBegun():
                    self._lanes[fact.stream], self._marks[fact.stream] = fact.lane, fact.marks
                    wanted = fact.kept_pages + fact.promise_pages
                    self._note(BEGIN, fact.stream, wanted, hit=fact.kept_pages > 0)
                case f.StateResumed():
                    self._note(RESUME, fact.stream)
                case f.PagesLeased():
                    self._note(LEASE, fact.stream, len(fact.pages))
                case f.PagesSwapped():
                    self._keep(fact.stream, self._marks[fact.stream][-1])
                case f.SnapshotTaken() if fact.mark in self._marks[fact.stream]:
                    self._keep(fact.stream, fact.mark)
                case f.StreamReleased():
                    self._note(END, fact.stream)
                case _:
                    pass  # nobody's turn, or what follows from one
        if len(self.turns) > before:
            self.turns.append(Turn(STEP, StreamId(-1)))

    def _note(self, what: int, stream: StreamId, pages: int = 0, *, hit: bool = False) -> None:
        self.turns.append(Turn(what, stream, self._lanes.get(stream, 0), pages, hit))

    def _keep(self, stream: StreamId, pages: int) -> None:
        last = self.turns[-1]
        if last[:2] != (KEEP, stream) or last.pages != pages:
            self._note(KEEP, stream, pages)
