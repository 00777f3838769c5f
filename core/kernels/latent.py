"""Latent rows: normalised without a weight, in static fixed point, put in pages and summed."""

import numpy as np
from numba.extending import register_jitable

from . import meaning
from .digest import digest_of, digest_words, row_words
from .norm import rmsnorm
from .quantise import hard_rows, sound_amax, top_bits, top_number_bits
from .registry import cpu, register
from .scalars import (
    INF_BITS,
    ONE,
    add,
    div,
    flt,
    mul,
    pow2,
    q16_value,
    rn,
    row_exponent,
    sqrt,
)
from .team import fetch_add

f32, i16, i32, i64, u64 = np.float32, np.int16, np.int32, np.int64, np.uint64


def fixed(x, exponent):
    """x float32 -> int16 of rint(x * 2^-exponent) within +-QMAX; NaN gives 0."""
    with np.errstate(all="ignore"):
        scaled = np.rint(np.asarray(x, f32) * meaning.pow2(-exponent))
    clipped = np.clip(scaled, -meaning.QMAX, meaning.QMAX)
    return np.where(np.isnan(scaled), f32(0), clipped).astype(i16)


def latent_rows_meaning(
    x, column, width, eps, exponent, positions, lanes, tables, latent, part, layer, sums, flags,
    first, last,
):  # fmt: skip
    """As latent_rows."""
    page_rows = latent.shape[1]
    columns = np.arange(width // 4, dtype=u64)
    for row in range(first, last):
        one, p = x[row, column : column + width], positions[row]
        digits = fixed(rmsnorm(one, f32(1), eps), exponent)
        flags[row] |= np.uint8(meaning.q16(one)[2])
        latent[tables[lanes[row], p // page_rows], p % page_rows] = digits
        sums[row] += np.array(digest_of(row_words(digits), part, layer, 0, p, columns), u64)


@register_jitable
def inverse_size(row, eps):
    """(1 / the root of a row's mean square + eps, whether the row is sound)."""
    top = top_bits(row)
    sound = sound_amax(top)
    if top > INF_BITS:
        top = top_number_bits(row)
    k = row_exponent(flt(top))
    scale, squares = pow2(-k), i64(0)
    for i in range(row.shape[0]):
        v = i32(q16_value(row[i], scale))
        squares += i64(i32(v * v))
    mean = div(mul(rn(squares), pow2(2 * k)), rn(row.shape[0]))
    return div(ONE, sqrt(add(mean, eps))), sound


@cpu
def latent_rows(
    x, column, width, eps, exponent, positions, lanes, tables, latent, part, layer, sums, flags,
    first, last,
):  # fmt: skip
    """The latents of rows first to last: RMSNorm without weight, fixed point, into their pages.

    x [rows, stride] float32, a latent in columns column to column + width; eps float32;
    positions, lanes [rows] int64; tables [lanes, entries] int32;
    latent [pages, page_rows, width] int16, a value is q * 2^exponent;
    sums [rows, 2] uint64: the digests of what was written are added, at once for all threads;
    flags [rows] uint8: 1 where a value was not sound, else left alone.
    """
    page_rows = latent.shape[1]
    scale, total = pow2(-exponent), sums.reshape(sums.size)
    for row in range(first, last):
        one, position = x[row][column : column + width], positions[row]
        r, sound = inverse_size(one, eps)
        if not sound:
            flags[row] = np.uint8(1)
        digits = latent[tables[lanes[row], position // page_rows], position % page_rows]
        for i in range(width):
            digits[i] = q16_value(mul(one[i], r), scale)
        a, b = digest_words(digits.view(u64), part, layer, 0, position, 0)
        fetch_add(total, 2 * row, a)
        fetch_add(total, 2 * row + 1, b)


def latent_cases(rng):
    """Hard rows of two lanes among other columns; pages of several sizes, in no order."""
    for width, page_rows in ((4, 4), (32, 12), (36, 32), (512, 512)):
        rows, column = int(rng.integers(1, 7)), int(rng.integers(0, 6))
        x = hard_rows(rng, rows, width)
        tame = rng.integers(0, 2, rows) == 0
        x[tame] = rng.standard_normal((int(tame.sum()), width)).astype(f32)
        x = np.pad(x, ((0, 0), (column, 3)), constant_values=np.nan)
        tables = rng.permutation(7)[:6].reshape(2, 3).astype(i32)
        positions, lanes = rng.permutation(3 * page_rows)[:rows], rng.integers(0, 2, rows)
        latent = rng.integers(-0x8000, 0x8000, (7, page_rows, width), i16)
        sums, flags = rng.integers(0, 2**64, (rows, 2), u64), np.zeros(rows, np.uint8)
        exponent = int(rng.choice([-10, -15, -40, 63]))  # -40: every value is cut off
        layer, first = int(rng.integers(0, 12)), int(rng.integers(0, rows))
        yield (x, column, width, f32(1e-5), exponent, positions, lanes, tables, latent, 1, layer,
               sums, flags, first, rows)  # fmt: skip


register(
    "latent_rows",
    meaning=latent_rows_meaning,
    cpu=latent_rows,
    shapes="x [rows, stride] float32; positions, lanes [rows] int64; tables [lanes, entries] "
    "int32; latent [pages, page_rows, width] int16; sums [rows, 2] uint64; flags [rows] uint8",
    units="column, width in columns of x; a latent is q * 2^exponent; sums modulo 2^64, added to",
    cases=latent_cases,
)
