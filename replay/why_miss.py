"""What every prompt of a recorded run found of itself in the store, and why no more."""

from collections.abc import Iterable

from ..core.apply import apply
from ..core.lookups import Lookup
from ..core.misses import Misses
from ..core.state import open_state
from ..devices.kernel_cache import keep_book
from ..events.facts import RunOpened
from ..events.ids import StreamId
from ..events.reader import Step
from .rerun import Tick, numbered


class BrokenRun(Exception):
    """A run whose facts do not fit each other; the message names the first that does not."""

    exit_code = 2


def lookups_of(
    opened: RunOpened, steps: Iterable[Step], tick: Tick = lambda step: None
) -> list[Lookup]:
    """What each stream found when it began, or began last, in the order they came.

    Raises BrokenRun.
    """
    keep_book()
    state, misses = open_state(opened), Misses(opened)
    found: dict[StreamId, Lookup] = {}
    for step in steps:
        for seq, fact in numbered(step):
            try:
                lookup = misses.see(seq, fact, state)
                apply(state, fact)
            except (AssertionError, KeyError, IndexError, ValueError) as error:
                raise BrokenRun(
                    f"event {seq}, {fact.kind}, does not fit the ones before it: "
                    f"{type(error).__name__}: {error}; `audit` says more"
                ) from None
            if lookup is not None:
                found[lookup.stream] = lookup
        tick(step.step)
    return [found[stream] for stream in sorted(found)]
