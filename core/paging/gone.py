"""Prefixes that went: by name, the last ones, with what they were when they went.

A table of twice as many words finds them: a word is some bits of the name, which say where its
place is, and the record's number from 1 on; whoever finds that place taken stands in the next one.
"""

from .compiled import code
from .layout import (
    GONE,
    GONE_AFTER,
    GONE_BEFORE,
    GONE_COUNT,
    GONE_FIRST,
    GONE_FREE,
    GONE_LAST,
    GONE_MADE,
    GONE_MASK,
    GONE_NAME,
    GONE_PART,
    GONE_SECOND,
    GONE_TABLE,
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

BITS = 28  # of a record's number
NUMBER, TAG = 2**BITS - 1, 2 ** (62 - BITS) - 1


@code
def gone(m, name, second):
    """What stands for a prefix that went, 0 for none."""
    tag, table, mask = (name >> BITS) & TAG, m[GONE_TABLE], m[GONE_MASK]
    at = tag & mask
    while m[table + at]:
        if m[table + at] >> BITS == tag:
            found = m[GONE] + (m[table + at] & NUMBER) * RECORD
            if m[found + GONE_NAME] == name and m[found + GONE_SECOND] == second:
                return found
        at = (at + 1) & mask
    return 0


@code
def remembers(m, name, second):
    """Whether a prefix went not too long ago."""
    found = gone(m, name, second)
    return found and m[found + GONE_PART] >= m[PART_FIRST]


@code
def enter(m, found):
    """A record can be found by its name."""
    tag, table, mask = (m[found + GONE_NAME] >> BITS) & TAG, m[GONE_TABLE], m[GONE_MASK]
    at = tag & mask
    while m[table + at]:
        at = (at + 1) & mask
    m[table + at] = (tag << BITS) | (found - m[GONE]) // RECORD


@code
def strike(m, found):
    """A record is no longer found; those that had stood behind it move up to their places."""
    tag, table, mask = (m[found + GONE_NAME] >> BITS) & TAG, m[GONE_TABLE], m[GONE_MASK]
    word = (tag << BITS) | (found - m[GONE]) // RECORD
    hole = tag & mask
    while m[table + hole] != word:
        hole = (hole + 1) & mask
    at = hole
    while True:
        at = (at + 1) & mask
        word = m[table + at]
        if not word:
            break
        if (at - (word >> BITS)) & mask >= (at - hole) & mask:
            m[table + hole] = word
            hole = at
    m[table + hole] = 0


@code
def take_out(m, found):
    """A memory is no more."""
    strike(m, found)
    before, after = m[found + GONE_BEFORE], m[found + GONE_AFTER]
    if before:
        m[before + GONE_AFTER] = after
    else:
        m[GONE_FIRST] = after
    if after:
        m[after + GONE_BEFORE] = before
    else:
        m[GONE_LAST] = before
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
        m[GONE_MADE] += 1
        found = m[GONE] + m[GONE_MADE] * RECORD
    m[found + GONE_NAME], m[found + GONE_SECOND] = name, second
    m[found + GONE_USES], m[found + GONE_TURN] = m[node + USES], m[node + TURN]
    m[found + GONE_PART] = m[node + PART]
    m[found + GONE_BEFORE], m[found + GONE_AFTER] = last, 0
    if last:
        m[last + GONE_AFTER] = found
    else:
        m[GONE_FIRST] = found
    m[GONE_LAST] = found
    enter(m, found)
    m[GONE_COUNT] += 1
