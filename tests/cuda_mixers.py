"""Launches of the mixers that do what several kernels of the CPU do, against those kernels."""

from typing import Any

import numpy as np
from numba import cuda

from kvtape.core.kernels import registry
from kvtape.core.kernels.cuda import sites
from kvtape.core.kernels.quantise import hard_rows

Array = Any
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
    sites.mix_streams(0, *given[:3], EPS, *given[3:], 0, rows)
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
    sites.read_site(0, *given[:3], EPS, *given[3:], 0, rows)
    meaning_of("hc_read")(x, site, u, 0, rows)
    meaning_of("rmsnorm_q16")(u, w, EPS, q, e, flags, 0, rows)
    both = ((q, given[3]), (e, given[4]), (flags, given[5]))
    return all(same(want, have) for want, have in both)


def small(rng: Any) -> dict[str, bool]:
    """Each, as small as it can be."""
    return {
        "mix_streams": mixed(rng, 2, 4, 8) and mixed(rng, 1, 2, 140),
        "read_site": opened(rng, 2, 4, 8) and opened(rng, 1, 2, 140),
    }
