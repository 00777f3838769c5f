"""Page book and prompt tree in one hand, for whoever needs no fact between the two."""

import numpy as np
from numpy.typing import NDArray

from ..events.ids import NO_STATE, StateId, StreamId
from .pages import PageBook
from .paging import layout as at
from .paging import stages
from .tree import PromptTree

Ids = NDArray[np.int32]


class PrefixPool:
    """What the machine does fact by fact, a stage of a stream at once; the words end up the same.

    Prompts, tables and pages are arrays [.] int32. For states of pages alone, orders that are not
    the seeds', and free pages of which the lowest go first.
    """

    def __init__(self, book: PageBook, tree: PromptTree) -> None:
        assert tree.policy != at.SEEDS and book.order == "lowest"
        self.book = book
        self.tree = tree
        self._records = tree.record(), tree.record()  # for the next states
        self._went = np.zeros(book.total, np.int32)

    def seat(self, prompt: Ids, salt: str, table: Ids, pages: int) -> tuple[StateId, int]:
        """Begin on what is kept of the first pages: a state, which stays, and how many pages."""
        tree = self.tree
        m, root = tree.words, tree.root(salt)
        state = stages.seat(m, tree.keys, self.book.words, prompt, root, table, pages)
        assert state >= 0, "the tree has a page that the book does not"
        return (StateId(m.item(state)), m.item(at.REPEATED)) if state else (NO_STATE, 0)

    def promise(self, pages: int) -> list[StateId]:
        """Promise pages to a stream; the states that go for them, weakest first."""
        book, tree = self.book, self.tree
        went = list[StateId]()
        if book.available < pages:
            want = pages + book.promised
            count = stages.reclaim(tree.words, book.words, want, self._went)
            assert count >= 0, "pages are idle, and none of them goes"
            went = [tree.forgotten(record) for record in self._went[:count].tolist()]
        book.promised += pages
        return went

    def leave(
        self, prompt: Ids, salt: str, table: Ids, pages: int, state: StateId, stream: StreamId
    ) -> list[int]:
        """Keep a prompt's first pages, with a state of this number or two; how many pages in each.

        `repeated` and `swapped` say how many of the pages were kept already, and not the table's.
        """
        tree, whole = self.tree, len(prompt) // self.tree.page_rows
        m, root, uses = tree.words, tree.root(salt), tree.uses(stream)
        first, second = self._records
        given = (m, tree.keys, self.book.words, prompt, root, table, pages, first, second, state)
        while (now := stages.leave(*given, uses, whole)) == at.GROW:
            tree.grow()
        assert now >= 0, "book and tree disagree"
        made = m.item(at.MADE)
        if not made:
            return []
        tree.left(stream, now, state, self._records[:made])
        if made == 1:
            self._records = second, tree.record()
            return [pages]
        self._records = tree.record(), tree.record()
        return [m.item(at.UPTO), pages]

    @property
    def repeated(self) -> int:
        """Pages that were kept already as a stream began, or left a state."""
        return self.tree.words.item(at.REPEATED)

    @property
    def swapped(self) -> int:
        """Pages that a stream uses in place of its own since it left a state."""
        return self.tree.words.item(at.SWAPPED)

    def end(self, table: Ids, promised: int, stream: StreamId) -> None:
        """A stream ends: it had these pages, and was promised some more."""
        tree, book = self.tree, self.book
        page = stages.leave_off(tree.words, book.words, table, tree.over(stream))
        assert page < 0, f"page {table[page]} has no lease to return"
        book.promised -= promised
