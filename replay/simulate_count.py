"""What a simulated run shows: hits by depth, evictions, waiting, pages over time, operations."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.state import State
from ..devices.simulated import SimulatedDevice
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import StreamId
from .simulate_pool import LruPool
from .simulate_trace import PAGE_ROWS, Asked

SAMPLES = 600  # at most, of pages over time


@dataclass(slots=True)
class Sample:
    """Pages at a time of the device's clock: of all held ones those that streams hold."""

    at_us: int
    leased: int
    kept: int
    waiting: int


@dataclass(slots=True)
class Counts:
    """A door that counts. lru_pages: of the plain pool that is run beside it, 0 for none.

    depths: by power of two of a page's place in its prompt, pages asked for and pages found.
    operations: pages that facts leased, lent, swapped, returned, kept or let go.
    """

    asked: Sequence[Asked]
    device: SimulatedDevice
    lru_pages: int = 0
    hits: int = 0
    references: int = 0
    refused: int = 0
    steps: int = 0
    events: int = 0
    operations: int = 0
    seconds: float = 0.0
    depths: dict[int, list[int]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    waits_us: list[int] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    lru: LruPool | None = None
    _held: dict[int, int] = field(default_factory=dict)  # pages of each kept state
    _asked_by: dict[StreamId, Asked] = field(default_factory=dict)  # who waits
    _every_us: int = 1

    def __post_init__(self) -> None:
        """The plain pool, and how often pages are looked at."""
        self.lru = LruPool(self.lru_pages) if self.lru_pages else None
        self._every_us = max(1, self.asked[-1].at_us // SAMPLES)

    def show(self, step: int, first_seq: int, facts: Sequence[AnyFact], state: State) -> None:
        """Count a step's facts."""
        self.steps += 1
        self.events += len(facts)
        for fact in facts:
            match fact:
                case f.StreamQueued():
                    self._asked_by[fact.stream] = self.asked[int(fact.request)]
                case f.StreamBegun() if fact.stream not in self._asked_by:
                    pass  # it begins again, its resume was refused
                case f.StreamBegun():
                    self._begun(fact)
                case f.PagesLeased() | f.PagesAdopted() | f.PagesSwapped() | f.PagesReturned():
                    self.operations += len(fact.pages)
                case f.SnapshotTaken():
                    self.operations += len(fact.pages)
                    self._held[fact.state] = len(fact.pages)
                case f.StateDropped():
                    self.operations += self._held.pop(fact.state)
                    self.dropped[fact.why] += 1
                case f.StreamReleased() if self.lru is not None:
                    self.lru.finish(fact.stream)
                case f.RequestRefused():
                    self.refused += 1
                case _:
                    pass
        last = self.samples[-1].at_us if self.samples else -self._every_us
        if self.device.now_us - last >= self._every_us:
            self._sample(state)

    def _begun(self, fact: f.StreamBegun) -> None:
        asked = self._asked_by.pop(fact.stream)
        self.waits_us.append(self.device.now_us - asked.at_us)
        self.hits += fact.kept_pages
        self.references += asked.ids
        for page in range(asked.ids):
            depth = self.depths.setdefault((page + 1).bit_length() - 1, [0, 0])
            depth[0] += 1
            depth[1] += page < fact.kept_pages
        if self.lru is not None:
            names = asked.prompt[: len(asked.prompt) // PAGE_ROWS * PAGE_ROWS : PAGE_ROWS]
            rows = len(asked.prompt) + asked.reply
            self.lru.begin(fact.stream, names, -(-rows // PAGE_ROWS) - len(names))

    def _sample(self, state: State) -> None:
        book = state.book
        leased = int((book.leases > 0).sum())
        kept = book.total - book.free - leased
        self.samples.append(Sample(self.device.now_us, leased, kept, len(state.queue)))
