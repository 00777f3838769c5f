"""The array of a prompt tree's integers: made, and made larger; what stands in it keeps its place.

Its memory is had as it is touched, so a tree over a large pool is small while it is empty.
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from . import layout as at
from . import odds

Words = NDArray[np.int64]
PARTS, USES = 512, 512  # to begin with; both double
AFTER_LINE = 6  # words from a large array's beginning to a line of a cache, as allocators have it


def begin(page_rows: int, lookahead: int, pages: int, policy: int) -> Words:
    """The array of an empty tree over a pool of pages."""
    most = odds.POOLS * pages if policy == at.ODDS_POLICY else 0
    buckets, places = _power(pages), _power(2 * most)
    nodes = _lines(odds.HEAD) + AFTER_LINE
    gone = nodes + pages * at.NODE
    node_chains = gone + (most + 1) * at.RECORD  # none is number 0
    table = node_chains + _lines(buckets)
    m = np.zeros(table + _lines(places), np.int64)
    m[at.ROWS], m[at.AHEAD], m[at.MOST], m[at.POLICY] = page_rows, lookahead, most, policy
    m[at.NODES], m[at.GONE] = nodes, gone
    m[at.NODE_BUCKETS], m[at.NODE_MASK] = node_chains, buckets - 1
    m[at.GONE_TABLE], m[at.GONE_MASK] = table, places - 1
    if policy == at.ODDS_POLICY:
        quarters = odds.TURNS + odds.ADDED + odds.USES
        m[odds.WEIGHTS : odds.GAPS] = np.array(quarters) * (odds.ONE // 4)
        m[odds.GAPS + odds.FIRST_AGE : odds.GAPS + odds.LAST_AGE] = odds.BEGUN
        odds.look(m)
        more_parts(m)
        more_uses(m)
    return m


def more(m: Words, size: int, count: int) -> list[int]:
    """So many more records of a size, each a multiple of eight words."""
    first = m.size
    m.resize(first + size * count, refcheck=False)
    return list(range(first, m.size, size))


def more_parts(m: Words) -> None:
    """Twice as large a ring of parts, the same parts in it."""
    old = m.item(at.PARTS_MASK)
    size = 2 * (old + 1) if m[at.PARTS] else PARTS
    first = more(m, at.RECORD, size)[0]
    for number in range(m.item(at.PART_FIRST), m.item(at.PART_NEXT)):
        was = m.item(at.PARTS) + (number & old) * at.RECORD
        now = first + (number & (size - 1)) * at.RECORD
        m[now : now + at.RECORD] = m[was : was + at.RECORD]
    m[at.PARTS], m[at.PARTS_MASK] = first, size - 1


def more_uses(m: Words) -> None:
    """As many more records of uses as there are free ones, at least some."""
    records = more(m, at.RECORD, USES + m.item(at.USES_LEFT))
    m[[record + at.USE_NEXT for record in records]] = [*records[1:], m.item(at.USES_FREE)]
    m[at.USES_FREE] = records[0]
    m[at.USES_LEFT] += len(records)


def new_root(m: Words, salt: str) -> int:
    """What stands above all prompts of a salt: no page, but a name."""
    (root,) = more(m, at.NODE, 1)
    name = blake2b(salt.encode(), digest_size=16).digest()
    m[root + at.NAME : root + at.NAME + 2] = np.frombuffer(name, "<i8")
    m[root + at.PAGE] = m[root + at.PART] = -1
    return root


def _lines(count: int) -> int:
    """So many words, up to a whole line of a cache."""
    return -(-count // at.RECORD) * at.RECORD


def _power(count: int) -> int:
    """The least power of two that is not below a count."""
    return 1 << max(0, count - 1).bit_length()
