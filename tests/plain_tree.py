"""What the prompt tree means, plainly: nodes of one page, maps of them, sorted lists that wait."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvtape.core.paging.odds import KNOWN_PAGES, LEVELS, MANY
from kvtape.core.prefix_names import name_of, packed, page_keys
from kvtape.events.ids import PageId, StateId, StreamId

from .plain_odds import Memory, Odds, Part


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


@dataclass(slots=True, eq=False)
class Node:
    """One kept page below its parent; `ends` are the states whose last page this is.

    used: the order's clock when the page was last used, where there is one. name, uses, turn, part:
    for odds: which prefix ends here, how often it came back, in which turn of its conversation, and
    of which part of that prompt it is.
    """

    parent: "Node | None"
    key: bytes
    page: PageId
    depth: int
    kids: dict[bytes, "Node"] = field(default_factory=dict)
    ends: list[StateId] = field(default_factory=list)
    used: int = 0
    name: bytes = b""
    uses: int = 0
    turn: int = 0
    part: Part | None = None


class PlainTree:
    """Kept prefixes by tokens; a forest with one root for each salt."""

    def __init__(self, page_rows: int, lookahead: int, order: Order | None = None) -> None:
        """order: who goes first, where it is not the seeds' order."""
        self.page_rows = page_rows
        self.lookahead = lookahead
        self.order = order
        self.odds = None if order is None else order.odds
        self._roots: dict[str, Node] = {}
        self._end: dict[StateId, Node] = {}
        self._used_by: dict[StreamId, list[Node]] = {}  # while the stream is there, for odds

    def walk(self, tokens: Sequence[int], salt: str, pages: int) -> list[Node]:
        """The nodes that repeat these tokens from row 0 on, at most `pages` of them."""
        node = self._roots.get(salt)
        path: list[Node] = []
        if node is None:
            return path
        for key in self._keys(tokens, pages):
            node = node.kids.get(key)
            if node is None:
                break
            path.append(node)
        return path

    def remembered(self, tokens: Sequence[int], salt: str, pages: int) -> int:
        """Pages up to the last that went and is remembered; `pages` where it is none, or all."""
        odds = self.odds
        if odds is None:
            return pages
        path = self.walk(tokens, salt, pages)
        name, known = path[-1].name if path else salt.encode(), len(path)
        for key in self._keys(tokens, pages)[known:]:
            name = name_of(name, key)
            if not odds.remembers(name):
                break
            known += 1
        return known if known > len(path) else pages

    def state_below(self, node: Node) -> StateId:
        """A state that holds this node's page: the one reached by the oldest children."""
        while not node.ends:
            node = next(iter(node.kids.values()))
        return node.ends[-1]

    def add(
        self,
        state: StateId,
        tokens: Sequence[int],
        salt: str,
        pages: Sequence[PageId],
        stream: StreamId,
        prompt_pages: int,
    ) -> None:
        """Keep a state's prefix; where the tree has its tokens, its pages are the tree's.

        stream: it leaves the state. prompt_pages: whole ones of its prompt.
        """
        if salt not in self._roots:
            self._roots[salt] = Node(None, b"", PageId(-1), 0, name=salt.encode())
        node = self._roots[salt]
        new: list[Node] = []
        for page, key in zip(pages, self._keys(tokens, len(pages)), strict=True):
            kid = node.kids.get(key)
            if kid is None:
                kid = node.kids[key] = Node(node, key, page, node.depth + 1)
                new.append(kid)
            assert kid.page == page, (
                f"state {state} keeps page {page} where the tree has {kid.page}"
            )
            node = kid
        node.ends.append(state)
        self._end[state] = node
        if self.order is not None:
            self.order.tick()
            if new and new[0].parent is not None:
                for extended in new[0].parent.ends:
                    self.order.forget(extended)
            if self.odds is not None:
                self._weigh(self.odds, new, prompt_pages)
                self._used_by.setdefault(stream, []).extend(new)
            node.used = self.order.clock
            self._place(self.order, node)

    def drop(self, state: StateId) -> None:
        """Forget a state and every node that no other state holds."""
        node = self._end.pop(state)
        node.ends.remove(state)
        if self.order is not None:
            self.order.forget(state)
        while node.parent is not None and not node.ends and not node.kids:
            del node.parent.kids[node.key]
            if self.odds is not None and node.part is not None:
                self.odds.remember(node.name, Memory(node.uses, node.turn, node.part))
            node = node.parent
        if self.order is not None:
            self._place(self.order, node)

    def resumed(self, state: StateId, pages: int, stream: StreamId, prompt_pages: int) -> None:
        """The first `pages` pages of a state came back; so did every state that they hold.

        stream: they came back for it. prompt_pages: whole ones of its prompt.
        """
        if self.order is None:
            return
        self.order.tick()
        path: list[Node] = []
        node: Node | None = self._end[state]
        while node is not None and node.parent is not None:
            if node.depth <= pages:
                path.append(node)
            node = node.parent
        path.reverse()
        for node in path:
            node.used = self.order.clock
        if self.odds is not None:
            self._came_back(self.odds, path, max(0, prompt_pages - pages))
            if prompt_pages <= pages:
                self.odds.came(1)  # time goes on where nothing is added, too
            self._used_by[stream] = list(path)
        for node in path:
            self._place(self.order, node)

    def ended(self, stream: StreamId) -> None:
        """A reply ended: its prompt's pages were in use until now."""
        if self.order is None:
            return
        for node in self._used_by.pop(stream, ()):
            node.used = self.order.clock
            if node.part is not None:
                node.part.born = node.used
            self._place(self.order, node)

    def weakest(self, may_go: Callable[[StateId, PageId], bool]) -> StateId | None:
        """The first to go of the states that no other extends, by the order; with its last page."""
        assert self.order is not None
        return self.order.weakest(lambda state: may_go(state, self._end[state].page))

    def _place(self, order: Order, node: Node) -> None:
        """The states that end at a page wait for their turn to go, unless others extend them."""
        if not node.kids:
            for state in node.ends:
                order.place(state, node.part.level if node.part else 0, node.used)

    def _weigh(self, odds: Odds, new: Sequence[Node], prompt_pages: int) -> None:
        """Name the pages that a prompt added, and say what they are; some are remembered."""
        back: list[Node] = []
        for node in new:
            assert node.parent is not None
            node.used = self._now()
            node.name = name_of(node.parent.name, node.key)
            memory = odds.recall(node.name)
            if memory is not None and len(back) == node.depth - new[0].depth:
                node.uses, node.turn, node.part = memory
                back.append(node)
        if not new:
            return
        odds.came(len(new))
        known = new[0].depth - 1 + len(back)
        added = max(prompt_pages, new[-1].depth) - known
        self._came_back(odds, back, added)
        fresh, above = new[len(back) :], new[0].parent if not back else back[-1]
        if fresh and above is not None:
            turn = above.turn if known >= KNOWN_PAGES else 0
            part = odds.part(self._now(), turn, added, 0)
            for node in fresh:
                node.turn, node.part = turn, part

    def _came_back(self, odds: Odds, nodes: Sequence[Node], added: int) -> None:
        """Pages of one path are used again, by a prompt that adds so many to them."""
        part: Part | None = None
        turn = nodes[-1].turn + 1 if nodes and nodes[-1].depth >= KNOWN_PAGES else 0
        for node in nodes:
            assert node.part is not None
            odds.returned(node.part, self._now())
            node.uses = min(node.uses + 1, MANY)
            if part is None or part.uses != node.uses:
                part = odds.part(self._now(), turn, added, node.uses)
            node.turn, node.part = turn, part

    def _now(self) -> int:
        return self.order.clock if self.order is not None else 0

    def moved_past(self, state: StateId) -> bool:
        """Whether another state extends this one."""
        return bool(self._end[state].kids)

    def passed_by(self, state: StateId) -> list[StateId]:
        """States whose whole prefix this state holds too, other than itself."""
        node = self._end[state]
        found: list[StateId] = []
        found.extend(other for other in node.ends if other != state)
        above = node.parent
        while above is not None:
            found.extend(above.ends)
            above = above.parent
        return sorted(found)

    def paths(self) -> Iterable[tuple[StateId, tuple[PageId, ...]]]:
        """Every state with the pages of its path, for checks."""
        for state, end in self._end.items():
            pages: list[PageId] = []
            node: Node | None = end
            while node is not None and node.parent is not None:
                pages.append(node.page)
                node = node.parent
            yield state, tuple(reversed(pages))

    def _keys(self, tokens: Sequence[int], pages: int) -> list[bytes]:
        rows, ahead = self.page_rows, self.lookahead
        return page_keys(packed(tokens[: pages * rows + ahead]), rows, ahead, pages)
