"""Poison: two patterns that no sound row holds, the loops that write them, and how to tell them.

A value of Q16 is within +-32639 and an exponent within +-63: both patterns of either are outside.
The floats are the positive quiet NaN, which no operation here makes, and the largest finite number.
"""

import numpy as np
from numba.extending import register_jitable
from numpy.typing import DTypeLike

from .registry import cpu, register
from .scalars import EMAX, EMIN, QMAX, bits

i16, i32 = np.int16, np.int32
QUIET_NAN, LARGEST = i32(0x7FC00000), i32(0x7F7FFFFF)
LEAST_Q = i16(-QMAX)

# By pattern, then by element: rows int16; exponents int8 or int32; float32; sums int64.
PATTERNS = {
    "a": {
        "int16": i16(-0x8000),
        "int8": np.int8(-128),
        "int32": i32(-128),
        "float32": QUIET_NAN.view(np.float32),
        "int64": np.int64(-0x8000000000000000),
    },
    "b": {
        "int16": i16(-0x7F80),
        "int8": np.int8(127),
        "int32": i32(127),
        "float32": LARGEST.view(np.float32),
        "int64": np.int64(-0x7F7F7F7F7F7F7F80),
    },
}


def poison_value(pattern: str, dtype: DTypeLike) -> np.generic:
    """The poison of one element: pattern "a" or "b", dtype as of the array that it fills."""
    return PATTERNS[pattern][np.dtype(dtype).name]


@register_jitable
def is_poison_q(q):
    """Whether an int16 of a row is none that Q16 writes."""
    return q < LEAST_Q


@register_jitable
def is_poison_exponent(e):
    """Whether an exponent is none that Q16 writes."""
    return e < EMIN or e > EMAX


@register_jitable
def is_poison_float(x):
    """Whether a float32 has just one of the two poison patterns."""
    return bits(x) == QUIET_NAN or bits(x) == LARGEST


def fill_pages_meaning(pages, ids, value, first, last):
    """As fill_pages."""
    pages[ids[first:last]] = value


@cpu
def fill_pages(pages, ids, value, first, last):
    """Fill the pages ids[first:last] with one value. pages [pages_total, n]; ids [m] int32."""
    for at in range(first, last):
        page = pages[ids[at]]
        for i in range(page.shape[0]):
            page[i] = value


def fill_flat_meaning(flat, value):
    """As fill_flat."""
    flat[:] = value


@cpu
def fill_flat(flat, value):
    """Fill an array of scratch with one value. flat [n]."""
    for i in range(flat.shape[0]):
        flat[i] = value


def fill_pages_cases(rng):
    """Both patterns over every kind of page."""
    for pattern in PATTERNS:
        for dtype in (np.int16, np.int8, np.float32):
            total = int(rng.integers(1, 9))
            pages = rng.integers(-60, 60, (total, int(rng.integers(1, 70)))).astype(dtype)
            ids = rng.permutation(total).astype(i32)[: int(rng.integers(0, total + 1))]
            yield pages, ids, poison_value(pattern, dtype), int(rng.integers(0, 2)), ids.size


def fill_flat_cases(rng):
    """Both patterns over every kind of scratch."""
    for values in PATTERNS.values():
        for dtype, value in values.items():
            yield rng.integers(-60, 60, int(rng.integers(1, 70))).astype(dtype), value


register(
    "fill_pages",
    meaning=fill_pages_meaning,
    cpu=fill_pages,
    shapes="pages [pages_total, n] int16, int8 or float32; ids [m] int32; value of the same type",
    units="ids: page ids; first, last: indices into ids",
    cases=fill_pages_cases,
)
register(
    "fill_flat",
    meaning=fill_flat_meaning,
    cpu=fill_flat,
    shapes="flat [n] int16, int8, int32, float32 or int64; value of the same type",
    units="elements",
    cases=fill_flat_cases,
)
