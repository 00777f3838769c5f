"""The free pages of a pool, where tests have them go in an order of their own."""

from collections.abc import Sequence

from ..events.ids import PageId


class ListedPages:
    """The free pages in an order of the tests' own: last freed first, first freed first, or any."""

    def __init__(self, pages: int, order: str) -> None:
        self._free = list(range(pages))
        self._order = order
        self._turn = 0

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
