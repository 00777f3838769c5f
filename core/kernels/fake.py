"""The fake family over pages, lanes and ranks: rows, states, rings, keys, logits and drafts.

Its meaning is the oracle of core/families/fake.py; the device's tests compare every value. A step
runs in waves: the first holds all rows of prompt steps and each window's pending token, wave j the
j-th row of every window. Between the two halves of a wave ranks add what their heads give.
"""

import numpy as np
from numba.extending import register_jitable

from .digest import digest_words, mix64
from .fake_memory import (
    AT,
    COUNT,
    DRAWN,
    EVERY,
    FIRST,
    GIVEN,
    K_DRAFTS,
    K_KEYS,
    K_LOGITS,
    K_RINGS,
    K_ROWS,
    K_STATES,
    KEPT,
    KEY,
    LANE,
    LAYERS,
    LOGIT,
    NEXT,
    PARTS,
    POOL,
    PROMPT,
    RING,
    RINGS,
    STATES,
    TOKEN,
    VALID,
    WIDTH,
    WINDOW,
    ZERO,
    count_row,
    draft_place,
    key_place,
    page_of,
    ring_place,
    row_place,
    sum_fixed,
)
from .registry import inner

u64, i64, f32 = np.uint64, np.int64, np.float32

STRIDE = 0x9E3779B97F4A7C15  # between the logits of neighbouring tokens, before they are mixed
LOGIT_SHIFT, LOGIT_ZERO = 44, 1 << 19  # 20 bits of a mix, centred
LOGIT_UNIT = 2.0**-16  # so that logits lie in [-8, 8)
OUTPUT = 15  # salts what a head gives to the logits; no part's kind

FORWARD, DRAW, DRAFT, SETTLE = 1, 2, 4, 8  # stages of a step
RANDOM, RIGHT, WRONG = range(3)  # drafters
MASK, STEP, SHIFT, UNIT = u64(VALID), u64(STRIDE), u64(LOGIT_SHIFT), f32(LOGIT_UNIT)
S16, S24, S32, S48 = u64(16), u64(24), u64(32), u64(48)


@register_jitable
def salt(kind, layer, head, column, token, position):
    """What makes the words of one token at one place unlike all others."""
    where = (u64(kind) << S48) | (u64(layer) << S32) | (u64(head) << S16) | u64(column)
    return mix64(((u64(position) << S24) | u64(token)) ^ mix64(where))


@register_jitable
def seen(shape, m, lane, at, cache, position):
    """A word that enters a sum; the first poisoned one of its stream is noted.

    Caches are numbered on: the rows' layers, keys, drafts.
    """
    note = shape.poisoned + 3 * lane
    if shape.pattern != ZERO and m[at] == shape.pattern and m[note] == ZERO:
        m[note], m[note + 1], m[note + 2] = u64(1), u64(cache), u64(position)
    return m[at]


@register_jitable
def row_word(shape, m, tables, lane, layer, head, column, position):
    """A word of a row, through the page table."""
    at = row_place(shape, layer, page_of(shape, tables, lane, position, 0), position)
    return seen(shape, m, lane, at + head * WIDTH + column, layer, position)


@register_jitable
def draft_before(shape, m, tables, lane, position):
    """The drafter's row before this one, through the page table."""
    if position == 0:
        return ZERO
    page = page_of(shape, tables, lane, position - 1, 0)
    return seen(shape, m, lane, draft_place(shape, page, position - 1), LAYERS + 1, position - 1)


# --- forward: what a rank computes of a row by itself --------------------------------------------


@register_jitable
def write_row(shape, m, tables, lane, token, position):
    """Every layer and head of a row, chained from rows read back from their pages."""
    page = page_of(shape, tables, lane, position, 1)
    for layer in range(LAYERS):
        here = row_place(shape, layer, page, position)
        under = row_place(shape, max(layer - 1, 0), page, position)
        for i in range(shape.row_heads * WIDTH):
            head, c = i // WIDTH, i % WIDTH
            before, older = ZERO, ZERO
            if position > 0:
                before = row_word(shape, m, tables, lane, layer, head, c, position - 1)
                older = row_word(shape, m, tables, lane, layer, head, c, position // 2)
            below = m[under + i] if layer > 0 else ZERO
            salted = salt(K_ROWS, layer, shape.head * shape.split + head, c, token, position)
            m[here + i] = mix64(before ^ mix64(older + below + salted)) & MASK


@register_jitable
def reading(shape, m, tables, lane, position):
    """What rows on pages give to the logits: the newest, an old one and the first."""
    total, top = ZERO, LAYERS - 1
    for head in range(shape.row_heads):
        word = row_word(shape, m, tables, lane, top, head, 0, position)
        word ^= mix64(row_word(shape, m, tables, lane, top, head, 1, position))
        word = mix64(word + row_word(shape, m, tables, lane, 0, head, 0, position // 3))
        total += mix64(word ^ row_word(shape, m, tables, lane, top, head, WIDTH - 1, 0))
    return total


@register_jitable
def advance(shape, m, tables, lane, token, position, row):
    """States and rings one row on; row gets what they give to the logits and to a pool's key."""
    page = page_of(shape, tables, lane, position, 1)
    states = shape.fixed + lane * shape.fixed_words
    raw = m[row_place(shape, LAYERS - 1, page, position)]
    for head in range(shape.heads):
        whole = shape.head + head
        word = salt(OUTPUT, 0, whole, 0, token, position)
        for i in range(LAYERS * WIDTH):
            layer, c = i // WIDTH, i % WIDTH
            at = states + (layer * shape.heads + head) * WIDTH + c
            salted = salt(K_STATES, layer, whole, c, token, position)
            moved = m[at] ^ (m[row_place(shape, layer, page, position) + c] + salted)
            m[at] = mix64(moved) & MASK
            word = mix64(word ^ m[at])
        salted = salt(K_RINGS, 0, whole, 0, token, position)
        m[ring_place(shape, lane, head, position)] = mix64(raw + salted) & MASK
        for back in (0, 2, RING - 1):
            old = m[ring_place(shape, lane, head, position - back)] if position >= back else ZERO
            word = mix64(word ^ old)
        row[GIVEN] += word
        if position % POOL == POOL - 1:
            for i in range(POOL):
                salted = salt(K_KEYS, 0, whole, i, 0, position)
                row[KEY] += mix64(m[ring_place(shape, lane, head, position - i)] ^ salted)


@inner
def forward(shape, m, tables, entry, row, j, every_row):
    """A row, as far as a rank gets alone; row is its line in the step's rows."""
    lane, position = entry[LANE], entry[FIRST] + j
    token = i64(row[TOKEN])
    row[GIVEN] = row[KEY] = ZERO
    write_row(shape, m, tables, lane, token, position)
    if shape.states:
        advance(shape, m, tables, lane, token, position, row)
        if entry[WINDOW] and entry[COUNT] > 1:
            saved = shape.saved + (lane * shape.window + j) * shape.fixed_words
            for i in range(shape.fixed_words):
                m[saved + i] = m[shape.fixed + lane * shape.fixed_words + i]
    if shape.split:
        row[GIVEN] += reading(shape, m, tables, lane, position)
    if every_row and shape.digests:
        sum_fixed(shape, m, tables, lane, position + 1, shape.scratch)
        for i in range(2):
            row[EVERY + 2 * STATES + i] = m[shape.scratch + 2 * STATES + i]
            row[EVERY + 2 * RINGS + i] = m[shape.scratch + 2 * RINGS + i]


# --- draw: what every rank knows alike of a row --------------------------------------------------


@register_jitable
def write_logits(shape, m, tables, lane, position, given, logits):
    """logits [vocab] of a row; `given`: what the heads of all ranks gave."""
    if not shape.split:
        given += reading(shape, m, tables, lane, position)
    last = (position + 1) // POOL - 1
    if shape.states and last >= 0:
        word = ZERO
        for pool in (last // 2, last):
            at = pool * POOL + POOL - 1
            place = key_place(shape, page_of(shape, tables, lane, at, 0), at)
            word = mix64(word ^ seen(shape, m, lane, place, LAYERS, at))
        given += word
    for v in range(shape.vocab):
        whole = i64(mix64(given ^ (u64(v) * STEP)) >> SHIFT) - LOGIT_ZERO
        logits[v] = f32(whole) * UNIT


@register_jitable
def largest(logits):
    """The id of the largest logit, ties to the lower id."""
    best = 0
    for v in range(1, logits.shape[0]):
        if logits[v] > logits[best]:
            best = v
    return best


@inner
def draw(shape, m, tables, entry, rows, logits, logit_words, j, every_row):
    """Key, logits and greedy sample of a row, once its line holds the sums over ranks."""
    lane, at, position = entry[LANE], entry[AT] + j, entry[FIRST] + j
    if shape.states and position % POOL == POOL - 1:
        page = page_of(shape, tables, lane, position, 1)
        m[key_place(shape, page, position)] = mix64(rows[at, KEY]) & MASK
    if position < entry[PROMPT] - 1 and not every_row:
        return
    write_logits(shape, m, tables, lane, position, rows[at, GIVEN], logits[at])
    rows[at, DRAWN] = u64(largest(logits[at]))
    if shape.digests:
        pair = digest_words(logit_words[at], K_LOGITS, 0, 0, position, 0)
        rows[at, LOGIT], rows[at, LOGIT + 1] = pair


@inner
def draft(shape, m, tables, entry, rows, j):
    """The token drafted after a row. The drafter's own row is scratch until its token is known."""
    if not entry[WINDOW] or j + 1 == entry[COUNT]:
        return
    lane, at, position = entry[LANE], entry[AT] + j, entry[FIRST] + j
    before, drawn = draft_before(shape, m, tables, lane, position), rows[at, DRAWN]
    right = shape.drafter == RIGHT or (
        shape.drafter == RANDOM and mix64(before + u64(position)) & u64(3) != ZERO
    )
    token = drawn if right else (drawn + u64(1)) % u64(shape.vocab)
    page = page_of(shape, tables, lane, position, 1)
    m[draft_place(shape, page, position)] = mix64(before ^ token ^ STEP) & MASK
    rows[at + 1, TOKEN] = token


# --- settle: what stays of a step ----------------------------------------------------------------


@register_jitable
def accepted(entry, rows, ends):
    """Rows of a window that stay: the pending token's, and one for each draft that was drawn."""
    kept = 1
    while kept < entry[COUNT]:
        drawn = rows[entry[AT] + kept - 1, DRAWN]
        if rows[entry[AT] + kept, TOKEN] != drawn or ends[entry[LANE], i64(drawn)]:
            break
        kept += 1
    return kept


@register_jitable
def roll_back(shape, m, entry, kept):
    """States and rings as they were after the last row that stays."""
    lane = entry[LANE]
    live = shape.fixed + lane * shape.fixed_words
    saved = shape.saved + (lane * shape.window + kept - 1) * shape.fixed_words
    states = LAYERS * shape.heads * WIDTH
    first = 0 if shape.keep_states else states
    last = shape.fixed_words if shape.keep_rings else states
    for i in range(first, last):
        m[live + i] = m[saved + i]


@register_jitable
def write_drafts(shape, m, tables, entry, rows, kept):
    """The drafter's rows below the kept position, from the true next tokens."""
    lane = entry[LANE]
    for j in range(kept):
        at, position = entry[AT] + j, entry[FIRST] + j
        following = rows[at, DRAWN]
        if not entry[WINDOW] and j < kept - 1:
            following = rows[at + 1, TOKEN]
        elif not entry[WINDOW] and entry[NEXT] >= 0:
            following = u64(entry[NEXT])
        page = page_of(shape, tables, lane, position, 1)
        salted = salt(K_DRAFTS, 0, 0, following, rows[at, TOKEN], position)
        word = mix64(m[row_place(shape, LAYERS - 1, page, position)] + salted)
        before = draft_before(shape, m, tables, lane, position)
        m[draft_place(shape, page, position)] = mix64(before ^ word) & MASK


@inner
def settle(shape, m, tables, ends, entry, rows, every_row):
    """Accept, keep, roll back and add up what stays of an entry."""
    kept, lane = entry[COUNT], entry[LANE]
    if entry[WINDOW]:
        kept = accepted(entry, rows, ends)
        if kept < entry[COUNT]:
            roll_back(shape, m, entry, kept)
    entry[KEPT] = kept
    if shape.states and (shape.keep_drafts or not entry[WINDOW]):
        write_drafts(shape, m, tables, entry, rows, kept)
    if not shape.digests:
        return
    sums = shape.sums + 2 * len(PARTS) * lane
    for j in range(kept if shape.keep_sums else entry[COUNT]):
        at = entry[AT] + j
        count_row(shape, m, tables, rows, at, entry, entry[FIRST] + j, every_row)
        if every_row:
            for i in range(2 * len(PARTS)):
                if i // 2 != STATES and i // 2 != RINGS:
                    rows[at, EVERY + i] = m[sums + i]
    if shape.states:
        sum_fixed(shape, m, tables, lane, entry[FIRST] + kept, sums)


@inner
def step(
    shape,
    m,
    tables,
    ends,
    entries,
    rows,
    logits,
    logit_words,
    first_wave,
    last_wave,
    stages,
    every_row,
):
    """Some stages of some waves of a step, settling last.

    m: the arena, uint64.  tables [lanes, pages] int32.  ends [lanes, vocab] uint8: ids that end a
    reply.  entries [n, 8] int64: lane, first row, rows, is a window, tokens of the prompt, its
    first line in rows, the token after its last row (-1 when it is to be drawn), rows that stay.
    rows [n, 22] uint64: token, drawn token, what heads give to logits and key, two sums of the
    logits, sums by part after the row.  logits [n, vocab] float32 and the same as uint64 words.
    """
    for wave in range(first_wave, last_wave):
        for stage in (FORWARD, DRAW, DRAFT):
            for e in range(entries.shape[0] if stages & stage else 0):
                entry = entries[e]
                first, last = 0, entry[COUNT] if wave == 0 else 0
                if entry[WINDOW]:
                    first, last = wave, min(wave + 1, entry[COUNT])
                for j in range(first, last):
                    if stage == FORWARD:
                        forward(shape, m, tables, entry, rows[entry[AT] + j], j, every_row)
                    elif stage == DRAW:
                        draw(shape, m, tables, entry, rows, logits, logit_words, j, every_row)
                    else:
                        draft(shape, m, tables, entry, rows, j)
    for e in range(entries.shape[0] if stages & SETTLE else 0):
        settle(shape, m, tables, ends, entries[e], rows, every_row)
