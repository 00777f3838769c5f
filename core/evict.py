"""Which kept prefix goes first: each waits in the queue of its level; the least worth of them goes.

A state that another extends is in no queue: its pages go after those of the other.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

from ..events.facts import RunOpened
from ..events.ids import StateId
from .odds import LEVELS, Odds

SEEDS, LRU, ODDS = 0, 1, 3  # flag `evict` of a run; 2 was an order that is no more
POLICIES = {"seeds": SEEDS, "lru": LRU, "odds": ODDS}


class Order:
    """The order of a run's kept states. odds: what a level is worth; None where age is all."""

    def __init__(self, odds: Odds | None) -> None:
        self.odds = odds
        self.clock = 0
        self._queues: list[list[tuple[int, StateId]]] = [[] for _ in range(LEVELS)]  # oldest first
        self._places: dict[StateId, tuple[int, int]] = {}  # its level, and when it was last used

    def tick(self) -> None:
        """Something was kept or came back: time goes on."""
        self.clock += 1
        if self.odds is not None:
            self.odds.tick()

    def place(self, state: StateId, level: int, used: int) -> None:
        """A state takes its place in the queue of its level by when it was last used."""
        self.forget(state)
        self._places[state] = level, used
        insort(self._queues[level], (used, state))

    def forget(self, state: StateId) -> None:
        """A state is gone, or another extends it."""
        if state in self._places:
            level, used = self._places.pop(state)
            queue = self._queues[level]
            del queue[bisect_left(queue, (used, state))]

    def weakest(self, may_go: Callable[[StateId], bool]) -> StateId | None:
        """Of the oldest in each queue that may go the one worth least; of equals the older."""
        best: tuple[int, int, StateId] | None = None
        for level, queue in enumerate(self._queues):
            for used, state in queue:
                if may_go(state):
                    worth = self.odds.worth(level, self.clock - used) if self.odds else 0
                    best = min(best or (worth, used, state), (worth, used, state))
                    break
        return None if best is None else best[2]


def order_of(opened: RunOpened) -> Order | None:
    """The order of a run as its flag says; None for the seeds' order."""
    policy = opened.flags.get("evict", SEEDS)
    assert policy in POLICIES.values(), f"evict {policy} is no order of {POLICIES}"
    if policy == SEEDS:
        return None
    return Order(Odds(opened.pages) if policy == ODDS else None)
