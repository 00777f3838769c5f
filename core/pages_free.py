"""The free pages of a pool, and which of them goes next."""

from collections.abc import Sequence

import numpy as np

from ..events.ids import PageId

FEW = 4  # pages that are searched for one by one
WIDTH = 16  # pages that are looked at first for each of those that are wanted


class LowestPages:
    """The free pages, lowest first: a byte for each page of the pool, 1 where it is free."""

    def __init__(self, pages: int) -> None:
        self.count = pages
        self._flags = bytearray(b"\1") * pages
        self._low = 0  # no page below it is free
        self._told: tuple[PageId, ...] = ()  # the answer since the last change

    def next(self, count: int) -> tuple[PageId, ...]:
        """The lowest free pages; changes nothing."""
        assert count <= self.count, f"{count} pages are wanted and {self.count} free"
        if len(self._told) != count:
            self._told = self._lowest(count)
        return self._told

    def take(self, count: int) -> tuple[PageId, ...]:
        """The same, free no longer."""
        pages, flags = self.next(count), self._flags
        for page in pages:
            flags[page] = 0
        if pages:
            self._low = pages[-1] + 1
        self.count -= count
        self._told = ()
        return pages

    def put(self, pages: Sequence[PageId]) -> None:
        """Pages that were held are free."""
        if not pages:
            return
        flags = self._flags
        for page in pages:
            flags[page] = 1
        self._low = min(self._low, min(pages))
        self.count += len(pages)
        self._told = ()

    def pages(self) -> list[int]:
        """All of them."""
        found: list[int] = np.flatnonzero(np.frombuffer(self._flags, np.uint8)).tolist()
        return found

    def _lowest(self, count: int) -> tuple[PageId, ...]:
        first, flags = self._low, self._flags
        if count <= FEW:
            found = []
            for _ in range(count):
                first = flags.find(1, first) + 1
                found.append(PageId(first - 1))
            return tuple(found)
        width, view = WIDTH * count, np.frombuffer(flags, np.uint8)
        while len(places := np.flatnonzero(view[first : first + width])) < count:
            width *= 4
        return tuple((places[:count] + first).tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LowestPages) and self._flags == other._flags

    __hash__ = None  # type: ignore[assignment]


class ListedPages:
    """The free pages in an order of the tests' own: last freed first, first freed first, or any."""

    def __init__(self, pages: int, order: str) -> None:
        self._free = list(range(pages))
        self._order = order
        self._turn = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._free)

    def next(self, count: int) -> tuple[PageId, ...]:
        """The pages that `take` will give out; changes nothing."""
        draft = ListedPages(0, self._order)
        draft._free, draft._turn = self._free.copy(), self._turn
        return draft.take(count)

    def take(self, count: int) -> tuple[PageId, ...]:
        """The next pages, free no longer."""
        return tuple(self._pop() for _ in range(count))

    def put(self, pages: Sequence[PageId]) -> None:
        """Pages that were held are free."""
        self._free += pages

    def pages(self) -> list[int]:
        """All of them."""
        return self._free

    def _pop(self) -> PageId:
        if self._order == "fifo":
            return PageId(self._free.pop(0))
        if self._order == "lifo":
            return PageId(self._free.pop())
        self._turn += 1
        return PageId(self._free.pop(self._turn * 2654435761 % len(self._free)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ListedPages)
            and (self._free, self._order, self._turn) == (other._free, other._order, other._turn)
        )  # fmt: skip

    __hash__ = None  # type: ignore[assignment]
