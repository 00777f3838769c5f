"""Copies: of whole pages by id, between two arenas or within one; of columns of rows."""

import numpy as np

from .registry import cpu, inner, register


def copy_pages_meaning(source, source_ids, target, target_ids, first, last):
    """As copy_pages."""
    target[target_ids[first:last]] = source[source_ids[first:last]]


@cpu
def copy_pages(source, source_ids, target, target_ids, first, last):
    """target[target_ids[i]] = source[source_ids[i]] for i from first to last.

    source, target [pages_total, n] of one element type; source_ids, target_ids [m] int32. Within
    one arena no page may be both read and written.
    """
    for at in range(first, last):
        read, written = source[source_ids[at]], target[target_ids[at]]
        for i in range(read.shape[0]):
            written[i] = read[i]


@inner
def copy_columns(source, target, first, last):
    """Columns first to last of every row, none if last is not above first; both [rows, width]."""
    for row in range(source.shape[0]):
        for column in range(first, last):
            target[row, column] = source[row, column]


def copy_pages_cases(rng):
    """Pages of rows, exponents and floats between arenas of unequal size."""
    for dtype in (np.int16, np.int8, np.float32):
        width, many = int(rng.integers(1, 70)), int(rng.integers(1, 6))
        source = rng.integers(-100, 100, (many + 3, width)).astype(dtype)
        target = np.zeros((many + 1, width), dtype)
        read = rng.integers(0, many + 3, many).astype(np.int32)
        written = rng.permutation(many + 1).astype(np.int32)[:many]
        yield source, read, target, written, int(rng.integers(0, many)), many


register(
    "copy_pages",
    meaning=copy_pages_meaning,
    cpu=copy_pages,
    shapes="source, target [pages_total, n] of one type; source_ids, target_ids [m] int32",
    units="page ids; first, last: indices into the ids",
    cases=copy_pages_cases,
)
