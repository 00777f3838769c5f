"""Which kept prefix goes first: each waits in the queue of its kind, and its kind says how dear.

The order that weighs prefixes is made of what can be seen when a prompt comes: pages that came back
before come back again, the more often the surer; a conversation that goes on by a little goes on
once more; what a conversation has put in by the heap is replaced at its next turn. A prefix that
went is remembered by name for a while, so that a conversation is known again when it returns.
"""

from collections.abc import Callable, Sequence

from ..events.facts import RunOpened
from ..events.ids import StateId

SEEDS, LRU, RETURNS = 0, 1, 2  # flag `evict` of a run
POLICIES = {"seeds": SEEDS, "lru": LRU, "returns": RETURNS}

# Kinds of a prefix, by its last page: it came back once, twice, more often; or never, and it is a
# conversation's first prompt, a small addition to one, or a large one.
ONCE, TWICE, OFTEN, FIRST, SMALL, LARGE = range(6)
# The prefix whose age times its cost is the largest goes first.
COSTS = {LRU: (1, 1, 1, 1, 1, 1), RETURNS: (8, 4, 2, 10, 5, 32)}
SMALL_PART = 2  # an addition is small if it is at most one in so many of what was known
KNOWN_PAGES = 2  # a prompt goes on with a conversation if it repeats as many pages; one is anyone's
REMEMBERED = 4  # prefixes that are remembered after they went, for each page of the pool


class Order:
    """The order of a run's kept states, and the memory of those that went. Integers only."""

    def __init__(self, costs: Sequence[int], remembered: int) -> None:
        self._costs = costs
        self._most = remembered
        self._clock = 0
        self._queues: list[dict[StateId, int]] = [{} for _ in costs]  # when each was last used
        self._kinds: dict[StateId, int] = {}
        self._uses: dict[bytes, int] = {}  # by name of a prefix that went

    def tick(self) -> None:
        """Something was kept or came back: time goes on."""
        self._clock += 1

    def place(self, state: StateId, kind: int) -> None:
        """A state was used just now: it goes to the end of its kind's queue."""
        self.forget(state)
        self._kinds[state] = kind
        self._queues[kind][state] = self._clock

    def forget(self, state: StateId) -> None:
        """A state is gone."""
        kind = self._kinds.pop(state, None)
        if kind is not None:
            del self._queues[kind][state]

    def weakest(self, may_go: Callable[[StateId], bool]) -> StateId | None:
        """The state whose age weighs most of those that may go; of equals the dearer kind's."""
        best, most = None, -1
        for queue, cost in zip(self._queues, self._costs, strict=True):
            for state, used in queue.items():
                if (self._clock - used + 1) * cost <= most:
                    break  # the others of its kind are younger still
                if may_go(state):
                    best, most = state, (self._clock - used + 1) * cost
                    break
        return best

    def remember(self, name: bytes, uses: int) -> None:
        """A page's prefix went; the oldest memory makes room."""
        self._uses.pop(name, None)
        self._uses[name] = uses
        if len(self._uses) > self._most:
            del self._uses[next(iter(self._uses))]

    def remembers(self, name: bytes) -> bool:
        """Whether a prefix went and is remembered."""
        return name in self._uses

    def recall(self, name: bytes) -> int | None:
        """How often a prefix that is kept again had come back; None if it is not remembered."""
        return self._uses.pop(name, None)


def kind_of(uses: int, known: int, added: int) -> int:
    """The kind of a page: how often it came back, else what its prompt added to what was known.

    known, added: pages of the prompt that were known when it came, and those that were not.
    """
    if uses > 0:
        return min(uses, OFTEN + 1) - 1
    if known < KNOWN_PAGES:
        return FIRST
    return SMALL if added * SMALL_PART <= known else LARGE


def order_of(opened: RunOpened) -> Order | None:
    """The order of a run as its flag says; None for the seeds' order."""
    policy = opened.flags.get("evict", SEEDS)
    if policy == SEEDS:
        return None
    return Order(COSTS[policy], REMEMBERED * opened.pages if policy == RETURNS else 0)
