"""What a stream does to the page book and the prompt tree at once: begins, leaves a state, ends."""

import numpy as np

from .compiled import code
from .holders import FREE, HEAD, PAGES, adopt, drop_page, give_back, swap
from .holders import keep as hold
from .layout import (
    AMISS,
    END,
    GROW,
    MADE,
    PAGE,
    PARENT,
    REPEATED,
    STATE,
    STATE_ID,
    STAYS,
    SWAPPED,
    UPTO,
    WALKED,
)
from .moves import add, drop, ended, no_room, remembered
from .nodes import state_below, walk
from .queues import weakest


@code
def seat(m, keys, book, tokens, root, table, pages):
    """A stream begins on what is kept of its first pages: a state stays until it is resumed.

    table [.] int32 gets the pages.  Returns the state, 0 for none.
    """
    count = walk(m, keys, tokens, root, pages, table)
    m[REPEATED] = count
    if not count:
        return 0
    if adopt(book, table[:count]) >= 0:
        return AMISS
    state = state_below(m, m[WALKED])
    m[state + STAYS] += 1
    return state


@code
def reclaim(m, book, want, went):
    """States go, weakest first, until so many pages are free; how many, they are in `went` [.]."""
    count, leases = 0, book[HEAD : HEAD + book[PAGES]]
    while book[FREE] < want:
        state = weakest(m, leases, 0)
        if not state:
            return AMISS
        node = m[state + END]
        while m[node + PARENT]:
            if not drop_page(book, m[node + PAGE]):
                return AMISS
            node = m[node + PARENT]
        drop(m, state)
        went[count] = state
        count += 1
    return count


@code
def leave(m, keys, book, tokens, root, table, pages, first, second, number, uses, prompt_pages):
    """A stream keeps its first pages, and uses what is kept of them already.

    What had come back before is kept apart from what is new.  first, second: records for states,
    which get a number and the next.  Returns the stream's uses; MADE is how many states it left.
    """
    m[MADE] = 0
    if no_room(m, 2 * pages + 2):
        return GROW
    found = np.empty(pages, np.int32)
    count = walk(m, keys, tokens, root, pages, found)
    m[REPEATED], m[SWAPPED] = count, swap(book, table, found[:count])
    if m[SWAPPED] < 0:
        return AMISS
    if count == pages and m[m[WALKED] + STATE]:
        return uses
    upto = remembered(m, tokens, count, pages)
    state, m[UPTO] = first, upto
    while True:
        if hold(book, table[:upto]) >= 0:
            return AMISS
        m[state + STATE_ID], m[state + STAYS] = number + m[MADE], 0
        uses = add(m, keys, tokens, root, table[:upto], state, uses, prompt_pages)
        m[MADE] += 1
        if upto == pages or uses < 0:
            return uses
        state, upto = second, pages


@code
def leave_off(m, book, table, uses):
    """A stream ends: its table's pages are back, its prompt's were in use until now."""
    at = give_back(book, table)
    ended(m, uses)
    return at
