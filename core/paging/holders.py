"""Who holds each page: leases of streams, holds of kept states, and the lowest pages of neither.

The book [.] int32: a head, then leases, holds, and how many of each group of pages are free.
"""

from .compiled import code

PAGES, FREE, IDLE, LOW = range(4)  # LOW: no group before it has a free page
HEAD = 8
GROUP = 64  # pages


@code
def freed(book, page):
    """Nobody holds a page any more."""
    group = page // GROUP
    book[HEAD + 2 * book[PAGES] + group] += 1
    book[FREE] += 1
    if group < book[LOW]:
        book[LOW] = group


@code
def unfree(book, page):
    """Somebody will hold a page."""
    book[HEAD + 2 * book[PAGES] + page // GROUP] -= 1
    book[FREE] -= 1


@code
def lowest(book, out):
    """The lowest free pages, as many as `out` [.] holds; changes nothing but where to look."""
    total, count, group = book[PAGES], 0, book[LOW]
    leases, kept, groups = HEAD, HEAD + total, HEAD + 2 * total
    while book[groups + group] == 0 and count < out.size:
        group += 1
    book[LOW] = group
    while count < out.size:
        if book[groups + group]:
            for page in range(group * GROUP, min(total, (group + 1) * GROUP)):
                if not book[leases + page] and not book[kept + page]:
                    out[count] = page
                    count += 1
                    if count == out.size:
                        break
        group += 1


@code
def lease_lowest(book, out):
    """The same, leased; whether there are as many."""
    if book[FREE] < out.size:
        return False
    lowest(book, out)
    for page in out:
        book[HEAD + page] = 1
        unfree(book, page)
    return True


@code
def lease(book, pages):
    """Free pages [.] that an order of their own chose are leased; -1, or where one is not free."""
    for at in range(pages.size):
        page = pages[at]
        if book[HEAD + page] or book[HEAD + book[PAGES] + page]:
            return at
        book[HEAD + page] = 1
        unfree(book, page)
    return -1


@code
def adopt(book, pages):
    """One more lease on pages [.] that someone holds already; -1, or where one is free."""
    total = book[PAGES]
    for at in range(pages.size):
        page = pages[at]
        if page < 0 or page >= total:
            return at
        held = book[HEAD + page]
        if not held:
            if book[HEAD + total + page] <= 0:
                return at
            book[IDLE] -= 1
        book[HEAD + page] = held + 1
    return -1


@code
def give_back(book, pages):
    """One lease less on each page [.]; -1, or where one has none."""
    total = book[PAGES]
    for at in range(pages.size):
        page = pages[at]
        if page < 0 or page >= total or book[HEAD + page] <= 0:
            return at
        book[HEAD + page] -= 1
        if not book[HEAD + page]:
            if book[HEAD + total + page]:
                book[IDLE] += 1
            else:
                freed(book, page)
    return -1


@code
def swap(book, table, pages):
    """The head of a table [.] becomes these pages [.]: how many differed, or -1 - where one fails.

    A lease on each of them, and one less on the stream's own.
    """
    swapped = 0
    for at in range(pages.size):
        if table[at] != pages[at]:
            if adopt(book, pages[at : at + 1]) >= 0 or give_back(book, table[at : at + 1]) >= 0:
                return -1 - at
            table[at] = pages[at]
            swapped += 1
    return swapped


@code
def keep(book, pages):
    """One more kept state holds each page [.]; -1, or where one is free."""
    total = book[PAGES]
    for at in range(pages.size):
        page = pages[at]
        if page < 0 or page >= total:
            return at
        kept = HEAD + total + page
        if not book[kept] and book[HEAD + page] <= 0:
            return at
        book[kept] += 1
    return -1


@code
def drop_page(book, page):
    """One kept state less holds a page; whether it was kept."""
    total = book[PAGES]
    if page < 0 or page >= total or book[HEAD + total + page] <= 0:
        return False
    book[HEAD + total + page] -= 1
    if not book[HEAD + total + page] and not book[HEAD + page]:
        book[IDLE] -= 1
        freed(book, page)
    return True


@code
def drop(book, pages):
    """One kept state less holds each page [.]; -1, or where one is not kept."""
    for at in range(pages.size):
        if not drop_page(book, pages[at]):
            return at
    return -1
