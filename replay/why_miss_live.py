"""The observer of misses beside a live run: it sees each fact before the run applies it."""

from collections.abc import Callable, Iterator, Sequence

from ..core.lookups import Lookup
from ..core.misses import Misses
from ..core.state import State
from ..events.commands import AnyCommand
from ..events.facts import AnyFact
from .loop import Decide


def watched(
    decide: Decide, misses: Misses, next_seq: Callable[[], int], tell: Callable[[Lookup], None]
) -> Decide:
    """Decide as before, and tell of each prompt what it found.

    next_seq: the number that the next command or fact will have on the tape.
    """

    def watching(state: State, commands: Sequence[AnyCommand]) -> Iterator[AnyFact]:
        first = next_seq() + len(commands)
        for seq, fact in enumerate(decide(state, commands), first):
            found = misses.see(seq, fact, state)
            if found is not None:
                tell(found)
            yield fact

    return watching
