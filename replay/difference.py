"""What a comparison found: how much was equal, and the first value that was not."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..events.ids import StreamId
from ..events.records import Digests

NOBODY = -1  # no stream, no rank, no layer: the value belongs to all


@dataclass(frozen=True, slots=True)
class Difference:
    """Two values that should be one.  step, seq: where the tape says its own, in fact `seq`.

    rank: whose share, -1 for the sum over ranks.  stream: the tape's number, -1 for the book.
    left: the tape's.  right: the replay's, or the other tape's.  position: kept rows, -1 unknown.
    """

    step: int
    seq: int
    part: str
    stream: int = NOBODY
    rank: int = NOBODY
    position: int = NOBODY
    session: str = ""
    left: str = ""
    right: str = ""


@dataclass(slots=True)
class Comparison:
    """compared: equal values by part.  first_step: the first of which anything was compared."""

    compared: Counter[str] = field(default_factory=Counter)
    first: Difference | None = None
    first_step: int | None = None
    not_comparable: set[str] = field(default_factory=set)

    @property
    def at_once(self) -> bool:
        """Whether the very first step that could be compared differs already."""
        return self.first is not None and self.first.step == self.first_step

    def see(self, difference: Difference) -> None:
        """Compare two values; the first unequal pair is kept, later ones do not matter."""
        if self.first is not None:
            return
        if self.first_step is None:
            self.first_step = difference.step
        if difference.left == difference.right:
            self.compared[difference.part] += 1
        else:
            self.first = difference

    def see_sums(self, at: Difference, left: Mapping[str, str], right: Mapping[str, str]) -> None:
        """Compare sums by part, in the tape's order; `at` says whose they are."""
        for part, value in left.items():
            ours = right.get(part, "")
            if value and ours:
                self.see(
                    Difference(
                        at.step, at.seq, part, at.stream, at.rank, at.position, at.session,
                        value, ours,
                    )
                )  # fmt: skip
            elif value:
                self.not_comparable.add(part)


def shares_of(digests: Digests, stream: StreamId) -> list[dict[str, str]]:
    """A stream's sums by part, rank by rank, of the parts that are split."""
    at = digests.streams.index(stream)
    world = max((len(shares[at]) for shares in digests.ranks.values()), default=0)
    return [
        {part: shares[at][rank] for part, shares in digests.ranks.items()} for rank in range(world)
    ]
