"""What happens to kept prefixes: kept, come back, used until a reply's end, gone."""

import numpy as np

from .compiled import code
from .gone import gone, remember, remembers, take_out
from .layout import (
    AHEAD,
    BESIDE,
    BORN,
    CLOCK,
    DEPTH,
    ELSEWHERE,
    END,
    GONE_PART,
    GONE_TURN,
    GONE_USES,
    GROW,
    KID,
    LEVEL,
    NAME,
    NODE,
    NODES,
    ODDS,
    ODDS_POLICY,
    PAGE,
    PARENT,
    PART,
    PART_FIRST,
    POLICY,
    PREV,
    ROWS,
    SECOND,
    SEEDS,
    STATE,
    STAYS,
    TURN,
    USE_AFTER,
    USE_BEFORE,
    USE_NEXT,
    USE_NODE,
    USE_PART,
    USED,
    USER,
    USES,
    USES_FREE,
    USES_LEFT,
    WALKED,
)
from .names import next_name
from .nodes import child, out_of, put
from .odds import KNOWN_PAGES, MANY, came, new_part, part_at, parts_left, returned, tick
from .queues import forget, place


@code
def no_room(m, pages):
    """Whether there may be too few records for what so many pages may need."""
    return m[POLICY] == ODDS_POLICY and (parts_left(m) < pages + 2 or m[USES_LEFT] < pages)


@code
def is_of(m, node, part):
    """A page is of this part from now on."""
    m[node + PART], m[node + LEVEL] = part, m[part_at(m, part) + ODDS]


@code
def use(m, node, uses):
    """A stream uses a node until it ends: one more of its uses."""
    found, other = m[USES_FREE], m[node + USER]
    m[USES_FREE] = m[found + USE_NEXT]
    m[USES_LEFT] -= 1
    m[found + USE_NODE], m[found + USE_NEXT] = node, uses
    m[found + USE_BEFORE], m[found + USE_AFTER] = 0, other
    if other:
        m[other + USE_BEFORE] = found
    m[node + USER] = found
    return found


@code
def let_go(m, found):
    """A use is over; returns the stream's next."""
    node, before, after = m[found + USE_NODE], m[found + USE_BEFORE], m[found + USE_AFTER]
    if node:
        if before:
            m[before + USE_AFTER] = after
        else:
            m[node + USER] = after
        if after:
            m[after + USE_BEFORE] = before
    following = m[found + USE_NEXT]
    m[found + USE_NEXT] = m[USES_FREE]
    m[USES_FREE] = found
    m[USES_LEFT] += 1
    return following


@code
def taken(m, keys, page):
    """Whether a page is none of the pool's, or in the tree already."""
    return page < 0 or page >= keys.shape[0] or m[m[NODES] + page * NODE + PARENT]


@code
def add(m, keys, tokens, root, pages, state, uses, prompt_pages):
    """Keep a state's prefix on pages [.]; the uses of the stream that leaves it, or what is amiss.

    prompt_pages: whole ones of its prompt.
    """
    rows, count = m[ROWS], pages.size
    if no_room(m, count):
        return GROW
    node, had = root, 0
    name, second = m[root + NAME], m[root + SECOND]
    above = root
    for at in range(count):
        first = at * rows
        last = min(first + rows + m[AHEAD], tokens.size)
        name, second = next_name(name, second, tokens, first, last)
        kid = child(m, keys, tokens, first, last, node, name, second) if had == at else 0
        if kid:
            if m[kid + PAGE] != pages[at]:
                return ELSEWHERE
            above, had = kid, at + 1
        elif taken(m, keys, pages[at]):
            return ELSEWHERE
        else:
            kid = put(m, keys, tokens, first, last, node, pages[at], name, second)
        node = kid
    m[state + END], m[state + BESIDE] = node, m[node + STATE]
    m[node + STATE] = state
    if m[POLICY] == SEEDS:
        return uses
    tick(m)
    if had < count:
        extended = m[above + STATE]
        while extended:
            forget(m, extended)
            extended = m[extended + BESIDE]
        if m[POLICY] == ODDS_POLICY:
            uses = weigh(m, pages[had:], above, uses, prompt_pages)
    m[node + USED] = m[CLOCK]
    place(m, node)
    return uses


@code
def weigh(m, pages, above, uses, prompt_pages):
    """Say what the pages are that a prompt added below a node; some are remembered."""
    count, back = pages.size, 0
    path = np.empty(count, np.int64)
    node = m[m[above + KID] + PREV]  # the youngest, and each of the others is an only one
    for at in range(count):
        path[at] = node
        m[node + USED], m[node + PART] = m[CLOCK], -1
        uses = use(m, node, uses)
        found = gone(m, m[node + NAME], m[node + SECOND])
        if found:
            if m[found + GONE_PART] >= m[PART_FIRST] and back == at:
                m[node + USES], m[node + TURN] = m[found + GONE_USES], m[found + GONE_TURN]
                m[node + PART] = m[found + GONE_PART]
                back += 1
            take_out(m, found)
        node = m[node + KID]
    came(m, count)
    known = m[above + DEPTH] + back
    added = max(prompt_pages, m[above + DEPTH] + count) - known
    came_back(m, path[:back], added)
    if back < count:
        last = path[back - 1] if back else above
        turn = m[last + TURN] if known >= KNOWN_PAGES else 0
        part = new_part(m, turn, added, 0)
        for at in range(back, count):
            m[path[at] + TURN] = turn
            is_of(m, path[at], part)
    return uses


@code
def came_back(m, path, added):
    """Pages of one path are used again, by a prompt that adds so many to them."""
    turn, part, of = 0, -1, -1
    if path.size and m[path[path.size - 1] + DEPTH] >= KNOWN_PAGES:
        turn = m[path[path.size - 1] + TURN] + 1
    for node in path:
        returned(m, m[node + PART])
        m[node + USES] = min(m[node + USES] + 1, MANY)
        if part < 0 or of != m[node + USES]:
            of = m[node + USES]
            part = new_part(m, turn, added, of)
        m[node + TURN] = turn
        is_of(m, node, part)


@code
def resumed(m, state, pages, uses, prompt_pages):
    """The first pages of a state came back; so did every state that they hold. It may go again.

    uses: of the stream for which they came back; returns those it has now, or that there is no
    room.  prompt_pages: whole ones of its prompt.
    """
    if no_room(m, pages):
        return GROW
    if m[state + STAYS]:
        m[state + STAYS] -= 1
    tick(m)
    node = m[state + END]
    path = np.empty(min(pages, m[node + DEPTH]), np.int64)
    while m[node + PARENT]:
        if m[node + DEPTH] <= pages:
            path[m[node + DEPTH] - 1] = node
            m[node + USED] = m[CLOCK]
        node = m[node + PARENT]
    if m[POLICY] == ODDS_POLICY:
        came_back(m, path, max(0, prompt_pages - pages))
        if prompt_pages <= pages:
            came(m, 1)  # time goes on where nothing is added, too
        while uses:
            uses = let_go(m, uses)
        for node in path:
            uses = use(m, node, uses)
    for node in path:
        place(m, node)
    return uses


@code
def ended(m, uses):
    """A reply ended: its prompt's pages were in use until now."""
    while uses:
        node, number = m[uses + USE_NODE], m[uses + USE_PART]
        if node:
            number = m[node + PART]
            m[node + USED] = m[CLOCK]
            place(m, node)
        part = part_at(m, number)
        if part:
            m[part + BORN] = m[CLOCK]
        uses = let_go(m, uses)


@code
def drop(m, state):
    """Forget a state and every node that no other state holds."""
    node = m[state + END]
    at = node + STATE
    while m[at] != state:
        at = m[at] + BESIDE
    m[at] = m[state + BESIDE]
    forget(m, state)
    while m[node + PARENT] and not m[node + STATE] and not m[node + KID]:
        if m[POLICY] == ODDS_POLICY:
            remember(m, node)
            found = m[node + USER]
            while found:
                m[found + USE_NODE], m[found + USE_PART] = 0, m[node + PART]
                found = m[found + USE_AFTER]
        node = out_of(m, node)
    if m[POLICY] != SEEDS:
        place(m, node)


@code
def remembered(m, tokens, count, pages):
    """After a walk of `count` pages: how many of `pages` are known if what went is, else all."""
    if m[POLICY] != ODDS_POLICY:
        return pages
    name, second = m[m[WALKED] + NAME], m[m[WALKED] + SECOND]
    known, rows = count, m[ROWS]
    while known < pages:
        first = known * rows
        last = min(first + rows + m[AHEAD], tokens.size)
        name, second = next_name(name, second, tokens, first, last)
        if not remembers(m, name, second):
            break
        known += 1
    return known if known > count else pages
