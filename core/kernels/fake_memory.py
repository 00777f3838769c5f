"""The fake family's memory on one rank, an arena of words, and the sums that are kept of it."""

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from .digest import PARTS as KINDS
from .digest import SEED_0, SEED_1, mix64, place, word_mix
from .registry import inner

u64 = np.uint64

LAYERS = 2  # of rows and of states
WIDTH = 2  # words of a row, and of a head's state, in one layer
HEADS = 3  # cut over ranks
RING = 6  # raw rows a ring holds: an unfinished pool and two before it
POOL = 4  # raw rows a key is made of
VALID = 0x7FFF7FFF7FFF7FFF  # no poison pattern is a valid word

PARTS = ("rows", "keys", "states", "rings", "drafts", "logits", "tokens", "marks")
ROWS, KEYS, STATES, RINGS, DRAFTS, LOGITS, TOKENS, MARKS = range(8)  # columns of sums
ON_PAGES = (ROWS, KEYS, DRAFTS)  # as page sums are numbered
K_ROWS, K_KEYS, K_STATES, K_RINGS, K_DRAFTS, K_LOGITS, K_TOKENS = (
    KINDS[part] for part in PARTS[:MARKS]
)
LANE, FIRST, COUNT, WINDOW, PROMPT, AT, NEXT, KEPT = range(8)  # columns of entries
TOKEN, DRAWN, GIVEN, KEY, LOGIT, EVERY = 0, 1, 2, 3, 4, 6  # columns of a step's rows
ROW_WORDS = EVERY + 2 * len(PARTS)
ZERO = u64(0)


class Shape(NamedTuple):
    """What does not change while a device lives: sizes, switches (0 or 1), places in the arena.

    head, heads: first own head and their number.  split: rows are cut by head.  states: there are
    states, rings, keys and drafts.  window: most rows of a round.  pattern: the poison word, 0 when
    poison is off.  digests: sums are kept.  keep_*: 0 leaves a rule of the roll-back out.

    Places of uint64 words: rows [LAYERS, pages + 2, page_rows, row_heads, WIDTH]; keys [pages + 2,
    page_keys]; drafts [pages + 2, page_rows]; fixed [lanes, LAYERS * heads * WIDTH + heads * RING],
    states before rings; saved [lanes, window, ...] the same after each row of a window; page_sums
    [3, pages + 2, 2]; sums [lanes, 8, 2]; poisoned [lanes, 3] found, layer, position; scratch [8,
    2]. The two pages past the pool are for reads and for writes where a table has no page.
    """

    page_rows: int
    page_keys: int
    mark_rows: int
    vocab: int
    pages: int
    head: int
    heads: int
    row_heads: int
    split: int
    states: int
    window: int
    pattern: np.uint64
    drafter: int
    digests: int
    keep_states: int
    keep_rings: int
    keep_drafts: int
    keep_sums: int
    fixed_words: int
    rows: int
    keys: int
    drafts: int
    fixed: int
    saved: int
    page_sums: int
    sums: int
    poisoned: int
    scratch: int


# --- places --------------------------------------------------------------------------------------


@register_jitable
def page_of(shape, tables, lane, position, write):
    """The page of a row; where the table has none, the reserved one for reads or for writes."""
    page = np.int64(tables[lane, position // shape.page_rows])
    return page + write if page == shape.pages else page


@register_jitable
def row_place(shape, layer, page, position):
    """Where a row begins in the arena."""
    row = (layer * (shape.pages + 2) + page) * shape.page_rows + position % shape.page_rows
    return shape.rows + row * shape.row_heads * WIDTH


@register_jitable
def key_place(shape, page, position):
    """Where the key of a position's pool stands."""
    return shape.keys + page * shape.page_keys + position % shape.page_rows // POOL


@register_jitable
def draft_place(shape, page, position):
    """Where the drafter's row stands."""
    return shape.drafts + page * shape.page_rows + position % shape.page_rows


@register_jitable
def ring_place(shape, lane, head, position):
    """Where a head's raw row stands while it is among the last."""
    before = LAYERS * shape.heads * WIDTH + head * RING
    return shape.fixed + lane * shape.fixed_words + before + position % RING


# --- sums ----------------------------------------------------------------------------------------


@register_jitable
def add_words(m, at, count, kind, layer, head, position, total):
    """m[total], m[total + 1] += the digest of `count` words of one row."""
    where = place(kind, layer, head)
    mix_0, mix_1 = mix64(u64(position) ^ SEED_0), mix64(u64(position) ^ SEED_1)
    for i in range(count):
        m[total] += word_mix(m[at + i], where | u64(i), mix_0)
        m[total + 1] += word_mix(m[at + i], where | u64(i), mix_1)


@register_jitable
def add_row(shape, m, tables, lane, kind, layer, position, total):
    """m[total:] += the digest of this rank's words of one kind and layer at a position."""
    page = page_of(shape, tables, lane, position, 1)
    at, heads, first, words = row_place(shape, layer, page, position), 1, 0, 1
    if kind == K_ROWS:
        heads, first, words = shape.row_heads, shape.head * shape.split, WIDTH
    elif kind == K_KEYS:
        at, heads = key_place(shape, page, position), int(position % POOL == POOL - 1)
    elif kind == K_DRAFTS:
        at = draft_place(shape, page, position)
    elif kind == K_STATES:
        heads, first, words = shape.heads, shape.head, WIDTH
        at = shape.fixed + lane * shape.fixed_words + layer * heads * WIDTH
    for head in range(heads if kind != K_RINGS else shape.heads):
        if kind == K_RINGS:
            at, first = ring_place(shape, lane, head, position) - head, shape.head
        add_words(m, at + head * words, words, kind, layer, first + head, position, total)


@inner
def sum_layer(shape, m, tables, lane, kind, layer, first, last, total):
    """m[total:] += the digest of some rows of one digest layer, from memory."""
    for position in range(first, last):
        add_row(shape, m, tables, lane, kind, layer, position, total)


@inner
def sum_fixed(shape, m, tables, lane, rows, total):
    """m[total:] holds sums by part: those of states and rings after so many rows, from memory."""
    states, rings = total + 2 * STATES, total + 2 * RINGS
    m[states] = m[states + 1] = m[rings] = m[rings + 1] = ZERO
    for layer in range(LAYERS):
        add_row(shape, m, tables, lane, K_STATES, layer, 0, states)
    for position in range(max(0, rows - RING), rows):
        add_row(shape, m, tables, lane, K_RINGS, 0, position, rings)


@inner
def sum_pages(shape, m, tables, lane, first, last, total):
    """m[total:] holds sums by part: adds what pages hold of rows `first` to `last`, from memory."""
    for position in range(first, last):
        for layer in range(LAYERS):
            add_row(shape, m, tables, lane, K_ROWS, layer, position, total + 2 * ROWS)
        if shape.states:
            add_row(shape, m, tables, lane, K_KEYS, 0, position, total + 2 * KEYS)
            add_row(shape, m, tables, lane, K_DRAFTS, 0, position, total + 2 * DRAFTS)


@inner
def count_row(shape, m, tables, rows, at, entry, position, every_row):
    """The sums of a stream and a page, one row further. Replies alone count as logits, tokens."""
    lane, row = entry[LANE], shape.scratch
    sums = shape.sums + 2 * len(PARTS) * lane
    for i in range(2 * len(PARTS)):
        m[row + i] = ZERO
    sum_pages(shape, m, tables, lane, position, position + 1, row)
    page = page_of(shape, tables, lane, position, 1)
    for i in range(3):
        page_sum, part = shape.page_sums + 2 * (i * (shape.pages + 2) + page), 2 * ON_PAGES[i]
        for half in range(2):
            m[page_sum + half] += m[row + part + half]
            m[sums + part + half] += m[row + part + half]
    if every_row or position >= entry[PROMPT] - 1:
        for half in range(2):
            m[sums + 2 * LOGITS + half] += rows[at, LOGIT + half]
        m[row] = rows[at, DRAWN]
        add_words(m, row, 1, K_TOKENS, 0, 0, position + 1, sums + 2 * TOKENS)
    if (position + 1) % shape.mark_rows == 0:
        for half in range(2):
            m[sums + 2 * MARKS + half] = m[sums + 2 * ROWS + half]
