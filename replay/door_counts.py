"""What a live run counts for its figures: totals since it began, and who holds the pages now."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ..core.lookups import Lookup, Reason
from ..core.state import FLAT, State, store_flag
from ..core.store_flat import state_bytes
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import StreamId


@dataclass(slots=True)
class Counts:
    """Totals that never go down; of facts that are durable.

    found: what the streams in lanes found, before it is known whether the ranks can read it back.
    misses, missed_tokens: prompts that found nothing, and rows that none was spared, by reason.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    rounds: int = 0
    steps: int = 0
    hits: int = 0
    kept: int = 0
    failed: int = 0
    refused: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Reason, 0))
    missed_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Reason, 0))
    found: dict[StreamId, Lookup] = field(default_factory=dict)

    def see(self, fact: AnyFact) -> Lookup | None:
        """Count a fact; what a prompt found, once that is settled."""
        if fact.kind == "round_run":  # by far the commonest
            self.rounds += 1
            return None
        match fact:
            case f.RequestArrived():
                self.prompt_tokens += len(fact.prompt)
            case f.RequestRefused():
                self.refused += 1
            case f.StreamBegun() if fact.state < 0:
                return self._settled(fact.stream)
            case f.StateResumed():
                self.hits += 1
                self.cached_tokens += fact.mark
                return self._settled(fact.stream)
            case f.ResumeRefused():
                self.failed += 1
                self.found.pop(fact.stream, None)
            case f.SnapshotTaken():
                self.kept += 1
            case f.StateDropped():
                self.dropped[fact.why] += 1
            case f.StreamReleased():
                self.found.pop(fact.stream, None)
            case _:
                pass
        return None

    def _settled(self, stream: StreamId) -> Lookup:
        lookup = self.found.pop(stream)
        if lookup.reason is not None:
            self.misses[lookup.reason] += not lookup.cached_tokens
            self.missed_tokens[lookup.reason] += lookup.missed
        return lookup


def pages_by_holder(state: State) -> dict[str, int]:
    """Every page of the pool once: who holds it, or to whom it is promised."""
    book = state.book
    leased, kept = book.leases > 0, book.kept > 0
    held = {
        "streams": int(np.count_nonzero(leased & ~kept)),
        "kept": int(np.count_nonzero(kept & ~leased)),
        "shared": int(np.count_nonzero(leased & kept)),
    }
    free = book.total - sum(held.values())
    promised = min(book.promised, free)
    return {"free": free - promised, "promised": promised, **held}


def store_bytes(state: State) -> tuple[int, int]:
    """Bytes of kept copies beside the pages, on the first rank: now, and at most."""
    if store_flag(state.opened) != FLAT:
        return 0, 0
    opened, kept = state.opened, list(state.kept.values())  # they change meanwhile
    return sum(state_bytes(opened, one.mark) for one in kept), opened.plan["cache_bytes"]
