"""Embedding rows out of a table of bit patterns: for every stream, and for a drafter's input."""

import numpy as np
from numba.extending import register_jitable

from .registry import cpu, register
from .scalars import ZERO, flt

f32, i32, u16 = np.float32, np.int32, np.uint16


def _rows_of(table_high, table_low, tokens):
    """Rows of the table [n, D] float32."""
    pattern = table_high[tokens].astype(np.uint32) << np.uint32(16)
    if table_low.shape[0]:
        pattern |= table_low[tokens]
    return pattern.view(f32)


def embed_rows_meaning(table_high, table_low, tokens, x, first, last):
    """As embed_rows."""
    rows = _rows_of(table_high, table_low, tokens[first:last])
    x[first:last] = np.tile(rows, x.shape[1] // table_high.shape[1])


def embed_next_meaning(table_high, table_low, tokens, positions, x, first, last):
    """As embed_next."""
    rows = _rows_of(table_high, table_low, tokens[first:last])
    rows[positions[first:last] == 0] = 0
    x[first:last, : table_high.shape[1]] = rows


@register_jitable
def put_row(table_high, table_low, token, out):
    """One embedding row into out [D] float32."""
    high = table_high[token]
    if table_low.shape[0] == 0:
        for c in range(out.shape[0]):
            out[c] = flt(i32(i32(high[c]) << i32(16)))
    else:
        low = table_low[token]
        for c in range(out.shape[0]):
            out[c] = flt(i32(i32(i32(high[c]) << i32(16)) | i32(low[c])))


@cpu
def embed_rows(table_high, table_low, tokens, x, first, last):
    """The embedding row of each token, as often as it fits into a row of x.

    table_high [V, D] uint16 and table_low [V or 0, D] uint16: float32 patterns, high << 16 | low,
    low absent where it is 0 everywhere; tokens [rows] int64; x [rows, N * D] float32.
    """
    width = table_high.shape[1]
    for row in range(first, last):
        for stream in range(x.shape[1] // width):
            out = x[row, stream * width : (stream + 1) * width]
            put_row(table_high, table_low, tokens[row], out)


@cpu
def embed_next(table_high, table_low, tokens, positions, x, first, last):
    """The embedding row of the token after each row, zeros for the row of position 0.

    Tables as embed_rows has them; tokens, positions [rows] int64; x [rows, >= D] float32.
    """
    for row in range(first, last):
        out = x[row, : table_high.shape[1]]
        if positions[row] == 0:
            for c in range(out.shape[0]):
                out[c] = ZERO
        else:
            put_row(table_high, table_low, tokens[row], out)


def embed_cases(rng):
    """Tables of bfloat16 and of float32, one stream and several, sizes of every kind."""
    for vocab, width, streams in ((1, 1, 1), (9, 16, 4), (40, 33, 4), (7, 128, 2)):
        table = (rng.standard_normal((vocab, width)) * rng.choice([1e-40, 1, 1e30])).astype(f32)
        pattern = table.view(np.uint32)
        low = pattern.astype(u16) if rng.integers(0, 2) else np.zeros((0, width), u16)
        rows = int(rng.integers(1, 6))
        x = np.full((rows, streams * width), 7, f32)
        tokens = rng.integers(0, vocab, rows)
        yield (pattern >> 16).astype(u16), low, tokens, x, int(rng.integers(0, rows + 1)), rows


def embed_next_cases(rng):
    """Rows of position 0 anywhere."""
    for high, low, tokens, x, first, last in embed_cases(rng):
        positions = rng.choice([0, 1, 2, 600], tokens.size)
        yield high, low, tokens, positions, x, first, last


_TABLE = "table_high [V, D] uint16; table_low [V or 0, D] uint16; tokens [rows] int64; "
register(
    "embed_rows",
    meaning=embed_rows_meaning,
    cpu=embed_rows,
    shapes=_TABLE + "x [rows, N * D] float32",
    units="patterns of float32: high << 16 | low; token ids; N streams",
    cases=embed_cases,
)
register(
    "embed_next",
    meaning=embed_next_meaning,
    cpu=embed_next,
    shapes=_TABLE + "positions [rows] int64; x [rows, >= D] float32",
    units="patterns of float32: high << 16 | low; token ids of the following row",
    cases=embed_next_cases,
)
