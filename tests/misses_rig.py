"""A machine with the observer of misses beside it, and the observer over the same facts again."""

from collections.abc import Iterator

from kvtape.core.apply import apply
from kvtape.core.lookups import Lookup
from kvtape.core.misses import Misses
from kvtape.core.state import open_state
from kvtape.events.facts import AnyFact, RunOpened
from kvtape.replay.why_miss_live import watched

from .rig import Rig


class Watched(Rig):
    """A machine with the observer beside it."""

    def __init__(self, opened: RunOpened, remembered: int = 2**17) -> None:
        super().__init__(opened)
        self.misses = Misses(opened, remembered)
        self.lookups: list[Lookup] = []
        self.decide = watched(self.decide, self.misses, self.next_seq, self.lookups.append)

    def next_seq(self) -> int:
        """The number that the next row of a tape would have."""
        return 1 + sum(map(len, self.commands)) + sum(map(len, self.steps))

    def found(self, name: str) -> Lookup:
        """What a request found, the last time that it began."""
        return [one for one in self.lookups if one.request == name][-1]

    def numbered(self) -> Iterator[tuple[int, AnyFact]]:
        """Every fact with its number."""
        seq = 1
        for commands, facts in zip(self.commands, self.steps, strict=True):
            seq += len(commands)
            yield from enumerate(facts, seq)
            seq += len(facts)

    def fact_at(self, seq: int) -> AnyFact:
        """A fact by its number."""
        return dict(self.numbered())[seq]


def seen_again(rig: Watched) -> list[Lookup]:
    """What an observer says that reads the facts as a tape has them."""
    state, misses, found = open_state(rig.opened), Misses(rig.opened), []
    for seq, fact in rig.numbered():
        lookup = misses.see(seq, fact, state)
        apply(state, fact)
        found += [lookup] if lookup is not None else []
    return found
