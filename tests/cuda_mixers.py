"""Launches of the mixers that do what several kernels of the CPU do, against those kernels."""

from typing import Any
from unittest.mock import patch

import numpy as np
from numba import cuda

from kvtape.core.kernels import registry
from kvtape.core.kernels.cuda import kda, kda_recurrence, latent_split, sites
from kvtape.core.kernels.latent_attend import head_blocks
from kvtape.core.kernels.quantise import hard_rows

Array = Any
SITES: Any = sites
SPLIT: Any = latent_split
KDA: Any = kda
f32, i8, i16, u8 = np.float32, np.int8, np.int16, np.uint8
EPS = f32(1e-5)


def meaning_of(name: str) -> Any:
    """What a registered kernel means."""
    return next(one.meaning for one in registry.kernels() if one.name == name)


def same(want: Array, have: Array) -> bool:
    """Whether an array of the device holds these bits."""
    made = have.copy_to_host()
    if want.dtype.kind == "f":
        want, made = (np.where(np.isnan(one), f32(np.nan), one) for one in (want, made))
    return registry.same_bits(want, made)


def streams_of_rows(rng: Any, rows: int, size: int) -> Array:
    """Rows of every size of number; some with an infinity or without a number."""
    x = hard_rows(rng, rows, size)
    return x if rng.random() < 0.5 else rng.standard_normal((rows, size)).astype(f32)


def mixed(rng: Any, rows: int, n: int, width: int) -> bool:
    """Whether mix_streams is hc_write and a norm of ones."""
    x, y = streams_of_rows(rng, rows, n * width), streams_of_rows(rng, rows, width + 4)
    site = rng.random((rows, n * (n + 2))).astype(f32)
    q, e = np.zeros((rows, n * width), i16), np.zeros(rows, i8)
    flags = rng.integers(0, 2, rows).astype(u8)
    given = tuple(map(cuda.to_device, (x, site, y, q, e, flags)))
    SITES.mix_streams(0, *given[:3], EPS, *given[3:], 0, rows)
    meaning_of("hc_write")(x, site, y, 0, rows)
    meaning_of("rmsnorm_q16")(x, np.ones(n * width, f32), EPS, q, e, flags, 0, rows)
    both = ((x, given[0]), (q, given[3]), (e, given[4]), (flags, given[5]))
    return all(same(want, have) for want, have in both)


def opened(rng: Any, rows: int, n: int, width: int) -> bool:
    """Whether read_site is what a site reads, and its norm."""
    site = rng.random((rows, n * (n + 2))).astype(f32)
    x, w = streams_of_rows(rng, rows, n * width), rng.standard_normal(width).astype(f32)
    u, q = np.zeros((rows, width), f32), np.zeros((rows, width), i16)
    e, flags = np.zeros(rows, i8), np.zeros(rows, u8)
    given = tuple(map(cuda.to_device, (x, site, w, q, e, flags)))
    SITES.read_site(0, *given[:3], EPS, *given[3:], 0, rows)
    meaning_of("hc_read")(x, site, u, 0, rows)
    meaning_of("rmsnorm_q16")(u, w, EPS, q, e, flags, 0, rows)
    both = ((q, given[3]), (e, given[4]), (flags, given[5]))
    return all(same(want, have) for want, have in both)


def attended(rng: Any, rows: int, heads: int, width: int, most: int) -> bool:
    """Whether heads over what they see of one lane's rows are dealt over a chip as they are meant.

    most: pools of four that are picked; the context holds three times as many.
    """
    kpool, page_rows, exponent, scale = 4, 8, -10, f32(1 / 16)
    pages = -(-(3 * most + 2) * kpool // page_rows)
    latent = rng.integers(-32639, 32640, (pages, page_rows, width), i16)
    q = rng.integers(-32639, 32640, (rows, heads * width), i16)
    eq, lanes = rng.integers(-30, -16, (rows, heads), i8), np.zeros(rows, np.int64)
    tables = rng.permutation(pages).reshape(1, -1).astype(np.int32)
    positions = rng.integers(0, 3 * most * kpool, rows)
    positions[0] = 3 * most * kpool
    picked, counts = np.zeros((rows, most), np.int32), np.zeros(rows, np.int64)
    for row, pools in enumerate((positions + 1) // kpool):
        counts[row] = min(pools, most)
        picked[row, : counts[row]] = np.sort(rng.permutation(pools)[:most])
    given = (q, eq, positions, lanes, tables, latent, picked, counts)
    *placed, chosen, many = map(cuda.to_device, given)
    kinds = (np.int32, np.int32, np.int64, np.int64)
    shapes = latent_split.scratch_shapes(rows, heads, width, (most + 1) * kpool)
    scratch = tuple(
        cuda.to_device(np.full(shape, 3, kind)) for shape, kind in zip(shapes, kinds, strict=True)
    )
    want = np.full((rows, heads * width), 5, f32)
    out, rest = cuda.to_device(want), (exponent, page_rows, kpool)
    SPLIT.attend_split(0, *placed, *rest, chosen, many, scale, out, scratch, 0, rows)
    last = rows * head_blocks(heads)
    meaning_of("latent_attend")(*given[:6], *rest, picked, counts, scale, want, 0, last)
    return same(want, out)


def recurred(rng: Any, heads: int, width: int, lengths: tuple[int, ...], spread: int) -> bool:
    """Whether runs of so many rows, which so many blocks step, are stepped as they are meant."""
    rows, many, wide = sum(lengths), len(lengths), heads * width
    q, k = (rng.standard_normal((rows, wide)).astype(f32) / f32(11) for _ in range(2))
    qkv = rng.standard_normal((rows, 3 * wide)).astype(f32) / f32(11)
    a = np.exp(-5 * rng.random((rows, wide)) ** 2).astype(f32)
    beta = rng.random((rows, heads)).astype(f32)
    states = rng.standard_normal((many, 2, heads, width, width)).astype(f32)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    runs = np.array([(n, starts[n], 7 * (n % 3), lengths[n]) for n in range(many)], np.int64)
    given = (q, k, qkv, a, beta, states, runs, np.zeros((rows, wide), f32))
    placed = [cuda.to_device(one) for one in given]
    with patch.object(kda_recurrence, "SPREAD", spread):
        KDA.kda_rows(0, *placed, 0, many * heads)
    meaning_of("kda_rows")(*given, None, 0, many * heads)
    return same(states, placed[5]) and same(given[7], placed[7])


def small(rng: Any) -> dict[str, bool]:
    """Each, as small as it can be."""
    return {
        "mix_streams": mixed(rng, 2, 4, 8) and mixed(rng, 1, 2, 140),
        "read_site": opened(rng, 2, 4, 8) and opened(rng, 1, 2, 140),
        "attend_split": attended(rng, 1, 3, 32, 3),
        "kda_rows, runs by turns": recurred(rng, 2, 8, (9, 0, 6, 5), 2)
        and recurred(rng, 1, 32, (7, 3, 5), 4),
    }


def wide() -> None:
    """Launches at the widths that no small case has, over zeros."""
    heads, width, rows = 2, 128, np.zeros((1, 3 * 256), f32)
    q, k, a, o = (np.zeros((1, heads * width), f32) for _ in range(4))
    beta, flags, decay = np.zeros((1, heads), f32), np.zeros(1, u8), np.zeros(heads, f32)
    KDA.kda_prepare(
        0, rows, q, 0, q[0], decay, f32(-5), beta, 0, q, k, a, beta, flags, 0, heads
    )  # fmt: skip
    states = np.zeros((1, 1, heads, width, width), f32)
    KDA.kda_rows(0, q, k, rows, a, beta, states, np.zeros((1, 4), np.int64), o, 0, heads)
    KDA.kda_gate(0, o, q, 0, q[0, :width], EPS, a, 0, flags, 0, heads)
    hidden, e = 4096, np.zeros(1, i8)
    x, site, u = np.zeros((1, 4 * hidden), f32), np.zeros((1, 24), f32), np.zeros((1, hidden), f32)
    SITES.mix_streams(0, x, site, u, EPS, np.zeros((1, 4 * hidden), i16), e, flags, 0, 1)
    SITES.read_site(0, x, site, u[0], EPS, np.zeros((1, hidden), i16), e, flags, 0, 1)
    wide_attention()


def wide_attention() -> None:
    """Of 64 heads over rows of 512 values."""
    heads, width, kpool, most = 64, 512, 4, 8
    kinds = (np.int32, np.int32, np.int64, np.int64)
    shapes = latent_split.scratch_shapes(1, heads, width, (most + 1) * kpool)
    scratch = tuple(np.zeros(*one) for one in zip(shapes, kinds, strict=True))
    q, latent = np.zeros((1, heads * width), i16), np.zeros((1, 8, width), i16)
    at = (np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 1), np.int32))
    kept = (np.zeros((1, most), np.int32), np.zeros(1, np.int64))
    out = np.zeros((1, heads * width), f32)
    SPLIT.attend_split(
        0, q, np.zeros((1, heads), i8), *at, latent, -10, 8, kpool, *kept, f32(1), out, scratch, 0,
        1,
    )  # fmt: skip
