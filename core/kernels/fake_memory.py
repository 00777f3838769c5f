"""The fake family's memory on one rank, and the sums that are kept of it."""

from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from ..families.fake import KINDS, LAYERS, POOL, RING
from .digest import digest_words
from .registry import inner

u64 = np.uint64

ROWS, KEYS, STATES, RINGS, DRAFTS, LOGITS, TOKENS, MARKS = range(8)  # columns of sums
PARTS = ("rows", "keys", "states", "rings", "drafts", "logits", "tokens", "marks")
ON_PAGES = (ROWS, KEYS, DRAFTS)  # in the order of Memory.page_sums
TEMPERATURE, TOP_P, REPETITION, FREQUENCY, PRESENCE = range(5)  # columns of Memory.sampling
TOP_K, SEED, CHOICE, BIASED = range(4)  # columns of Memory.drawing
LANE, FIRST, COUNT, WINDOW, PROMPT, AT, NEXT = range(7)  # columns of Batch.entries

K_ROWS, K_KEYS, K_STATES, K_RINGS, K_DRAFTS, K_LOGITS, K_TOKENS = (
    KINDS[part] for part in PARTS[:MARKS]
)
ZERO = u64(0)


class Shape(NamedTuple):
    """What does not change while a device lives: sizes, the rank's heads, switches (0 or 1).

    head, heads: first own head and their number.  split: rows are cut by head.  states: there are
    states, rings, keys and drafts.  pattern: the poison word, 0 when poison is off.  digests: sums are
    kept.  keep_*: 0 leaves a rule of the roll-back out.
    """

    page_rows: int
    mark_rows: int
    vocab: int
    pages: int
    head: int
    heads: int
    split: int
    states: int
    pattern: np.uint64
    drafter: int
    digests: int
    keep_states: int
    keep_rings: int
    keep_drafts: int
    keep_counts: int
    keep_sums: int


class Memory(NamedTuple):
    """One rank's memory. Two pages past the pool: the first for reads, the second for writes.

    rows [LAYERS, pages + 2, page_rows, row heads, WIDTH], keys [pages + 2, page_rows / POOL], drafts
    [pages + 2, page_rows], states [lanes, LAYERS, heads, WIDTH], rings [lanes, heads, RING] uint64;
    saved_*: states and rings after each row of a window, [lanes, window, ...]; page_sums [3, pages +
    2, 2] of rows, keys and drafts; sums [lanes, 8, 2]; counts [2, lanes, vocab] int32 of ids in prompt
    and reply, and in the reply; ends [lanes, vocab] uint8, the ids that end a reply; logits [vocab]
    float32 with its words as uint64; poisoned [lanes, 3] int64: found, layer, position; scratch_sums
    [8, 2] and token_word [1] uint64; sampling [lanes, 5] float32, drawing [lanes, 4] int64, ids [vocab]
    int32 and bias [lanes, vocab] float32: how each lane draws; then what sample_row works in.
    """

    rows: np.ndarray
    keys: np.ndarray
    drafts: np.ndarray
    states: np.ndarray
    rings: np.ndarray
    saved_states: np.ndarray
    saved_rings: np.ndarray
    page_sums: np.ndarray
    sums: np.ndarray
    counts: np.ndarray
    ends: np.ndarray
    logits: np.ndarray
    logit_words: np.ndarray
    poisoned: np.ndarray
    scratch_sums: np.ndarray
    token_word: np.ndarray
    sampling: np.ndarray
    drawing: np.ndarray
    ids: np.ndarray
    bias: np.ndarray
    z: np.ndarray
    weights: np.ndarray
    candidates: np.ndarray
    bins: np.ndarray


class Batch(NamedTuple):
    """The rows of a step. entries [n, 7] int64: lane, first row, rows, is a window, tokens of the
    prompt, where its rows begin below, the token after its last row (-1 when it is to be drawn).

    partial [rows, 2] uint64: what heads give to the logits and to a key; tokens, drawn [rows] int64;
    logit_sums [rows, 2]; every [rows, 8, 2]: sums after each row (wanted when every_row is 1);
    kept [n] int64: rows that stay.
    """

    entries: np.ndarray
    tokens: np.ndarray
    drawn: np.ndarray
    partial: np.ndarray
    logit_sums: np.ndarray
    every: np.ndarray
    kept: np.ndarray


@register_jitable
def page_to_write(shape, table, position):
    """The page of a row, or the reserved one where the table has none."""
    page = table[position // shape.page_rows]
    return page if page < shape.pages else shape.pages + 1


# --- sums of memory ------------------------------------------------------------------------------


@register_jitable
def add_words(words, kind, layer, head, position, total):
    """total [2] += the digest of some words of one row."""
    pair = digest_words(words, kind, layer, head, position, 0)
    total[0] += pair[0]
    total[1] += pair[1]


@register_jitable
def add_row(shape, memory, table, kind, layer, position, total):
    """total [2] += the digest of this rank's words of one kind and layer at a position."""
    page, at = table[position // shape.page_rows], position % shape.page_rows
    if kind == K_ROWS:
        for head in range(memory.rows.shape[3]):
            whole = shape.head + head if shape.split else 0
            add_words(memory.rows[layer, page, at, head], kind, layer, whole, position, total)
    elif kind == K_KEYS and position % POOL == POOL - 1:
        key = at // POOL
        add_words(memory.keys[page, key : key + 1], kind, layer, 0, position, total)
    elif kind == K_DRAFTS:
        add_words(memory.drafts[page, at : at + 1], kind, layer, 0, position, total)


@register_jitable
def add_state(shape, memory, lane, layer, total):
    """total [2] += the digest of a layer of a lane's states."""
    for head in range(shape.heads):
        words = memory.states[lane, layer, head]
        add_words(words, K_STATES, layer, shape.head + head, 0, total)


@register_jitable
def add_ring(shape, memory, lane, position, total):
    """total [2] += the digest of a raw row of a lane's rings."""
    for head in range(shape.heads):
        slot = position % RING
        words = memory.rings[lane, head, slot : slot + 1]
        add_words(words, K_RINGS, 0, shape.head + head, position, total)


@inner
def sum_fixed(shape, memory, lane, rows, out):
    """out [8, 2]: the sums of states and rings after so many rows, from memory."""
    out[STATES], out[RINGS] = ZERO, ZERO
    for layer in range(LAYERS):
        add_state(shape, memory, lane, layer, out[STATES])
    for position in range(max(0, rows - RING), rows):
        add_ring(shape, memory, lane, position, out[RINGS])


@inner
def sum_pages(shape, memory, table, first, last, out):
    """out [8, 2] += the sums of what pages hold of rows `first` to `last`, from memory."""
    for position in range(first, last):
        for layer in range(LAYERS):
            add_row(shape, memory, table, K_ROWS, layer, position, out[ROWS])
        if shape.states:
            add_row(shape, memory, table, K_KEYS, 0, position, out[KEYS])
            add_row(shape, memory, table, K_DRAFTS, 0, position, out[DRAFTS])


@inner
def sum_layer(shape, memory, lane, table, kind, layer, first, last, out):
    """out [2] += the digest of some rows of one digest layer; a state's rows are its own."""
    for position in range(first, last):
        if kind == K_RINGS:
            add_ring(shape, memory, lane, position, out)
        elif kind == K_STATES and position == 0:
            add_state(shape, memory, lane, layer, out)
        elif kind != K_STATES:
            add_row(shape, memory, table, kind, layer, position, out)


@register_jitable
def add_pair(pair, total):
    """total [2] += pair [2]."""
    total[0] += pair[0]
    total[1] += pair[1]


@register_jitable
def count_row(shape, memory, table, lane, position, row):
    """Sums of a stream and of a page, one row further; row [8, 2] is scratch."""
    row[:] = ZERO
    sum_pages(shape, memory, table, position, position + 1, row)
    page = page_to_write(shape, table, position)
    for i in range(3):
        part = ON_PAGES[i]
        add_pair(row[part], memory.sums[lane, part])
        add_pair(row[part], memory.page_sums[i, page])
    if (position + 1) % shape.mark_rows == 0:
        memory.sums[lane, MARKS] = memory.sums[lane, ROWS]


@register_jitable
def count_rows(shape, memory, table, batch, entry, kept, every_row):
    """A stream's sums after the rows that stay. Replies alone count as logits and tokens."""
    lane, row = entry[LANE], memory.scratch_sums
    sums = memory.sums[lane]
    for j in range(kept):
        at, position = entry[AT] + j, entry[FIRST] + j
        count_row(shape, memory, table, lane, position, row)
        if every_row or position >= entry[PROMPT] - 1:
            add_pair(batch.logit_sums[at], sums[LOGITS])
            memory.token_word[0] = u64(batch.drawn[at])
            add_words(memory.token_word, K_TOKENS, 0, 0, position + 1, sums[TOKENS])
        if every_row:
            states, rings = batch.every[at, STATES].copy(), batch.every[at, RINGS].copy()
            batch.every[at] = sums
            batch.every[at, STATES], batch.every[at, RINGS] = states, rings
    if shape.states:
        sum_fixed(shape, memory, lane, entry[FIRST] + kept, sums)
