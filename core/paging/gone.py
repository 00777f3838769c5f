"""Prefixes that went: by name, the last ones, with what they were when they went."""

from .compiled import code
from .layout import (
    GONE_AFTER,
    GONE_BEFORE,
    GONE_BUCKETS,
    GONE_CHAIN,
    GONE_COUNT,
    GONE_FIRST,
    GONE_FREE,
    GONE_LAST,
    GONE_MASK,
    GONE_NAME,
    GONE_NEXT,
    GONE_PART,
    GONE_SECOND,
    GONE_TURN,
    GONE_USES,
    MOST,
    NAME,
    PART,
    PART_FIRST,
    RECORD,
    SECOND,
    TURN,
    USES,
)


@code
def gone(m, name, second):
    """What stands for a prefix that went, 0 for none."""
    found = m[m[GONE_BUCKETS] + (name & m[GONE_MASK])]
    while found and not (m[found + GONE_NAME] == name and m[found + GONE_SECOND] == second):
        found = m[found + GONE_CHAIN]
    return found


@code
def remembers(m, name, second):
    """Whether a prefix went not too long ago."""
    found = gone(m, name, second)
    return found and m[found + GONE_PART] >= m[PART_FIRST]


@code
def take_out(m, found):
    """A memory is no more."""
    before, after = m[found + GONE_BEFORE], m[found + GONE_AFTER]
    if before:
        m[before + GONE_AFTER] = after
    else:
        m[GONE_FIRST] = after
    if after:
        m[after + GONE_BEFORE] = before
    else:
        m[GONE_LAST] = before
    at = m[GONE_BUCKETS] + (m[found + GONE_NAME] & m[GONE_MASK])
    while m[at] != found:
        at = m[at] + GONE_CHAIN
    m[at] = m[found + GONE_CHAIN]
    m[found + GONE_AFTER] = m[GONE_FREE]
    m[GONE_FREE] = found
    m[GONE_COUNT] -= 1


@code
def remember(m, node):
    """A page's prefix went; the oldest memory makes room."""
    name, second = m[node + NAME], m[node + SECOND]
    found = gone(m, name, second)
    if found:
        take_out(m, found)
    elif m[GONE_COUNT] == m[MOST]:
        take_out(m, m[GONE_FIRST])
    found, last = m[GONE_FREE], m[GONE_LAST]
    if found:
        m[GONE_FREE] = m[found + GONE_AFTER]
    else:
        found = m[GONE_NEXT]
        m[GONE_NEXT] += RECORD
    m[found + GONE_NAME], m[found + GONE_SECOND] = name, second
    m[found + GONE_USES], m[found + GONE_TURN] = m[node + USES], m[node + TURN]
    m[found + GONE_PART] = m[node + PART]
    m[found + GONE_BEFORE], m[found + GONE_AFTER] = last, 0
    if last:
        m[last + GONE_AFTER] = found
    else:
        m[GONE_FIRST] = found
    m[GONE_LAST] = found
    bucket = m[GONE_BUCKETS] + (name & m[GONE_MASK])
    m[found + GONE_CHAIN] = m[bucket]
    m[bucket] = found
    m[GONE_COUNT] += 1
