"""The fake family over pages, lanes and ranks: rows, states, rings, keys, logits and drafts.

Its meaning is the oracle of core/families/fake.py; the device's tests compare every value. A batch
runs in waves: the first holds all rows of prompt steps and each window's pending token, wave j the
j-th row of every window. Between `forward` and `draw` of a wave ranks add what their heads give.
"""

import numpy as np
from numba.extending import register_jitable

from ..families.fake import (
    LAYERS,
    LOGIT_SHIFT,
    LOGIT_UNIT,
    LOGIT_ZERO,
    OUTPUT,
    POOL,
    RING,
    STRIDE,
    VALID,
    WIDTH,
)
from .digest import digest_words, mix64
from .fake_memory import (
    AT,
    BIASED,
    CHOICE,
    COUNT,
    FIRST,
    FREQUENCY,
    K_DRAFTS,
    K_KEYS,
    K_LOGITS,
    K_RINGS,
    K_ROWS,
    K_STATES,
    LANE,
    NEXT,
    PRESENCE,
    PROMPT,
    REPETITION,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    WINDOW,
    ZERO,
    count_rows,
    page_to_write,
    sum_fixed,
)
from .registry import inner
from .sampling import sample_row

u64, f32 = np.uint64, np.float32

RANDOM, RIGHT, WRONG = range(3)  # drafters
MASK, STEP, SHIFT, UNIT = u64(VALID), u64(STRIDE), u64(LOGIT_SHIFT), f32(LOGIT_UNIT)
S16, S24, S32, S48 = u64(16), u64(24), u64(32), u64(48)


@register_jitable
def salt(kind, layer, head, column, token, position):
    """What makes the words of one token at one place unlike all others."""
    where = (u64(kind) << S48) | (u64(layer) << S32) | (u64(head) << S16) | u64(column)
    return mix64(((u64(position) << S24) | u64(token)) ^ mix64(where))


@register_jitable
def seen(shape, poisoned, word, layer, position):
    """A word that enters a sum; the first poisoned one of its stream is noted."""
    if shape.pattern != ZERO and word == shape.pattern and poisoned[0] == 0:
        poisoned[0], poisoned[1], poisoned[2] = 1, layer, position
    return word


@register_jitable
def row_word(shape, memory, lane, table, layer, head, column, position):
    """A word of a row, through the page table."""
    page = table[position // shape.page_rows]
    word = memory.rows[layer, page, position % shape.page_rows, head, column]
    return seen(shape, memory.poisoned[lane], word, layer, position)


@register_jitable
def key_word(shape, memory, lane, table, pool):
    """The key of a pool, through the page table; caches are counted on after the rows' layers."""
    position = pool * POOL + POOL - 1
    page = table[position // shape.page_rows]
    word = memory.keys[page, position % shape.page_rows // POOL]
    return seen(shape, memory.poisoned[lane], word, LAYERS, position)


@register_jitable
def draft_word(shape, memory, lane, table, position):
    """A row of the drafter's cache, through the page table."""
    page = table[position // shape.page_rows]
    word = memory.drafts[page, position % shape.page_rows]
    return seen(shape, memory.poisoned[lane], word, LAYERS + 1, position)


# --- forward: what a rank computes of a row by itself --------------------------------------------


@register_jitable
def write_row(shape, memory, lane, table, token, position):
    """Every layer and head of a row, chained from rows read back from their pages."""
    page, at = page_to_write(shape, table, position), position % shape.page_rows
    for layer in range(LAYERS):
        for head in range(memory.rows.shape[3]):
            whole = shape.head + head if shape.split else 0
            for c in range(WIDTH):
                before, older, below = ZERO, ZERO, ZERO
                if position > 0:
                    before = row_word(shape, memory, lane, table, layer, head, c, position - 1)
                    older = row_word(shape, memory, lane, table, layer, head, c, position // 2)
                if layer > 0:
                    below = memory.rows[layer - 1, page, at, head, c]
                salted = older + below + salt(K_ROWS, layer, whole, c, token, position)
                memory.rows[layer, page, at, head, c] = mix64(before ^ mix64(salted)) & MASK


@register_jitable
def reading(shape, memory, lane, table, position):
    """What rows on pages give to the logits: the newest, an old one and the first."""
    total, top = ZERO, LAYERS - 1
    for head in range(memory.rows.shape[3]):
        first = row_word(shape, memory, lane, table, top, head, 0, position)
        second = row_word(shape, memory, lane, table, top, head, 1, position)
        old = row_word(shape, memory, lane, table, 0, head, 0, position // 3)
        oldest = row_word(shape, memory, lane, table, top, head, WIDTH - 1, 0)
        total += mix64(mix64((first ^ mix64(second)) + old) ^ oldest)
    return total


@register_jitable
def advance(shape, memory, lane, page, token, position, partial):
    """States and rings one row on, and what they give to the logits and to a pool's key."""
    states, rings, at = memory.states[lane], memory.rings[lane], position % shape.page_rows
    for head in range(shape.heads):
        whole = shape.head + head
        word = salt(OUTPUT, 0, whole, 0, token, position)
        for layer in range(LAYERS):
            for c in range(WIDTH):
                salted = salt(K_STATES, layer, whole, c, token, position)
                moved = states[layer, head, c] ^ (memory.rows[layer, page, at, 0, c] + salted)
                states[layer, head, c] = mix64(moved) & MASK
                word = mix64(word ^ states[layer, head, c])
        raw = memory.rows[LAYERS - 1, page, at, 0, 0]
        raw += salt(K_RINGS, 0, whole, 0, token, position)
        rings[head, position % RING] = mix64(raw) & MASK
        for back in (0, 2, RING - 1):
            word = mix64(
                word ^ (rings[head, (position - back) % RING] if position >= back else ZERO)
            )
        partial[0] += word
        if position % POOL == POOL - 1:
            for i in range(POOL):
                salted = salt(K_KEYS, 0, whole, i, 0, position)
                partial[1] += mix64(rings[head, (position - i) % RING] ^ salted)


@inner
def forward(shape, memory, tables, batch, wave, every_row):
    """The rows of a wave, each on its own; leaves in batch.partial what this rank's heads give."""
    for entry in batch.entries:
        lane, window = entry[LANE], entry[WINDOW]
        first = wave if window else 0
        last = min(wave + 1, entry[COUNT]) if window else (entry[COUNT] if wave == 0 else 0)
        for j in range(first, last):
            at, position = entry[AT] + j, entry[FIRST] + j
            token, table = batch.tokens[at], tables[lane]
            partial = batch.partial[at]
            partial[0], partial[1] = ZERO, ZERO
            write_row(shape, memory, lane, table, token, position)
            if shape.states:
                page = page_to_write(shape, table, position)
                advance(shape, memory, lane, page, token, position, partial)
                if window and entry[COUNT] > 1:
                    memory.saved_states[lane, j] = memory.states[lane]
                    memory.saved_rings[lane, j] = memory.rings[lane]
            if shape.split:
                partial[0] += reading(shape, memory, lane, table, position)
            if every_row and shape.digests:
                sum_fixed(shape, memory, lane, position + 1, batch.every[at])


# --- draw: what every rank knows alike of a row --------------------------------------------------


@register_jitable
def write_logits(shape, memory, lane, table, position, given):
    """memory.logits of a row; `given`: what the heads of all ranks gave."""
    if not shape.split:
        given += reading(shape, memory, lane, table, position)
    last = (position + 1) // POOL - 1
    if shape.states and last >= 0:
        newest = key_word(shape, memory, lane, table, last)
        given += mix64(newest ^ mix64(key_word(shape, memory, lane, table, last // 2)))
    for v in range(shape.vocab):
        whole = np.int64(mix64(given ^ (u64(v) * STEP)) >> SHIFT) - LOGIT_ZERO
        memory.logits[v] = f32(whole) * UNIT


@register_jitable
def sample(memory, lane, position):
    """The token that follows a row, drawn from memory.logits."""
    how, whole = memory.sampling[lane], memory.drawing[lane]
    biased = whole[BIASED]
    return sample_row(
        memory.logits,
        how[TEMPERATURE],
        whole[TOP_K],
        how[TOP_P],
        (how[REPETITION], how[FREQUENCY], how[PRESENCE]),
        memory.ids[:biased],
        memory.bias[lane, :biased],
        memory.counts[0, lane],
        memory.counts[1, lane],
        whole[SEED],
        position + 1,
        whole[CHOICE],
        memory.z,
        memory.weights,
        memory.candidates,
        memory.bins,
    )


@register_jitable
def draft(shape, memory, lane, table, position, drawn):
    """The token drafted after a row. The drafter's own row is scratch until its token is known."""
    before = draft_word(shape, memory, lane, table, position - 1) if position > 0 else ZERO
    right = shape.drafter == RIGHT or (
        shape.drafter == RANDOM and mix64(before + u64(position)) & u64(3) != ZERO
    )
    token = drawn if right else (drawn + 1) % shape.vocab
    page = page_to_write(shape, table, position)
    scratch = mix64(before ^ u64(token) ^ STEP) & MASK
    memory.drafts[page, position % shape.page_rows] = scratch
    return token


@inner
def draw(shape, memory, tables, batch, wave, every_row):
    """Keys, logits, samples and drafts of a wave, once batch.partial holds the sums over ranks."""
    for entry in batch.entries:
        lane, window, prompt = entry[LANE], entry[WINDOW], entry[PROMPT]
        first = wave if window else 0
        last = min(wave + 1, entry[COUNT]) if window else (entry[COUNT] if wave == 0 else 0)
        for j in range(first, last):
            at, position = entry[AT] + j, entry[FIRST] + j
            token, table = batch.tokens[at], tables[lane]
            if shape.states and position % POOL == POOL - 1:
                page = page_to_write(shape, table, position)
                key = mix64(batch.partial[at, 1]) & MASK
                memory.keys[page, position % shape.page_rows // POOL] = key
            memory.counts[0, lane, token] += 1
            memory.counts[1, lane, token] += position >= prompt
            batch.logit_sums[at, 0], batch.logit_sums[at, 1] = ZERO, ZERO
            batch.drawn[at] = -1
            if position < prompt - 1 and not every_row:
                continue
            write_logits(shape, memory, lane, table, position, batch.partial[at, 0])
            batch.drawn[at] = sample(memory, lane, position)
            if shape.digests:
                pair = digest_words(memory.logit_words, K_LOGITS, 0, 0, position, 0)
                batch.logit_sums[at, 0], batch.logit_sums[at, 1] = pair
            if window and j + 1 < entry[COUNT]:
                batch.tokens[at + 1] = draft(shape, memory, lane, table, position, batch.drawn[at])


# --- settle: what stays of a step ----------------------------------------------------------------


@register_jitable
def accepted(memory, batch, entry):
    """Rows of a window that stay: the pending token's, and one for each draft that was drawn."""
    lane, at = entry[LANE], entry[AT]
    kept = 1
    while kept < entry[COUNT]:
        drawn = batch.drawn[at + kept - 1]
        if batch.tokens[at + kept] != drawn or memory.ends[lane, drawn]:
            break
        kept += 1
    return kept


@register_jitable
def roll_back(shape, memory, batch, entry, kept):
    """States, rings and counts as they were after the last row that stays."""
    lane = entry[LANE]
    if shape.states and shape.keep_states:
        memory.states[lane] = memory.saved_states[lane, kept - 1]
    if shape.states and shape.keep_rings:
        memory.rings[lane] = memory.saved_rings[lane, kept - 1]
    for j in range(kept, entry[COUNT] if shape.keep_counts else kept):
        token = batch.tokens[entry[AT] + j]
        memory.counts[0, lane, token] -= 1
        memory.counts[1, lane, token] -= entry[FIRST] + j >= entry[PROMPT]


@register_jitable
def write_drafts(shape, memory, table, batch, entry, kept):
    """The drafter's rows below the kept position, from the true next tokens."""
    lane = entry[LANE]
    for j in range(kept):
        at, position = entry[AT] + j, entry[FIRST] + j
        if entry[WINDOW] or (j == kept - 1 and entry[NEXT] < 0):
            following = batch.drawn[at]
        elif j == kept - 1:
            following = entry[NEXT]
        else:
            following = batch.tokens[at + 1]
        before = draft_word(shape, memory, lane, table, position - 1) if position > 0 else ZERO
        page, row = page_to_write(shape, table, position), position % shape.page_rows
        salted = salt(K_DRAFTS, 0, 0, following, batch.tokens[at], position)
        word = mix64(memory.rows[LAYERS - 1, page, row, 0, 0] + salted)
        memory.drafts[page, row] = mix64(before ^ word) & MASK


@inner
def settle(shape, memory, tables, batch, every_row):
    """Accept, keep, roll back and add up what stays."""
    for e in range(batch.entries.shape[0]):
        entry = batch.entries[e]
        lane, kept = entry[LANE], entry[COUNT]
        if entry[WINDOW]:
            kept = accepted(memory, batch, entry)
            if kept < entry[COUNT]:
                roll_back(shape, memory, batch, entry, kept)
        batch.kept[e] = kept
        if shape.states and (shape.keep_drafts or not entry[WINDOW]):
            write_drafts(shape, memory, tables[lane], batch, entry, kept)
        if shape.digests:
            counted = kept if shape.keep_sums else entry[COUNT]
            count_rows(shape, memory, tables[lane], batch, entry, counted, every_row)


@inner
def alone(shape, memory, tables, batch, waves, every_row):
    """A whole step of a rank that has no other to wait for."""
    for wave in range(waves):
        forward(shape, memory, tables, batch, wave, every_row)
        draw(shape, memory, tables, batch, wave, every_row)
    settle(shape, memory, tables, batch, every_row)
