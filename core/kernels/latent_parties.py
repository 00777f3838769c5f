"""Attention over latent rows dealt over parties: partial sums that merge to the bits of one."""

import numpy as np

from . import meaning
from .latent_attend import (
    SHAPES,
    UNITS,
    attend_cases,
    attend_part,
    fresh,
    heads_of,
    seen_scores,
    sum_part,
)
from .madd import OUTPUTS
from .registry import cpu, inner, register
from .scalars import div, mul, pow2, rn

f32, i64 = np.float32, np.int64

# --- the meaning ---------------------------------------------------------------------------------


def latent_tops_meaning(
    q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts, scale,
    residue, parties, tops, first, last,
):  # fmt: skip
    """As latent_tops."""
    shared = q, eq, positions, lanes, tables, latent, kpool, picked, counts, residue, parties
    for row, head, one, e, rows in heads_of(*shared, first, last):
        s = seen_scores(one, e, rows, exponent, scale)
        tops[row, head] = s.max(initial=f32(-np.inf))


def latent_sums_meaning(
    q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts, scale,
    residue, parties, tops, n, d, first, last,
):  # fmt: skip
    """As latent_sums."""
    shared = q, eq, positions, lanes, tables, latent, kpool, picked, counts, residue, parties
    for row, head, one, e, rows in heads_of(*shared, first, last):
        with np.errstate(all="ignore"):
            p = meaning.exp(seen_scores(one, e, rows, exponent, scale) - tops[row, head])
        whole = np.rint(p * f32(1 << 22)).astype(np.float64)
        n[row, head * one.size : (head + 1) * one.size] = (whole @ rows).astype(i64)
        d[row, head] = whole.sum()


def latent_close_meaning(n, d, exponent, out, first, last):
    """As latent_close."""
    width = n.shape[1] // d.shape[1]
    for row, head in (divmod(item, d.shape[1]) for item in range(first, last)):
        own = slice(head * width, (head + 1) * width)
        with np.errstate(all="ignore"):
            share = n[row, own].astype(f32) / d[row, head].astype(f32)
            out[row, own] = share * meaning.pow2(exponent)


# --- the loops for the CPU -----------------------------------------------------------------------


@inner
def latent_tops(
    q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts, scale,
    residue, parties, tops, scratch, first, last,
):  # fmt: skip
    """tops [rows, heads] float32: the greatest score over the positions that are a party's.

    Those are the positions that are `residue` modulo `parties`; -inf where there are none.
    Parties merge by max. Everything else is as latent_attend has it.
    """
    heads, one = eq.shape[1], np.empty(OUTPUTS, f32)
    blocks = (heads + OUTPUTS - 1) // OUTPUTS
    for item in range(first, last):
        row, head = item // blocks, item % blocks * OUTPUTS
        attend_part(
            q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts,
            scale, residue, parties, scratch, row, head, one,
        )  # fmt: skip
        for o in range(min(OUTPUTS, heads - head)):
            tops[row, head + o] = one[o]


@inner
def latent_sums(
    q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts, scale,
    residue, parties, tops, n, d, scratch, first, last,
):  # fmt: skip
    """n [rows, heads * width], d [rows, heads] int64: a party's sums under the merged tops.

    Parties merge by adding; everything else is as latent_tops has it.
    """
    heads, one, sums = eq.shape[1], np.zeros(OUTPUTS, f32), np.empty(OUTPUTS, i64)
    width, blocks = q.shape[1] // heads, (heads + OUTPUTS - 1) // OUTPUTS
    for item in range(first, last):
        row, head = item // blocks, item % blocks * OUTPUTS
        mine = min(OUTPUTS, heads - head)
        m = attend_part(
            q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts,
            scale, residue, parties, scratch, row, head, one,
        )  # fmt: skip
        for o in range(mine):
            one[o] = tops[row, head + o]
        mixed = sum_part(latent, width, mine, scratch, m, one, sums)
        for o in range(mine):
            d[row, head + o] = sums[o]
            for c in range(width):
                at = c // OUTPUTS * OUTPUTS * OUTPUTS + o * OUTPUTS + c % OUTPUTS
                n[row, (head + o) * width + c] = mixed[at]


@cpu
def latent_close(n, d, exponent, out, first, last):
    """out = RN(n) / RN(d) * 2^exponent of merged sums; items first to last: row * heads + head.

    n [rows, heads * width], d [rows, heads] int64; out [rows, heads * width] float32.
    """
    heads = d.shape[1]
    width, power = n.shape[1] // heads, pow2(exponent)
    for item in range(first, last):
        row, head = item // heads, item % heads
        below = rn(d[row, head])
        for c in range(head * width, (head + 1) * width):
            out[row, c] = mul(div(rn(n[row, c]), below), power)


# --- random cases --------------------------------------------------------------------------------


def tops_cases(rng):
    """One party, or a share of three; some rows have no position of the party's."""
    for arguments in attend_cases(rng):
        parties = int(rng.choice([1, 3]))
        tops = np.full(arguments[1].shape, 7, f32)
        yield *arguments[:12], int(rng.integers(0, parties)), parties, tops, *arguments[-2:]


def sums_cases(rng):
    """The tops as the parties together find them."""
    for q, eq, *rest in attend_cases(rng):
        parties, (first, last) = int(rng.choice([1, 3])), rest[-2:]
        tops = np.zeros(eq.shape, f32)
        latent_tops_meaning(q, eq, *rest[:10], 0, 1, tops, first, last)
        residue, n, d = (
            int(rng.integers(0, parties)),
            np.zeros(q.shape, i64),
            np.zeros(eq.shape, i64),
        )
        yield q, eq, *rest[:10], residue, parties, tops, n, d, first, last


def close_cases(rng):
    """Sums of every size, and a row that nobody weighed."""
    for heads, width in ((4, 32), (3, 36), (1, 4)):
        rows = int(rng.integers(1, 4))
        n = rng.integers(-(2**56), 2**56, (rows, heads * width)) >> int(rng.integers(0, 50))
        d = rng.integers(1, 2**38, (rows, heads)) >> int(rng.integers(0, 30))
        n[0, :width], d[0, 0] = 0, 0
        out, last = np.full(n.shape, 5, f32), rows * heads
        yield n, d, int(rng.choice([-10, 63, -63])), out, int(rng.integers(0, last)), last


register(
    "latent_tops",
    meaning=latent_tops_meaning,
    cpu=fresh(latent_tops),
    shapes=SHAPES + "tops [rows, heads] float32",
    units=UNITS + "; residue, parties: of positions",
    cases=tops_cases,
)
register(
    "latent_sums",
    meaning=latent_sums_meaning,
    cpu=fresh(latent_sums),
    shapes=SHAPES + "tops [rows, heads] float32; n [rows, heads * width], d [rows, heads] int64",
    units=UNITS + "; residue, parties: of positions; d in 2^-22 of the greatest weight",
    cases=sums_cases,
)
register(
    "latent_close",
    meaning=latent_close_meaning,
    cpu=latent_close,
    shapes="n [rows, heads * width], d [rows, heads] int64; out [rows, heads * width] float32",
    units="a latent is q * 2^exponent; items row * heads + head",
    cases=close_cases,
)
