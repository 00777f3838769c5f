"""The page book: which pages are free, and how many hold each of the others."""

from collections.abc import Sequence

import numpy as np

from ..events.ids import PageId
from .pages_free import ListedPages, LowestPages

ORDERS = ("lowest", "lifo", "fifo", "adversarial")


class PageBook:
    """Holders of every page: leases by streams and holds by kept states. Free means neither.

    leases, kept [pages] int32, changed by the methods alone.  promised: pages that streams may
    still lease.  idle: pages that kept states alone hold.  order: which free page goes next;
    "lowest" is the format's, the others exist so that tests can show that nothing depends on it.
    """

    def __init__(self, pages: int, order: str) -> None:
        assert order in ORDERS, f"order {order!r} is none of {ORDERS}"
        self.total = pages
        self.order = order
        self.leases = np.zeros(pages, np.int32)
        self.kept = np.zeros(pages, np.int32)
        self.promised = self.idle = 0
        self._free = LowestPages(pages) if order == "lowest" else ListedPages(pages, order)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return self._free.count

    @property
    def available(self) -> int:
        """Free pages that no stream was promised."""
        return self._free.count - self.promised

    def free_pages(self) -> list[int]:
        """The ids of the free pages, ascending."""
        return sorted(self._free.pages())

    def next(self, count: int) -> tuple[PageId, ...]:
        """The pages that `take` will give out; changes nothing."""
        return self._free.next(count)

    def take(self, count: int) -> tuple[PageId, ...]:
        """Lease the next free pages."""
        pages, (leases, kept) = self._free.take(count), self._holders()
        for page in pages:
            assert not leases[page] and not kept[page], f"page {page} is free and held"
            leases[page] = 1
        return pages

    def adopt(self, pages: Sequence[PageId]) -> None:
        """One more lease on pages that someone holds already."""
        leases, kept = self._holders()
        for page in pages:
            held = leases[page]
            if not held:
                assert kept[page] > 0, f"page {page} is free, nothing to adopt"
                self.idle -= 1
            leases[page] = held + 1

    def give_back(self, pages: Sequence[PageId]) -> None:
        """One lease less on each page."""
        leases, kept = self._holders()
        freed: list[PageId] = []
        for page in pages:
            held = leases[page]
            assert held > 0, f"page {page} has no lease to return"
            leases[page] = held - 1
            if held == 1:
                if kept[page]:
                    self.idle += 1
                else:
                    freed.append(page)
        self._free.put(freed)

    def keep(self, pages: Sequence[PageId]) -> None:
        """One more kept state holds each page."""
        leases, kept = self._holders()
        for page in pages:
            held = kept[page]
            assert held or leases[page] > 0, f"page {page} is free, nothing to keep"
            kept[page] = held + 1

    def drop(self, pages: Sequence[PageId]) -> None:
        """One kept state less holds each page."""
        leases, kept = self._holders()
        freed: list[PageId] = []
        for page in pages:
            held = kept[page]
            assert held > 0, f"page {page} is not kept"
            kept[page] = held - 1
            if held == 1 and not leases[page]:
                freed.append(page)
        self.idle -= len(freed)
        self._free.put(freed)

    def _holders(self) -> tuple["memoryview[int]", "memoryview[int]"]:
        """Leases and holds by page; a view's elements are had in half an array's time."""
        return memoryview(self.leases), memoryview(self.kept)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PageBook):
            return NotImplemented
        return (
            self._free == other._free
            and self.promised == other.promised
            and np.array_equal(self.leases, other.leases)
            and np.array_equal(self.kept, other.kept)
        )

    __hash__ = None  # type: ignore[assignment]
