"""The page book: which pages are free, and how many hold each of the others."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..events.ids import PageId
from .pages_free import ListedPages
from .paging import holders

ORDERS = ("lowest", "lifo", "fifo", "adversarial")
Pages = Sequence[PageId] | NDArray[np.int32]


class PageBook:
    """Holders of every page: leases by streams and holds by kept states. Free means neither.

    words: all of it (paging/holders.py).  promised: pages that streams may still lease.
    order: which free page goes next; "lowest" is the format's, the others exist so that tests can
    show that nothing depends on it.
    """

    def __init__(self, pages: int, order: str) -> None:
        assert order in ORDERS, f"order {order!r} is none of {ORDERS}"
        self.total = pages
        self.order = order
        self.promised = 0
        groups = -(-pages // holders.GROUP)
        self.words = np.zeros(holders.HEAD + 2 * pages + groups, np.int32)
        self.words[[holders.PAGES, holders.FREE]] = pages
        self.words[holders.HEAD + 2 * pages :] = holders.GROUP
        if pages % holders.GROUP:
            self.words[-1] = pages % holders.GROUP
        self._listed = None if order == "lowest" else ListedPages(pages, order)
        self._told: tuple[PageId, ...] = ()  # by `next`, since the last change

    @property
    def leases(self) -> NDArray[np.int32]:
        """Leases by page [pages] int32, changed by the methods alone."""
        return self.words[holders.HEAD : holders.HEAD + self.total]

    @property
    def kept(self) -> NDArray[np.int32]:
        """Holds of kept states by page [pages] int32, changed by the methods alone."""
        return self.words[holders.HEAD + self.total : holders.HEAD + 2 * self.total]

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return self.words.item(holders.FREE)

    @property
    def idle(self) -> int:
        """Pages that kept states alone hold."""
        return self.words.item(holders.IDLE)

    @property
    def available(self) -> int:
        """Free pages that no stream was promised."""
        return self.words.item(holders.FREE) - self.promised

    def free_pages(self) -> list[int]:
        """The ids of the free pages, ascending."""
        found: list[int] = np.flatnonzero((self.leases == 0) & (self.kept == 0)).tolist()
        return found

    def next(self, count: int) -> tuple[PageId, ...]:
        """The pages that `take` will give out; changes nothing."""
        if len(self._told) != count:
            if self._listed is None:
                self._told = tuple(self._lowest(holders.lowest, count).tolist())
            else:
                self._told = self._listed.next(count)
        return self._told

    def take(self, count: int) -> tuple[PageId, ...]:
        """Lease the next free pages."""
        told, self._told = self._told, ()
        if self._listed is None:
            pages = self._lowest(holders.lease_lowest, count)
            return told if len(told) == count else tuple(pages.tolist())
        taken = self._listed.take(count)
        at = holders.lease(self.words, _ids(taken))
        assert at < 0, f"page {taken[at]} is free and held"
        return taken

    def adopt(self, pages: Pages) -> None:
        """One more lease on pages that someone holds already."""
        at = holders.adopt(self.words, _ids(pages))
        assert at < 0, f"page {pages[at]} is free, nothing to adopt"

    def give_back(self, pages: Pages) -> None:
        """One lease less on each page."""
        at = holders.give_back(self.words, _ids(pages))
        assert at < 0, f"page {pages[at]} has no lease to return"
        self._freed(pages)

    def swap(self, table: NDArray[np.int32], pages: NDArray[np.int32]) -> int:
        """Pages that someone holds become the head of a table, both [.] int32; how many differed.

        Where it had others, these have one lease less.
        """
        if self._listed is not None:
            mine = table[: len(pages)].copy()
            differ = np.flatnonzero(mine != pages)
            self.adopt(pages[differ])
            self.give_back(mine[differ])
            table[: len(pages)] = pages
            return len(differ)
        swapped: int = holders.swap(self.words, table, pages)
        assert swapped >= 0, f"page {pages[-1 - swapped]} cannot take the place of a stream's own"
        self._told = ()
        return swapped

    def keep(self, pages: Pages) -> None:
        """One more kept state holds each page."""
        at = holders.keep(self.words, _ids(pages))
        assert at < 0, f"page {pages[at]} is free, nothing to keep"

    def drop(self, pages: Pages) -> None:
        """One kept state less holds each page."""
        at = holders.drop(self.words, _ids(pages))
        assert at < 0, f"page {pages[at]} is not kept"
        self._freed(pages)

    def lease_into(self, table: NDArray[np.int32]) -> None:
        """Lease the next free pages, as many as a table's part [.] int32 holds."""
        if self._listed is not None:
            table[:] = self.take(len(table))
            return
        self._told = ()
        enough = holders.lease_lowest(self.words, table)
        assert enough, f"{len(table)} pages are wanted and {self.free} free"

    def _lowest(self, find: Callable[..., None], count: int) -> NDArray[np.int32]:
        assert count <= self.free, f"{count} pages are wanted and {self.free} free"
        found = np.empty(count, np.int32)
        find(self.words, found)
        return found

    def _freed(self, pages: Pages) -> None:
        """What is free may be others now; pages that are in a list go to its end."""
        self._told = ()
        if self._listed is not None:
            leases, kept = self.leases, self.kept
            self._listed.put([PageId(int(one)) for one in pages if not leases[one] + kept[one]])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PageBook):
            return NotImplemented
        return (
            self._listed == other._listed
            and self.promised == other.promised
            and np.array_equal(self.leases, other.leases)
            and np.array_equal(self.kept, other.kept)
        )

    __hash__ = None  # type: ignore[assignment]


def _ids(pages: Pages) -> NDArray[np.int32]:
    return pages if isinstance(pages, np.ndarray) else np.array(pages, np.int32)
