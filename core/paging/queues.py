"""Who goes first: states that none extends wait by level, by when they were last used, by number.

Of the oldest in each queue that may go the one worth least goes; of equals the older.
"""

from .compiled import code
from .layout import (
    AFTER,
    BEFORE,
    BESIDE,
    CLOCK,
    END,
    KID,
    LEVEL,
    ODDS_POLICY,
    PAGE,
    POLICY,
    QUEUED,
    QUEUES,
    SINCE,
    STATE,
    STATE_ID,
    STAYS,
    USED,
)
from .odds import LEVELS, worth


@code
def forget(m, state):
    """A state is gone, or another extends it: it waits no more."""
    if m[state + QUEUED]:
        queue = QUEUES + 2 * (m[state + QUEUED] - 1)
        before, after = m[state + BEFORE], m[state + AFTER]
        if before:
            m[before + AFTER] = after
        else:
            m[queue] = after
        if after:
            m[after + BEFORE] = before
        else:
            m[queue + 1] = before
        m[state + QUEUED] = 0


@code
def earlier(m, state, used, number):
    """Whether a state stands before the place of one that was last used then."""
    since = m[state + SINCE]
    return since < used or (since == used and m[state + STATE_ID] < number)


@code
def enqueue(m, state, level, used):
    """A state takes its place in the queue of its level; looked for from the nearer end."""
    forget(m, state)
    queue, number = QUEUES + 2 * level, m[state + STATE_ID]
    oldest, before = m[queue], m[queue + 1]
    if before and used - m[oldest + SINCE] < m[before + SINCE] - used:
        before = 0
        while oldest and earlier(m, oldest, used, number):
            before, oldest = oldest, m[oldest + AFTER]
    else:
        while before and not earlier(m, before, used, number):
            before = m[before + BEFORE]
    after = m[before + AFTER] if before else m[queue]
    m[state + BEFORE], m[state + AFTER] = before, after
    if before:
        m[before + AFTER] = state
    else:
        m[queue] = state
    if after:
        m[after + BEFORE] = state
    else:
        m[queue + 1] = state
    m[state + QUEUED], m[state + SINCE] = level + 1, used


@code
def place(m, node):
    """The states that end at a node wait for their turn to go, unless others extend them."""
    if not m[node + KID]:
        state = m[node + STATE]
        while state:
            enqueue(m, state, m[node + LEVEL], m[node + USED])
            state = m[state + BESIDE]


@code
def weakest(m, leases, hit):
    """The first to go of the states whose last page has no lease and which need not stay.

    hit: one more that must not go, or 0.
    """
    best, least = 0, 0
    for level in range(LEVELS):
        state = m[QUEUES + 2 * level]
        while state and (m[state + STAYS] or state == hit or leases[m[m[state + END] + PAGE]]):
            state = m[state + AFTER]
        if not state:
            continue
        value = 0
        if m[POLICY] == ODDS_POLICY:
            value = worth(m, level, m[CLOCK] - m[state + SINCE])
        if not best or value < least or (value == least and _older(m, state, best)):
            best, least = state, value
    return best


@code
def _older(m, state, than):
    return earlier(m, state, m[than + SINCE], m[than + STATE_ID])
