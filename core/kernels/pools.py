"""Pooled keys of the indexer: raw rows in a ring by position, a key where a pool completes."""

import numpy as np
from numba.extending import register_jitable

from . import meaning
from .digest import digest_of, digest_words, row_words
from .latent import fixed
from .registry import cpu, register
from .scalars import ZERO, add, div, exp, fma, pow2, q16_value, sub
from .team import fetch_add

f32, i16, i32, i64, u64 = np.float32, np.int16, np.int32, np.int64, np.uint64
KEY, GATE = 0, 1  # of a row of the ring


def pool_key(k, g):
    """k, g [kpool, width] float32 -> [width]: keys weighed by the softmax of g over the slots."""
    with np.errstate(all="ignore"):
        p = meaning.exp(g - g.max(0))
        below, above = p[0], meaning.fma(p[0], k[0], f32(0))
        for j in range(1, len(k)):
            below, above = below + p[j], meaning.fma(p[j], k[j], above)
        return above / below


def pool_rows_meaning(
    ik, ig, gcol, ape, exponent, ring, runs, tables, keys, page_rows, part, layer, sums, first, last
):
    """As pool_rows."""
    kpool, width = ape.shape
    columns = np.arange(width // 4, dtype=u64)
    for lane, row0, position0, rows in runs[first:last]:
        for row, p in zip(
            range(row0, row0 + rows), range(position0, position0 + rows), strict=True
        ):
            ring[lane, p % ring.shape[1]] = ik[row], ig[row, gcol : gcol + width]
            if (p + 1) % kpool:
                continue
            slots = ring[lane, np.arange(p + 1 - kpool, p + 1) % ring.shape[1]]
            with np.errstate(all="ignore"):
                gates = slots[:, GATE] + ape
            digits = fixed(pool_key(slots[:, KEY], gates), exponent)
            keys[tables[lane, p // page_rows], p % page_rows // kpool] = digits
            sums[row] += np.array(digest_of(row_words(digits), part, layer, 0, p, columns), u64)


@register_jitable
def greatest_gates(slots, position, ape, greatest):
    """greatest [width]: of each channel's gates in a pool that ends at position; NaN stays NaN."""
    kpool, width = ape.shape
    for j in range(kpool):
        gates, places = slots[(position + 1 - kpool + j) % slots.shape[0], GATE], ape[j]
        for i in range(width):
            g = add(gates[i], places[i])
            if j == 0 or g > greatest[i] or g != g:
                greatest[i] = g


@register_jitable
def make_key(slots, position, ape, scale, greatest, below, digits):
    """digits [width] int16 of the pool that ends at position; slots: the ring of its lane."""
    kpool, width = ape.shape
    greatest_gates(slots, position, ape, greatest)
    above = np.zeros(width, f32)
    below[:] = ZERO
    for j in range(kpool):
        one, places = slots[(position + 1 - kpool + j) % slots.shape[0]], ape[j]
        k, gates = one[KEY], one[GATE]
        for i in range(width):
            p = exp(sub(add(gates[i], places[i]), greatest[i]))
            below[i] = add(below[i], p)
            above[i] = fma(p, k[i], above[i])
    for i in range(width):
        digits[i] = q16_value(div(above[i], below[i]), scale)


@cpu
def pool_rows(
    ik, ig, gcol, ape, exponent, ring, runs, tables, keys, page_rows, part, layer, sums, first, last
):
    """Put the raw rows of runs first to last into the ring, and make the keys they complete.

    ik [rows, width] float32: keys after their LayerNorm; ig [rows, stride] float32: gates from
    column gcol; ape [kpool, width] float32; ring [lanes, ring_rows, 2, width] float32 (key, gate),
    position p at p % ring_rows; runs [n, 4] int64 (lane, first row, first position, rows);
    tables [lanes, entries] int32; keys [pages, page_rows / kpool, width] int16, q * 2^exponent;
    sums [rows, 2] uint64: the digest of a key is added to the row that completes it.
    """
    kpool, width = ape.shape
    scale, total = pow2(-exponent), sums.reshape(sums.size)
    greatest, below = np.empty(width, f32), np.empty(width, f32)
    for run in range(first, last):
        lane, row0, position0 = runs[run, 0], runs[run, 1], runs[run, 2]
        slots, table = ring[lane], tables[lane]
        for at in range(runs[run, 3]):
            row, position = row0 + at, position0 + at
            slot = slots[position % slots.shape[0]]
            slot[KEY, :] = ik[row]
            slot[GATE, :] = ig[row][gcol : gcol + width]
            if (position + 1) % kpool != 0:
                continue
            digits = keys[table[position // page_rows], position % page_rows // kpool]
            make_key(slots, position, ape, scale, greatest, below, digits)
            a, b = digest_words(digits.view(u64), part, layer, 0, position, 0)
            fetch_add(total, 2 * row, a)
            fetch_add(total, 2 * row + 1, b)


def some_runs(rng, lanes, positions, longest):
    """Runs [n, 4] int64 of distinct lanes anywhere below `positions`, their rows in a batch."""
    order = rng.permutation(lanes)[: int(rng.integers(1, lanes + 1))]
    rows = rng.integers(1, longest + 1, order.size)
    starts = rng.integers(0, positions - rows + 1)
    return np.stack([order, np.cumsum(rows) - rows, starts, rows], 1).astype(i64)


def hard_gates(rng, shape):
    """Gates of every size: equal ones, zeros of both signs, infinities and NaN among them."""
    g = (rng.standard_normal(shape) * rng.choice([0, 1e-3, 3, 200])).astype(f32)
    odd = rng.random(shape) < 0.03
    g[odd] = rng.choice(np.array([-0.0, 0, np.inf, -np.inf, np.nan, 3e38, 1e-45], f32), odd.sum())
    return g


def pool_cases(rng):
    """Short and long runs, in the middle of a pool, over the ring's end and over pages."""
    for width, kpool, page_rows, ring_rows in (
        (4, 1, 2, 4),
        (16, 4, 8, 8),
        (12, 2, 6, 4),
        (128, 4, 32, 16),
    ):
        lanes, entries = 3, 4
        runs = some_runs(
            rng, lanes, entries * page_rows, min(entries * page_rows, 2 * ring_rows + 3)
        )
        rows, gcol = int(runs[:, 3].sum()), int(rng.integers(0, 4))
        ik = (rng.standard_normal((rows, width)) * 3).astype(f32)
        ik[rng.random(ik.shape) < 0.02] = rng.choice([np.nan, -np.inf, -0.0, 1e30])
        ig, ape = hard_gates(rng, (rows, gcol + width + 2)), hard_gates(rng, (kpool, width))
        ring = hard_gates(rng, (lanes, ring_rows, 2, width))
        tables = rng.permutation(13)[: lanes * entries].reshape(lanes, entries).astype(i32)
        keys = rng.integers(-0x8000, 0x8000, (13, page_rows // kpool, width), i16)
        sums = rng.integers(0, 2**64, (rows, 2), u64)
        exponent, layer = int(rng.choice([-11, -13, 0])), int(rng.integers(0, 12))
        yield (ik, ig, gcol, ape, exponent, ring, runs, tables, keys, page_rows, 2, layer, sums,
               int(rng.integers(0, len(runs))), len(runs))  # fmt: skip


register(
    "pool_rows",
    meaning=pool_rows_meaning,
    cpu=pool_rows,
    shapes="ik [rows, width], ig [rows, stride], ape [kpool, width] float32; ring [lanes, "
    "ring_rows, 2, width] float32; runs [n, 4] int64; tables [lanes, entries] int32; "
    "keys [pages, page_rows / kpool, width] int16; sums [rows, 2] uint64",
    units="items are runs; gcol in columns of ig; page_rows, kpool in tokens; a key is "
    "q * 2^exponent; sums modulo 2^64, added to",
    cases=pool_cases,
)
