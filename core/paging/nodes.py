"""Nodes of the prompt tree: found by name and tokens, put in, taken out."""

from .compiled import code
from .layout import (
    AHEAD,
    CHAIN,
    DEPTH,
    KID,
    NAME,
    NEXT,
    NODE,
    NODE_BUCKETS,
    NODE_MASK,
    NODES,
    PAGE,
    PARENT,
    PREV,
    ROWS,
    SECOND,
    STATE,
    WALKED,
)
from .names import next_name


@code
def same_tokens(keys, page, tokens, first, last):
    """Whether a page was kept for these tokens; a row that is not full ends with -1."""
    count = last - first
    for at in range(count):
        if keys[page, at] != tokens[first + at]:
            return False
    return count == keys.shape[1] or keys[page, count] == -1


@code
def child(m, keys, tokens, first, last, above, name, second):
    """The node below another, of this name and these tokens."""
    node = m[m[NODE_BUCKETS] + (name & m[NODE_MASK])]
    while node:
        if (
            m[node + NAME] == name
            and m[node + SECOND] == second
            and m[node + PARENT] == above
            and same_tokens(keys, m[node + PAGE], tokens, first, last)
        ):
            return node
        node = m[node + CHAIN]
    return 0


@code
def walk(m, keys, tokens, root, pages, out):
    """How many pages, from a root on, repeat what is kept; `out` gets them, WALKED the node."""
    node, rows = root, m[ROWS]
    name, second = m[root + NAME], m[root + SECOND]
    count = 0
    while count < pages:
        first = count * rows
        last = min(first + rows + m[AHEAD], tokens.size)
        name, second = next_name(name, second, tokens, first, last)
        kid = child(m, keys, tokens, first, last, node, name, second)
        if not kid:
            break
        node = kid
        out[count] = m[node + PAGE]
        count += 1
    m[WALKED] = node
    return count


@code
def state_below(m, node):
    """A state that holds a node's page: the one reached by the oldest children."""
    while not m[node + STATE]:
        node = m[node + KID]
    return m[node + STATE]


@code
def put(m, keys, tokens, first, last, above, page, name, second):
    """A page that is kept from now on, the youngest below another."""
    node = m[NODES] + page * NODE
    for at in range(NODE):
        m[node + at] = 0
    m[node + PARENT], m[node + PAGE], m[node + DEPTH] = above, page, m[above + DEPTH] + 1
    m[node + NAME], m[node + SECOND] = name, second
    for at in range(last - first):
        keys[page, at] = tokens[first + at]
    for at in range(last - first, keys.shape[1]):
        keys[page, at] = -1
    oldest = m[above + KID]
    if oldest:
        youngest = m[oldest + PREV]
        m[youngest + NEXT], m[node + PREV], m[oldest + PREV] = node, youngest, node
    else:
        m[above + KID], m[node + PREV] = node, node
    bucket = m[NODE_BUCKETS] + (name & m[NODE_MASK])
    m[node + CHAIN] = m[bucket]
    m[bucket] = node
    return node


@code
def out_of(m, node):
    """Take a node without kids out of the tree; returns the one above."""
    above, before, after = m[node + PARENT], m[node + PREV], m[node + NEXT]
    oldest = m[above + KID]
    if node == oldest:
        m[above + KID] = after
        if after:
            m[after + PREV] = before
    else:
        m[before + NEXT] = after
        m[(after if after else oldest) + PREV] = before
    at = m[NODE_BUCKETS] + (m[node + NAME] & m[NODE_MASK])
    while m[at] != node:
        at = m[at] + CHAIN
    m[at] = m[node + CHAIN]
    m[node + PARENT] = 0
    return above
