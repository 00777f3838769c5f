"""The prompt tree: which page-aligned prefixes are kept, found by their tokens (rank 0 only).

A node is one page. Its key is the page's tokens and the `lookahead` tokens after it, because what a
page holds depends on them too, so two prompts share a page only if they agree that far.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from ..events.ids import PageId, StateId
from .evict import Order, kind_of


@dataclass(slots=True, eq=False)
class Node:
    """One kept page below its parent; `ends` are the states whose last page this is.

    name, uses, kind: for an order that weighs: which prefix ends here, how often it came back, and
    what it was when it came.
    """

    parent: "Node | None"
    key: bytes
    page: PageId
    depth: int
    kids: dict[bytes, "Node"] = field(default_factory=dict)
    ends: list[StateId] = field(default_factory=list)
    name: bytes = b""
    uses: int = 0
    kind: int = 0


class PromptTree:
    """Kept prefixes by tokens; a forest with one root for each salt."""

    def __init__(self, page_rows: int, lookahead: int, order: Order | None = None) -> None:
        """order: who goes first, where it is not the seeds' order."""
        self.page_rows = page_rows
        self.lookahead = lookahead
        self.order = order
        self._roots: dict[str, Node] = {}
        self._end: dict[StateId, Node] = {}

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
        if self.order is None:
            return pages
        path = self.walk(tokens, salt, pages)
        name, known = path[-1].name if path else salt.encode(), len(path)
        for key in self._keys(tokens, pages)[known:]:
            name = _name(name, key)
            if not self.order.remembers(name):
                break
            known += 1
        return known if known > len(path) else pages

    def state_below(self, node: Node) -> StateId:
        """A state that holds this node's page: the one reached by the oldest children."""
        while not node.ends:
            node = next(iter(node.kids.values()))
        return node.ends[-1]

    def add(
        self, state: StateId, tokens: Sequence[int], salt: str, pages: Sequence[PageId]
    ) -> None:
        """Keep a state's prefix; where the tree has its tokens, its pages are the tree's."""
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
            self._weigh(self.order, new, node.depth)
            self.order.tick()
            self.order.place(state, node.kind)

    def drop(self, state: StateId) -> None:
        """Forget a state and every node that no other state holds."""
        node: Node | None = self._end.pop(state)
        assert node is not None
        node.ends.remove(state)
        if self.order is not None:
            self.order.forget(state)
        while node is not None and node.parent is not None and not node.ends and not node.kids:
            del node.parent.kids[node.key]
            if self.order is not None:
                self.order.remember(node.name, node.uses)
            node = node.parent

    def resumed(self, state: StateId, pages: int) -> None:
        """The first `pages` pages of a state came back; so did every state that they hold."""
        if self.order is None:
            return
        self.order.tick()
        node: Node | None = self._end[state]
        while node is not None and node.parent is not None:
            if node.depth <= pages:
                node.uses += 1
                node.kind = kind_of(node.uses, 0, 0)
                for held in node.ends:
                    self.order.place(held, node.kind)
            node = node.parent

    def weakest(self, may_go: Callable[[StateId, PageId], bool]) -> StateId | None:
        """The first to go of the states that no other extends, by the order; with its last page."""
        assert self.order is not None

        def goes(state: StateId) -> bool:
            end = self._end[state]
            return not end.kids and may_go(state, end.page)

        return self.order.weakest(goes)

    def _weigh(self, order: Order, new: Sequence[Node], pages: int) -> None:
        """Name the pages that a prompt of so many added, and say what they are."""
        known, fresh = pages - len(new), []
        for node in new:
            assert node.parent is not None
            node.name = _name(node.parent.name, node.key)
            uses = order.recall(node.name)
            if uses is None:
                fresh.append(node)
            else:
                node.uses, known = uses + 1, known + 1
                node.kind = kind_of(node.uses, 0, 0)
        for node in fresh:
            node.kind = kind_of(0, known, len(fresh))

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
        packed = array("i", tokens[: pages * rows + ahead])
        raw, word = packed.tobytes(), packed.itemsize
        width, whole = rows * word, (rows + ahead) * word
        return [raw[first : first + whole] for first in range(0, pages * width, width)]


def _name(above: bytes, key: bytes) -> bytes:
    """The name of a prefix: of the one that it extends, and its last page's key."""
    return blake2b(above + key, digest_size=16).digest()
