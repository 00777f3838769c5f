"""The page book: which pages are free, and how many hold each of the others."""

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

import numpy as np

from ..events.ids import PageId

ORDERS = ("lowest", "lifo", "fifo", "adversarial")


class PageBook:
    """Holders of every page: leases by streams and holds by kept states. Free means neither.

    leases, kept [pages] int32.  order: which free page goes next; "lowest" is the format's, the
    others exist so that tests can show that nothing depends on it.
    """

    def __init__(self, pages: int, order: str) -> None:
        assert order in ORDERS, f"order {order!r} is none of {ORDERS}"
        self.total = pages
        self.order = order
        self.leases = np.zeros(pages, np.int32)
        self.kept = np.zeros(pages, np.int32)
        self.promised = 0
        self._free: list[int] | deque[int] = (
            deque(range(pages)) if order == "fifo" else list(range(pages))
        )
        self._turn = 0

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Free pages that no stream was promised."""
        return len(self._free) - self.promised

    def free_pages(self) -> list[int]:
        """The ids of the free pages, ascending."""
        return sorted(self._free)

    def next(self, count: int) -> tuple[PageId, ...]:
        """The pages that `take` will give out; changes nothing."""
        if self.order == "lowest" and count == 1:  # by far the commonest question
            return (PageId(self._free[0]),)
        draft = self._copy()
        return tuple(draft._pop() for _ in range(count))

    def take(self, count: int) -> tuple[PageId, ...]:
        """Lease the next free pages."""
        pages = tuple(self._pop() for _ in range(count))
        for page in pages:
            assert self.leases[page] == 0 and self.kept[page] == 0, f"page {page} is free and held"
            self.leases[page] = 1
        return pages

    def adopt(self, pages: Iterable[PageId]) -> None:
        """One more lease on pages that someone holds already."""
        for page in pages:
            assert self.leases[page] + self.kept[page] > 0, f"page {page} is free, nothing to adopt"
            self.leases[page] += 1

    def give_back(self, pages: Iterable[PageId]) -> None:
        """One lease less on each page."""
        for page in pages:
            assert self.leases[page] > 0, f"page {page} has no lease to return"
            self.leases[page] -= 1
            self._free_if_idle(page)

    def keep(self, pages: Iterable[PageId]) -> None:
        """One more kept state holds each page."""
        for page in pages:
            assert self.leases[page] + self.kept[page] > 0, f"page {page} is free, nothing to keep"
            self.kept[page] += 1

    def drop(self, pages: Iterable[PageId]) -> None:
        """One kept state less holds each page."""
        for page in pages:
            assert self.kept[page] > 0, f"page {page} is not kept"
            self.kept[page] -= 1
            self._free_if_idle(page)

    def _free_if_idle(self, page: int) -> None:
        if self.leases[page] == 0 and self.kept[page] == 0:
            if self.order == "lowest":
                assert isinstance(self._free, list)
                heappush(self._free, int(page))
            else:
                self._free.append(int(page))

    def _pop(self) -> PageId:
        if self.order == "lowest":
            assert isinstance(self._free, list)
            return PageId(heappop(self._free))
        if self.order == "fifo":
            assert isinstance(self._free, deque)
            return PageId(self._free.popleft())
        assert isinstance(self._free, list)
        if self.order == "lifo":
            return PageId(self._free.pop())
        self._turn += 1
        return PageId(self._free.pop(self._turn * 2654435761 % len(self._free)))

    def _copy(self) -> "PageBook":
        draft = PageBook(0, self.order)
        draft._free = self._free.copy()
        draft._turn = self._turn
        return draft

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PageBook):
            return NotImplemented
        return (
            list(self._free) == list(other._free)
            and self.promised == other.promised
            and np.array_equal(self.leases, other.leases)
            and np.array_equal(self.kept, other.kept)
        )

    __hash__ = None  # type: ignore[assignment]
