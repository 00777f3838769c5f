"""Attention over the latent rows of selected pools: exact sums in two passes."""

import numpy as np

from . import meaning
from .latent_tile import (
    carve,
    latent_scratch,
    list_rows,
    scale_scores,
    score_rows,
    sum_rows_of,
    take_heads,
)
from .linear import extreme_rows
from .madd import OUTPUTS
from .registry import inner, register
from .scalars import div, mul, pow2, rn

f32, i8, i16, i32, i64 = np.float32, np.int8, np.int16, np.int32, np.int64


def head_blocks(heads):
    """Blocks of heads that a query row is attended in: item = row * head_blocks(heads) + block."""
    return -(-heads // OUTPUTS)


# --- the meaning ---------------------------------------------------------------------------------


def seen_rows(position, table, picked, latent, kpool, residue, parties):
    """The rows [n, width] float64 that a query sees, of the positions that are a party's."""
    page_rows = latent.shape[1]
    pools = (np.asarray(picked, i64)[:, None] * kpool + np.arange(kpool)).reshape(-1)
    tail = np.arange((position + 1) // kpool * kpool, position + 1)
    at = np.concatenate([pools, tail])
    at = at[at % parties == residue]
    return latent[table[at // page_rows], at % page_rows].astype(np.float64)


def seen_scores(q, e, rows, exponent, scale):
    """q [width] int16, e its exponent, rows [n, width] -> scores [n] float32."""
    with np.errstate(all="ignore"):
        return (rows @ q.astype(np.float64)).astype(f32) * meaning.pow2(e + exponent) * scale


def heads_of(
    q, eq, positions, lanes, tables, latent, kpool, picked, counts, residue, parties, first, last
):
    """For each head of the items: (row, head, its query, its exponent, the rows it sees)."""
    heads = eq.shape[1]
    width, blocks = q.shape[1] // heads, head_blocks(heads)
    for row, block in (divmod(item, blocks) for item in range(first, last)):
        table, kept = tables[lanes[row]], picked[row, : counts[row]]
        rows = seen_rows(positions[row], table, kept, latent, kpool, residue, parties)
        for head in range(block * OUTPUTS, min((block + 1) * OUTPUTS, heads)):
            yield row, head, q[row, head * width : (head + 1) * width], i32(eq[row, head]), rows


def latent_attend_meaning(
    q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts, scale,
    out, first, last,
):  # fmt: skip
    """As latent_attend; float64 holds every partial sum below 2^16 rows."""
    shared = q, eq, positions, lanes, tables, latent, kpool, picked, counts, 0, 1
    for row, head, one, e, rows in heads_of(*shared, first, last):
        s = seen_scores(one, e, rows, exponent, scale)
        with np.errstate(all="ignore"):
            p = meaning.exp(s - s.max())
            whole = np.rint(p * f32(1 << 22)).astype(np.float64)
            share = (whole @ rows).astype(f32) / f32(whole.sum())
        out[row, head * one.size : (head + 1) * one.size] = share * meaning.pow2(exponent)


# --- the loops for the CPU -----------------------------------------------------------------------


@inner
def attend_part(
    q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts, scale,
    residue, parties, scratch, row, head, tops,
):  # fmt: skip
    """Scores of one block of heads into scratch, tops [16] their greatest; the number of rows."""
    heads = eq.shape[1]
    width = q.shape[1] // heads
    packed, _, _, _, _, places, s = carve(scratch, width)
    ex, ew = np.full(3, exponent, i8), np.empty(OUTPUTS, i8)
    m = list_rows(
        positions[row], tables[lanes[row]], picked[row], counts[row], page_rows, kpool,
        residue, parties, places,
    )  # fmt: skip
    take_heads(q.reshape(q.size).view(i32), eq, row, head, heads, width // 2, packed, ew)
    flat = latent.reshape(latent.size).view(i32)
    score_rows(flat, places, m, width // 2, packed, ex, ew, s)
    scale_scores(s, m, scale, tops)
    return m


@inner
def sum_part(latent, width, heads, scratch, m, tops, d):
    """The sums of one block of heads whose scores stand in scratch: n, a view of scratch, and d."""
    _, values, digits, whole, n, places, s = carve(scratch, width)
    flat = latent.reshape(latent.size)
    sum_rows_of(flat, places, m, width, heads, s, tops, values, digits, whole, n, d)
    return n


@inner
def latent_attend(
    q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts, scale,
    out, scratch, first, last,
):  # fmt: skip
    """out [rows, heads * width] float32: attention over the selected pools and the unfinished one.

    q [rows, heads * width] int16; eq [rows, heads] int8; positions, lanes [rows] int64;
    tables [lanes, entries] int32; latent [pages, page_rows, width] int16, q * 2^exponent: keys and
    values; picked [rows, most] int32 ascending, of which counts [rows] int64 hold; scale float32;
    scratch [latent_scratch(most, kpool, width)] int64, a party's own. Items first to last:
    row * head_blocks(heads) + block, a block is 16 heads.
    """
    heads = eq.shape[1]
    width, blocks = q.shape[1] // heads, (heads + OUTPUTS - 1) // OUTPUTS
    tops, d, power = np.empty(OUTPUTS, f32), np.empty(OUTPUTS, i64), pow2(exponent)
    for item in range(first, last):
        row, head = item // blocks, item % blocks * OUTPUTS
        mine = min(OUTPUTS, heads - head)
        m = attend_part(
            q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts,
            scale, 0, 1, scratch, row, head, tops,
        )  # fmt: skip
        n = sum_part(latent, width, mine, scratch, m, tops, d)
        for o in range(mine):
            below, one = rn(d[o]), out[row][(head + o) * width : (head + o + 1) * width]
            for c in range(width):
                at = c // OUTPUTS * OUTPUTS * OUTPUTS + o * OUTPUTS + c % OUTPUTS
                one[c] = mul(div(rn(n[at]), below), power)


# --- random cases --------------------------------------------------------------------------------


def fresh(loop):
    """The loop with scratch that holds junk: what a caller sees of it."""

    def run(*arguments):
        width = arguments[0].shape[1] // arguments[1].shape[1]
        words = latent_scratch(arguments[9].shape[1], arguments[8], width)
        loop(*arguments[:-2], np.full(words, -1, i64), *arguments[-2:])

    run.__doc__ = loop.__doc__
    return run


def attend_cases(rng):
    """Few pools and many, rows at a pool's end and inside one; poison where nobody looks."""
    for heads, width, page_rows, kpool, most in (
        (4, 32, 8, 4, 4), (1, 4, 3, 1, 5), (17, 12, 6, 2, 9), (3, 36, 16, 4, 2), (32, 64, 64, 4, 16)
    ):  # fmt: skip
        pools = int(rng.integers(0, 3 * most + 1))
        positions = np.array([pools * kpool - 1, *rng.integers(0, (pools + 1) * kpool, 2)])
        positions = positions[positions >= 0]
        entries = (pools + 1) * kpool // page_rows + 1
        tables = rng.permutation(2 * entries).reshape(2, entries).astype(i32)
        lanes = rng.integers(0, 2, positions.size)
        rows = positions.size
        picked, counts = np.full((rows, most), 2**30, i32), np.zeros(rows, i64)
        latent = np.full((2 * entries, page_rows, width), -0x8000, i16)
        for row, p in enumerate(positions):
            n = (p + 1) // kpool
            counts[row] = min(n, most)
            picked[row, : counts[row]] = np.sort(rng.permutation(n)[:most])
            seen = (picked[row, : counts[row], None] * kpool + np.arange(kpool)).reshape(-1)
            at = np.concatenate([seen, np.arange(n * kpool, p + 1)]).astype(i64)
            places = tables[lanes[row], at // page_rows], at % page_rows
            latent[places] = extreme_rows(rng, at.size, width)
        q = extreme_rows(rng, rows * heads, width).reshape(rows, heads * width)
        exponent = int(rng.choice([-10, -12]))
        eq = rng.integers(-30, -12, (rows, heads), i8)
        eq[rng.random(eq.shape) < 0.05] = rng.choice([-63, 63])
        last = rows * head_blocks(heads)
        yield (q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts,
               f32(1) / np.sqrt(f32(width)), np.full((rows, heads * width), 5, f32),
               int(rng.integers(0, last)), last)  # fmt: skip


SHAPES = (
    "q [rows, heads * width] int16; eq [rows, heads] int8; positions, lanes [rows] int64; tables "
    "[lanes, entries] int32; latent [pages, page_rows, width] int16; picked [rows, most] int32; "
    "counts [rows] int64; "
)
UNITS = (
    "page_rows, kpool in tokens; picked, counts in pools; a latent is q * 2^exponent; scale "
    "float32; items row * head_blocks(heads) + block"
)
register(
    "latent_attend",
    meaning=latent_attend_meaning,
    cpu=fresh(latent_attend),
    shapes=SHAPES + "out [rows, heads * width] float32",
    units=UNITS,
    cases=attend_cases,
)
