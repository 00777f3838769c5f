"""Attention over pages: exact sums in two passes, a tile of consecutive rows at a time."""

import numpy as np

from . import meaning
from .attend_tile import carve, carve_rows, page_exponents, tile_scores, tile_values, tile_weights
from .linear import extreme_rows
from .madd import OUTPUTS
from .registry import cpu, inner, register
from .rows import ARENAS, SHAPES, random_arenas, row_view
from .scalars import div, mul, pow2, rn

f32, i32, i64 = np.float32, np.int32, np.int64
TILE_QUERIES = 12  # query heads of a tile, over all its rows


def tile_rows(group):
    """Rows of a tile: as many as keep the group's query heads within TILE_QUERIES."""
    return max(1, TILE_QUERIES // group)


def attend_scratch(context, page_rows, group, width):
    """int64 words of scratch that one party needs for rows that see at most `context` rows."""
    queries = max(TILE_QUERIES, group)
    seen = -(-context // page_rows) * page_rows
    return queries * (OUTPUTS + 2 + width // 4) + (queries + 1) * seen


# --- the meaning ---------------------------------------------------------------------------------


def cut_tiles_meaning(positions, lanes, first, last, most, tiles):
    """As cut_tiles."""
    count, inside = 0, 0
    for row in range(first, last):
        follows = row > first and lanes[row] == lanes[row - 1]
        if follows and positions[row] == positions[row - 1] + 1 and inside < most:
            inside += 1
            tiles[count - 1, 1] = inside
        else:
            tiles[count], inside, count = (row, 1), 1, count + 1
    return count


def visible_rows(data, exponents, layer, head, table, rows, side):
    """The first rows of a stream, logical: digits [rows, width] float64, exponents [rows] int32."""
    page_rows = exponents.shape[3]
    at = [(layer, table[i // page_rows], head, i % page_rows) for i in range(rows)]
    digits = [row_view(data, page_rows, *one, side).reshape(-1) for one in at]
    return np.array(digits, np.float64), np.array([exponents[one] for one in at], i32)


def attend_meaning(
    q, eq, positions, lanes, tables, keys, key_exponents, values, value_exponents,
    layer, scale, tiles, first, last, step, o, column0,
):  # fmt: skip
    """As attend; float64 holds every partial sum below 2^16 rows."""
    kv_heads, width = keys.shape[2], q.shape[2]
    group = q.shape[1] // kv_heads
    for tile, head in (divmod(item, kv_heads) for item in range(first, last, step)):
        for row in range(tiles[tile, 0], tiles[tile].sum()):
            table, n = tables[lanes[row]], positions[row] + 1
            k, ek = visible_rows(keys, key_exponents, layer, head, table, n, 0)
            v, ev = visible_rows(values, value_exponents, layer, head, table, n, 1)
            greatest = ev.max()
            shift = meaning.pow2(np.maximum(22 + ev - greatest, -126))
            for j in range(head * group, (head + 1) * group):
                dots = (k @ q[row, j].astype(np.float64)).astype(f32)
                s = dots * meaning.pow2(eq[row, j] + ek) * scale
                p = meaning.exp(s - s.max())
                whole = np.rint(p * shift).astype(np.float64)
                below = f32(np.rint(p * f32(1 << 22)).astype(i64).sum())
                to = column0 + j * width
                above = (whole @ v).astype(f32)
                o[row, to : to + width] = above / below * meaning.pow2(greatest)


# --- the loops for the CPU -----------------------------------------------------------------------


@cpu
def cut_tiles(positions, lanes, first, last, most, tiles):
    """Group rows first to last: a tile is at most `most` consecutive rows of one lane.

    positions, lanes [rows] int64; tiles [n, 2] int64 (first row, rows), n >= last - first.
    Returns how many there are.
    """
    count = 0
    row = first
    while row < last:
        rows = 1
        while (
            rows < most
            and row + rows < last
            and lanes[row + rows] == lanes[row]
            and positions[row + rows] == positions[row] + rows
        ):
            rows += 1
        tiles[count, 0] = row
        tiles[count, 1] = rows
        count += 1
        row += rows
    return count


@inner
def attend(
    q, eq, positions, lanes, tables, keys, key_exponents, values, value_exponents,
    layer, scale, tiles, first, last, step, o, column0, scratch,
):  # fmt: skip
    """o[row, column0 + head * width + c]: attention of query rows over the rows at or before them.

    q [rows, heads, width] int16; eq [rows, heads] int8; positions, lanes [rows] int64;
    tables [lanes, entries] int32; arenas as rows.py has them; scale float32;
    tiles [n, 2] int64 of cut_tiles; items first, first + step, ... below last, item = tile *
    kv_heads + head; o [rows, columns] float32; scratch [attend_scratch(...)] int64, a party's own.
    Rows past a query's position may hold anything: their scores are dropped, their digits are 0.
    """
    kv_heads, page_rows = key_exponents.shape[2], key_exponents.shape[3]
    width, group = q.shape[2], q.shape[1] // max(kv_heads, 1)
    most = max(TILE_QUERIES, group)
    n, d, et, qt, rest = carve(scratch, most, width)
    for item in range(first, last, step):
        tile, head = item // kv_heads, item % kv_heads
        row0, queries = tiles[tile, 0], tiles[tile, 1] * group
        table, visible = tables[lanes[row0]], positions[row0] + 1
        seen = (visible + tiles[tile, 1] + page_rows - 2) // page_rows * page_rows
        s, digits, e, p = carve_rows(rest, most, seen)
        for a in range(queries):
            row, j = row0 + a // group, head * group + a % group
            et[a] = eq[row, j]
            for c in range(width):
                qt[a * width + c] = q[row, j, c]
        tile_scores(queries, qt.view(i32), et, keys, key_exponents, layer, head, table, s, seen)
        page_exponents(value_exponents, layer, head, table, seen, e)
        tile_weights(queries, group, visible, scale, s, e, seen, digits, p, d, et)
        for column in range(0, width, OUTPUTS):
            tile_values(
                queries, digits.view(i32), values, value_exponents, layer, head, table, column,
                seen, n,
            )  # fmt: skip
            for a in range(queries):
                row, to = row0 + a // group, column0 + (head * group + a % group) * width + column
                below, power = rn(d[a]), pow2(et[a])
                for i in range(OUTPUTS):
                    o[row, to + i] = mul(div(rn(n[a * OUTPUTS + i]), below), power)


# --- random cases --------------------------------------------------------------------------------


def attend_fresh(*arguments):
    """As attend, with scratch that holds junk: what a caller sees of it."""
    q, positions, keys, exponents = arguments[0], arguments[2], arguments[5], arguments[6]
    group = q.shape[1] // keys.shape[2]
    words = attend_scratch(int(positions.max()) + 1, exponents.shape[3], group, q.shape[2])
    attend(*arguments, np.full(words, -1, i64))


def tile_cases(rng):
    """Runs of positions of two lanes, by turns and broken."""
    for most in (1, 3, 4):
        rows = int(rng.integers(1, 40))
        lanes = np.repeat(rng.integers(0, 2, rows), 3)[:rows]
        positions = np.cumsum(rng.choice([1, 1, 1, 2, -3], rows)) + 200
        yield positions, lanes, int(rng.integers(0, rows)), rows, most, np.zeros((rows, 2), i64)


def attend_cases(rng):
    """Two lanes at random positions, pages in no order, poison in every row that nobody sees."""
    for kv_heads, group, page_rows, width in SHAPES:
        arenas = random_arenas(rng, 2, 9, kv_heads, page_rows, width)
        for data, exponents in (arenas[:2], arenas[2:]):
            data[...] = extreme_rows(rng, data.size // 8, 8).reshape(data.shape)
            exponents[...] = rng.integers(-22, -12, exponents.shape)
            exponents[rng.random(exponents.shape) < 0.02] = -63
        tables = rng.permutation(9)[:8].reshape(2, 4).astype(i32)
        starts, lengths = rng.integers(0, 3 * page_rows, 2), rng.integers(1, 8, 2)
        lanes = np.repeat([0, 1], lengths)
        positions = np.concatenate(
            [np.arange(n) + at for at, n in zip(starts, lengths, strict=True)]
        )
        for lane in range(2):
            for at in range(positions[lanes == lane].max() + 1, 4 * page_rows):
                page, row = tables[lane, at // page_rows], at % page_rows
                for side, (data, exponents) in enumerate((arenas[:2], arenas[2:])):
                    exponents[:, page, :, row] = rng.choice([-128, 127])
                    for layer, head in np.ndindex(2, kv_heads):
                        view = row_view(data, page_rows, layer, page, head, row, side)
                        view[...] = rng.choice([-0x8000, -0x7F80])
        rows, heads = positions.size, kv_heads * group
        q = extreme_rows(rng, rows * heads, width).reshape(rows, heads, width)
        eq = rng.integers(-25, -14, (rows, heads), np.int8)
        tiles = np.zeros((rows, 2), i64)
        count = cut_tiles_meaning(positions, lanes, 0, rows, tile_rows(group), tiles)
        o, step = np.zeros((rows, heads * width + 5), f32), int(rng.integers(1, 3))
        yield (q, eq, positions, lanes, tables, *arenas, int(rng.integers(0, 2)),
               f32(1) / np.sqrt(f32(width)), tiles, int(rng.integers(0, step)), count * kv_heads,
               step, o, int(rng.integers(0, 5)))  # fmt: skip


register(
    "cut_tiles",
    meaning=cut_tiles_meaning,
    cpu=cut_tiles,
    shapes="positions, lanes [rows] int64; tiles [n, 2] int64 (first row, rows)",
    units="rows of the step; most: rows of a tile",
    cases=tile_cases,
)
register(
    "attend",
    meaning=attend_meaning,
    cpu=attend_fresh,
    shapes="q [rows, heads, width] int16; eq [rows, heads] int8; positions, lanes [rows] int64; "
    "tables [lanes, entries] int32; " + ARENAS + "; tiles [n, 2] int64; o [rows, columns] float32",
    units="items tile * kv_heads + head; column0 in columns of o; scale float32",
    cases=attend_cases,
)
