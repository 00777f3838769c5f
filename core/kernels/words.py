"""Looking into memory that positions address: digests of rows and states, views, poison.

A word is 8 bytes of one row. Paged rows are seen as [caches, pages, per_page, words] uint64; row r
of a stream stands at position r * step + step - 1, step being its tokens (1, or those of a pool),
and cache c is digest layer layer0 + c.
"""

import numpy as np
from numba.extending import register_jitable

from .digest import digest_of, digest_words
from .poison import PATTERNS, is_poison_q
from .poisoned import LAYER_BITS
from .registry import cpu, register

f32, i16, i64, u64 = np.float32, np.int16, np.int64, np.uint64
ALL_SOUND = i64(2**63 - 1)

# --- views, to read and to flip ------------------------------------------------------------------


def paged_row(rows, table, cache, row):
    """One row of a stream as a view [width]; rows [caches, pages, per_page, width]."""
    per_page = rows.shape[2]
    return rows[cache, table[row // per_page], row % per_page]


def state_row(states, lane, slot, layer, head):
    """One head's state as words, a view [words]; states as in sum_state or float32."""
    return states[layer, lane, slot, head].reshape(-1).view(u64)


def ring_row(ring, lane, position, layer, head, heads):
    """A head's q, k and v of one position, a view [3, words]; ring as in sum_ring."""
    row = ring[layer, lane, position % ring.shape[2]]
    return row.view(u64).reshape(3, heads, -1)[:, head]


# --- the meaning ---------------------------------------------------------------------------------


def add_digest(words, part, layer, head, position, sums):
    """sums [2] += the digest of words [n]."""
    columns = np.arange(words.size, dtype=u64)
    sums += np.array(digest_of(words, part, layer, head, position, columns), u64)


def sum_paged_meaning(words, table, first, last, step, part, cache0, cache1, layer0, sums):
    """As sum_paged."""
    for cache, row in ((c, r) for c in range(cache0, cache1) for r in range(first, last)):
        one, position = paged_row(words, table, cache, row), row * step + step - 1
        add_digest(one, part, layer0 + cache, 0, position, sums)


def sum_state_meaning(states, lane, slot, layer0, layer1, head0, part, sums):
    """As sum_state."""
    for layer, head in ((n, h) for n in range(layer0, layer1) for h in range(states.shape[3])):
        words = state_row(states, lane, slot, layer, head)
        add_digest(words, part, layer, head0 + head, 0, sums)


def sum_ring_meaning(ring, lane, first, last, layer0, layer1, head0, heads, part, sums):
    """As sum_ring."""
    for layer, position in ((n, p) for n in range(layer0, layer1) for p in range(first, last)):
        for head in range(heads if position >= 0 else 0):
            words = ring_row(ring, lane, position, layer, head, heads).reshape(-1)
            add_digest(words, part, layer, head0 + head, position, sums)


def first_poisoned_paged_meaning(rows, table, first, last, step, cache0, cache1, layer0):
    """As first_poisoned_paged."""
    for row, cache in ((r, c) for r in range(first, last) for c in range(cache0, cache1)):
        if (paged_row(rows, table, cache, row) < -32639).any():
            return (row * step + step - 1) << LAYER_BITS | (layer0 + cache)
    return int(ALL_SOUND)


# --- the loops for the CPU -----------------------------------------------------------------------


@cpu
def sum_paged(words, table, first, last, step, part, cache0, cache1, layer0, sums):
    """Add to sums [2] uint64 the digests of a stream's rows first to last, of some caches.

    words [caches, pages, per_page, n] uint64; table [entries] int32: the stream's pages.
    """
    per_page = words.shape[2]
    for row in range(first, last):
        page, at, position = table[row // per_page], row % per_page, row * step + step - 1
        for cache in range(cache0, cache1):
            a, b = digest_words(words[cache, page, at], part, layer0 + cache, 0, position, 0)
            sums[0] += a
            sums[1] += b


@cpu
def sum_state(states, lane, slot, layer0, layer1, head0, part, sums):
    """Add to sums [2] uint64 the digests of a lane's slot: position 0, a head's words in order.

    states [layers, lanes, slots, heads, D, D / 2] uint64; head0: the number of the first head in
    the whole model; layers layer0 to layer1 (excluded).
    """
    for layer in range(layer0, layer1):
        for head in range(states.shape[3]):
            one = states[layer, lane, slot, head]
            a, b = digest_words(one.reshape(one.size), part, layer, head0 + head, 0, 0)
            sums[0] += a
            sums[1] += b


@cpu
def sum_ring(ring, lane, first, last, layer0, layer1, head0, heads, part, sums):
    """Add to sums [2] uint64 the digests of a lane's raw rows at positions first to last.

    ring [layers, lanes, ring_rows, 3 * heads * D] float32: q, k, v of the heads; position p at
    p % ring_rows. A head's row is its q, k and v side by side. Positions below 0 hold nothing.
    """
    ring_rows, third = ring.shape[2], ring.shape[3] // 3
    words = third // heads // 2
    for layer in range(layer0, layer1):
        for position in range(max(first, 0), last):
            row = ring[layer, lane, position % ring_rows].view(u64)
            for head in range(heads):
                for part3 in range(3):
                    at = part3 * third // 2 + head * words
                    one = row[at : at + words]
                    a, b = digest_words(one, part, layer, head0 + head, position, part3 * words)
                    sums[0] += a
                    sums[1] += b


@register_jitable
def is_sound(flat):
    """Whether no element of flat [n] int16 is poison."""
    lowest = i16(0)
    for i in range(flat.shape[0]):
        lowest = min(lowest, flat[i])
    return not is_poison_q(lowest)


@cpu
def first_poisoned_paged(rows, table, first, last, step, cache0, cache1, layer0):
    """The first poisoned row of a stream, by position, then by cache; among rows first to last.

    rows [caches, pages, per_page, width] int16; table [entries] int32. Returns
    position << 12 | digest layer, or ALL_SOUND, which is greater than any.
    """
    per_page, row = rows.shape[2], first
    while row < last:
        page, at = table[row // per_page], row % per_page
        together = min(per_page - at, last - row)
        sound = True
        for cache in range(cache0, cache1):
            one = rows[cache, page, at : at + together]
            sound = sound and is_sound(one.reshape(one.size))
        if not sound:
            for r in range(together):
                for cache in range(cache0, cache1):
                    if not is_sound(rows[cache, page, at + r]):
                        position = (row + r) * step + step - 1
                        return i64(position << LAYER_BITS | layer0 + cache)
        row += together
    return ALL_SOUND


# --- random cases --------------------------------------------------------------------------------

PAGED = ((1, 8, 8, 1), (3, 6, 1, 4), (2, 32, 128, 2))  # caches, rows a page, words, step


def paged_range(rng, per_page):
    """A stream's pages in no order, and a range of its rows."""
    first, last = (int(n) for n in np.sort(rng.integers(0, 4 * per_page + 1, 2)))
    return rng.permutation(5)[:4].astype(np.int32), first, last


def sum_paged_cases(rng):
    """Ranges inside a page and over several, of some caches."""
    for caches, per_page, width, step in PAGED:
        words = rng.integers(0, 2**64, (caches, 5, per_page, width), u64)
        low, high = (int(n) for n in np.sort(rng.integers(0, caches + 1, 2)))
        part, layer0 = int(rng.integers(1, 3)), int(rng.integers(0, 50))
        yield (words, *paged_range(rng, per_page), step, part, low, high, layer0,
               rng.integers(0, 2**64, 2, u64))  # fmt: skip


def sum_state_cases(rng):
    """Any slot of any lane, of some layers."""
    for layers, heads, width in ((1, 1, 2), (3, 2, 8), (2, 3, 32)):
        states = rng.integers(0, 2**64, (layers, 2, 4, heads, width, width // 2), u64)
        low, high = (int(n) for n in np.sort(rng.integers(0, layers + 1, 2)))
        lane, slot, head0 = (int(rng.integers(0, n)) for n in (2, 4, 50))
        yield states, lane, slot, low, high, head0, 3, rng.integers(0, 2**64, 2, u64)


def sum_ring_cases(rng):
    """Positions over the ring's end, and below 0."""
    for layers, heads, width in ((1, 1, 2), (3, 2, 8), (2, 3, 32)):
        ring = rng.standard_normal((layers, 3, 5, 3 * heads * width)).astype(f32)
        low, high = (int(n) for n in np.sort(rng.integers(0, layers + 1, 2)))
        first = int(rng.choice([-3, -1, 0, 2, 1000]))
        yield (ring, int(rng.integers(0, 3)), first, first + int(rng.integers(0, 6)), low, high,
               int(rng.integers(0, 50)), heads, 4, rng.integers(0, 2**64, 2, u64))  # fmt: skip


def poisoned_cases(rng):
    """Sound rows, with a poisoned value here and there; the extremes of sound values."""
    for caches, per_page, width, step in PAGED:
        rows = rng.integers(-32639, 32640, (caches, 5, per_page, width * 4), i16)
        for _ in range(rng.integers(0, 4)):
            pattern = PATTERNS[rng.choice(list(PATTERNS))]["int16"]
            rows.flat[rng.integers(0, rows.size)] = pattern
        low, high = (int(n) for n in np.sort(rng.integers(0, caches + 1, 2)))
        yield rows, *paged_range(rng, per_page), step, low, high, int(rng.integers(0, 50))


_UNITS = "first, last: rows of the stream; step in tokens a row; cache c is layer layer0 + c"
register(
    "sum_paged",
    meaning=sum_paged_meaning,
    cpu=sum_paged,
    shapes="words [caches, pages, per_page, n] uint64; table [entries] int32; sums [2] uint64",
    units=_UNITS + "; sums modulo 2^64, added to",
    cases=sum_paged_cases,
)
register(
    "sum_state",
    meaning=sum_state_meaning,
    cpu=sum_state,
    shapes="states [layers, lanes, slots, heads, D, D / 2] uint64; sums [2] uint64",
    units="layers by index; head0: number of the first head; sums modulo 2^64, added to",
    cases=sum_state_cases,
)
register(
    "sum_ring",
    meaning=sum_ring_meaning,
    cpu=sum_ring,
    shapes="ring [layers, lanes, ring_rows, 3 * heads * D] float32; sums [2] uint64",
    units="first, last: positions; layers by index; sums modulo 2^64, added to",
    cases=sum_ring_cases,
)
register(
    "first_poisoned_paged",
    meaning=first_poisoned_paged_meaning,
    cpu=first_poisoned_paged,
    shapes="rows [caches, pages, per_page, width] int16; table [entries] int32",
    units=_UNITS + "; result: position << 12 | digest layer, or ALL_SOUND",
    cases=poisoned_cases,
)
