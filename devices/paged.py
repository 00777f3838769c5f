"""A rank whose rows stand on pages: what facts do to its memory, and what it answers of it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.device import Ack, Break, HeldRows, Pair, Report
from ..core.digests import add_pairs
from ..core.kernels.program_memory import Draws
from ..core.state import State
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import NO_STATE, Rank, StreamId
from ..events.records import FamilyRules
from .batch import Batch
from .inspect import Looks
from .last_step import sum_logits, sum_tokens
from .ledger import Ledger
from .settings import DeviceSettings

T = TypeVar("T")


@dataclass(slots=True)
class PagedRunning(Generic[T]):
    """A step under way. finish: its device's; tables: the step's, as that device has them."""

    finish: "Callable[[PagedRunning[T]], Report]"
    state: State
    batch: Batch
    tables: T
    draws: Draws
    acks: list[Ack]
    breaks: list[Break]
    every_row: bool

    def report(self) -> Report:
        """Wait for the step and say what it did. Raises RankLost if it was aborted, or failed."""
        return self.finish(self)


class PagedRank:
    """The part of a device that does not ask where its pages are. They are looked into by another.

    The last step's logits are what `logits` finds.
    """

    rank: Rank
    settings: DeviceSettings
    rules: FamilyRules
    ledger: Ledger
    inspector: Any  # a Looks

    def logits(self, stream: StreamId, position: int) -> NDArray[np.float32] | None:
        """A row of logits [vocab] of the last step, if it computed that one."""
        raise NotImplementedError

    def probe(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> Pair:
        """The digest of some rows of one digest layer, summed anew from memory."""
        if part in self.rules.split:
            return self._looks.sum(table_of(state, stream), first, first + rows, layer)
        if part == "tokens":
            return sum_tokens(state, stream, first, rows)
        found = [(at, self.logits(stream, at)) for at in range(first, first + rows)]
        return add_pairs(*(sum_logits(row, at) for at, row in found if row is not None))

    def read(
        self, state: State, stream: StreamId, part: str, layer: int, position: int
    ) -> dict[int, bytes]:
        """The bytes of one row of one digest layer, by head; logits of the last step alone."""
        if part in self.rules.split:
            return self._looks.read(table_of(state, stream), layer, position)
        if part == "tokens":
            return {0: np.int64(state.streams[stream].tokens[position]).tobytes()}
        row = self.logits(stream, position)
        return {} if row is None else {0: row.tobytes()}

    def read_rows(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> dict[int, HeldRows]:
        """The rows of one digest layer that stand at these positions, by head."""
        assert part in self.rules.split, f"{part} is not in memory"
        found = self._looks.read_rows(table_of(state, stream), layer, first, first + rows)
        positions = np.arange(first, first + rows)
        return {head: HeldRows(positions, words) for head, words in found.items()}

    def layers(self, part: str) -> int:
        """How many digest layers a part has."""
        return self._looks.layers if part in self.rules.split else 1

    def do(self, state: State, fact: AnyFact, acks: list[Ack], breaks: list[Break]) -> None:
        """What one fact means to memory, before the step computes."""
        if isinstance(fact, f.PagesLeased):
            self.ledger.leased(fact.pages)
            if self.settings.poisons:
                self._looks.poison_pages(fact.pages, self.settings.poison)
        elif isinstance(fact, f.StreamBegun):
            if fact.state == NO_STATE:
                self.ledger.begin(fact.stream, fact.lane)
            else:
                self._resume(state, fact, acks, breaks)
        elif isinstance(fact, f.ResumeRefused | f.StreamReleased):
            self.ledger.forget(fact.stream)
        elif isinstance(fact, f.FaultInjected) and fact.rank == self.rank:
            self._looks.flip(table_of(state, fact.stream), fact)

    def _resume(
        self, state: State, fact: f.StreamBegun, acks: list[Ack], breaks: list[Break]
    ) -> None:
        """Sum the adopted pages anew; a difference to what was written is a broken sum."""
        rows = fact.kept_pages * self.rules.page_rows
        digest: dict[str, Pair] = {}
        found = (0, 0)
        if self.settings.keeps_rows:
            table = table_of(state, fact.stream)
            found = self._looks.sum(table, 0, rows)
            kept = self.ledger.of_pages(table[: fact.kept_pages])
            if found != kept:
                breaks.append(Break(fact.stream, "rows", kept, found))
            digest = {"rows": found}
        tokens = state.streams[fact.stream].tokens[:rows]
        self.ledger.resume(fact.stream, fact.lane, found, tokens)
        acks.append(Ack(fact.stream, fact.state, ok=True, digest=digest))

    @property
    def _looks(self) -> Looks:
        looks: Looks = self.inspector
        return looks


def leases_together(facts: Iterable[AnyFact]) -> Iterator[AnyFact]:
    """Facts in order; of leases that follow each other one, so that poison is laid on all at once.

    Nothing that is asked of memory stands between them, and whose pages they are is no matter.
    """
    for leases, some in groupby(facts, key=lambda fact: isinstance(fact, f.PagesLeased)):
        if not leases:
            yield from some
            continue
        first, *more = some
        pages = [page for one in (first, *more) for page in one.pages]  # type: ignore[union-attr]
        yield first.model_copy(update={"pages": tuple(pages)}) if more else first


def table_of(state: State, stream: StreamId) -> NDArray[np.int32]:
    """The page table of a seated stream."""
    table: NDArray[np.int32] = state.tables[state.streams[stream].lane]
    return table
