"""Every function that is called from outside, run once over a small book and tree."""

import numpy as np

from . import holders, layout, moves, nodes, odds, queues, stages
from .words import begin, more, new_root

PAGES = 4


def every_function() -> None:
    """Compile what is not compiled: each function gets the types that it is called with."""
    book = np.zeros(holders.HEAD + 2 * PAGES + 1, np.int32)
    book[[holders.PAGES, holders.FREE]] = book[-1] = PAGES
    m, keys = begin(1, 0, PAGES, layout.ODDS_POLICY), np.zeros((PAGES, 1), np.int32)
    state, root = more(m, layout.RECORD, 1)[0], new_root(m, "")
    tokens, pages = np.arange(PAGES, dtype=np.int32), np.empty(PAGES, np.int32)
    holders.lowest(book, pages)
    holders.lease_lowest(book, pages)
    holders.keep(book, pages)
    holders.adopt(book, pages)
    holders.swap(book, pages, pages)
    for _ in range(2):
        holders.give_back(book, pages)
    uses = moves.add(m, keys, tokens, root, pages, state, 0, PAGES)
    uses = moves.resumed(m, state, 1, uses, PAGES)
    moves.remembered(m, tokens, nodes.walk(m, keys, tokens, root, 1, pages), 2)
    nodes.state_below(m, root)
    moves.ended(m, uses)
    odds.worth(m, 0, 1)
    queues.weakest(m, book[holders.HEAD : holders.HEAD + PAGES], 0)
    moves.drop(m, state)
    holders.drop(book, pages)
    holders.lease(book, pages)
    first, second = more(m, layout.RECORD, 2)
    uses = stages.leave(m, keys, book, tokens, root, pages, 2, first, second, 1, 0, PAGES)
    stages.leave_off(m, book, pages, uses)
    table = np.empty(PAGES, np.int32)
    m[stages.seat(m, keys, book, tokens, root, table, 1) + layout.STAYS] = 0
    holders.give_back(book, table[:1])
    stages.reclaim(m, book, PAGES, table)
