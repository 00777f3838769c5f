"""The prompt tree: which page-aligned prefixes are kept, found by their tokens (rank 0 only).

A node is one page. Its key is the page's tokens and the `lookahead` tokens after it, because what a
page holds depends on them too, so two prompts share a page only if they agree that far.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..events.ids import PageId, StateId


@dataclass(slots=True, eq=False)
class Node:
    """One kept page below its parent; `ends` are the states whose last page this is."""

    parent: "Node | None"
    key: bytes
    page: PageId
    depth: int
    kids: dict[bytes, "Node"] = field(default_factory=dict)
    ends: list[StateId] = field(default_factory=list)


class PromptTree:
    """Kept prefixes by tokens; a forest with one root for each salt."""

    def __init__(self, page_rows: int, lookahead: int) -> None:
        self.page_rows = page_rows
        self.lookahead = lookahead
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
            self._roots[salt] = Node(None, b"", PageId(-1), 0)
        node = self._roots[salt]
        for page, key in zip(pages, self._keys(tokens, len(pages)), strict=True):
            kid = node.kids.get(key)
            if kid is None:
                kid = node.kids[key] = Node(node, key, page, node.depth + 1)
            assert kid.page == page, (
                f"state {state} keeps page {page} where the tree has {kid.page}"
            )
            node = kid
        node.ends.append(state)
        self._end[state] = node

    def drop(self, state: StateId) -> None:
        """Forget a state and every node that no other state holds."""
        node: Node | None = self._end.pop(state)
        assert node is not None
        node.ends.remove(state)
        while node is not None and node.parent is not None and not node.ends and not node.kids:
            del node.parent.kids[node.key]
            node = node.parent

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

    def _keys(self, tokens: Sequence[int], pages: int) -> Iterable[bytes]:
        rows, ahead = self.page_rows, self.lookahead
        for page in range(pages):
            yield array("i", tokens[page * rows : (page + 1) * rows + ahead]).tobytes()
