"""The page book beside a naive one: sets of holders, and nothing that is kept up on the way."""

import random
from collections import Counter

import numpy as np
import pytest

from kvtape.core.pages import ORDERS, PageBook
from kvtape.events.ids import PageId

PAGES, STEPS = 60, 10_000


class Naive:
    """Every stream's table and promise, every kept state's pages; all else is counted anew."""

    def __init__(self) -> None:
        self.tables: list[list[PageId]] = []
        self.promises: list[int] = []
        self.kept: list[list[PageId]] = []

    def leases(self) -> Counter[PageId]:
        return Counter(page for table in self.tables for page in table)

    def holds(self) -> Counter[PageId]:
        return Counter(page for pages in self.kept for page in pages)

    def free(self) -> list[int]:
        held = self.leases() + self.holds()
        return [page for page in range(PAGES) if not held[PageId(page)]]

    def same(self, book: PageBook) -> None:
        """Holders, promises and free pages of the book are these."""
        leases, holds = self.leases(), self.holds()
        assert book.leases.tolist() == [leases[PageId(page)] for page in range(PAGES)]
        assert book.kept.tolist() == [holds[PageId(page)] for page in range(PAGES)]
        assert book.free_pages() == self.free() and book.free == len(self.free())
        assert book.promised == sum(self.promises)
        assert book.available == len(self.free()) - sum(self.promises) >= 0
        assert book.idle == sum(1 for page in holds if not leases[page])


def begin(rng: random.Random, book: PageBook, naive: Naive) -> None:
    """A stream adopts the head of a kept state, and is promised what it may come to write."""
    whole = rng.choice(naive.kept) if naive.kept and rng.random() < 0.6 else []
    head = whole[: rng.randint(0, len(whole))]
    promise = rng.randint(0, 12)
    if book.available < promise:
        return
    book.adopt(head)
    book.promised += promise
    naive.tables.append(list(head))
    naive.promises.append(promise)


def grow(rng: random.Random, book: PageBook, naive: Naive) -> None:
    """A stream leases against its promise, and the pages told before are the ones it gets."""
    at = rng.randrange(len(naive.tables))
    count = rng.randint(0, naive.promises[at])
    told = book.next(count)
    assert book.take(count) == told and len(set(told)) == count
    assert set(told) <= set(naive.free())
    if book.order == "lowest":
        assert list(told) == naive.free()[:count]
    book.promised -= count
    naive.promises[at] -= count
    naive.tables[at] += told


def release(rng: random.Random, book: PageBook, naive: Naive) -> None:
    """A stream leaves: its leases and its promise are back."""
    at = rng.randrange(len(naive.tables))
    book.give_back(naive.tables.pop(at))
    book.promised -= naive.promises.pop(at)


def keep(rng: random.Random, book: PageBook, naive: Naive) -> None:
    """A state keeps the head of a stream's table."""
    table = rng.choice(naive.tables)
    head = table[: rng.randint(0, len(table))]
    book.keep(head)
    naive.kept.append(list(head))


def evict(rng: random.Random, book: PageBook, naive: Naive) -> None:
    """A kept state goes."""
    book.drop(naive.kept.pop(rng.randrange(len(naive.kept))))


@pytest.mark.parametrize("order", ORDERS)
def test_ten_thousand_operations_leave_the_book_that_holders_alone_make(order: str) -> None:
    rng, book, naive = random.Random(order), PageBook(PAGES, order), Naive()
    done: Counter[str] = Counter()
    for _ in range(STEPS):
        some = [begin]
        some += [grow, grow, release, keep] if naive.tables else []
        some += [evict] * (1 + (book.available < 12)) if naive.kept else []
        act = rng.choice(some)
        act(rng, book, naive)
        naive.same(book)
        done[act.__name__] += 1
    assert min(done[name] for name in ("begin", "grow", "release", "keep", "evict")) > 1000
    for table in naive.tables:
        book.give_back(table)
    for pages in naive.kept:
        book.drop(pages)
    assert book.free == PAGES and book.idle == 0
    assert not np.any(book.leases) and not np.any(book.kept)


def test_what_does_not_fit_the_book_is_named() -> None:
    book, page = PageBook(2, "lowest"), [PageId(0)]
    for act, words in (
        (book.adopt, "page 0 is free, nothing to adopt"),
        (book.give_back, "page 0 has no lease to return"),
        (book.keep, "page 0 is free, nothing to keep"),
        (book.drop, "page 0 is not kept"),
    ):
        with pytest.raises(AssertionError, match=words):
            act(page)
