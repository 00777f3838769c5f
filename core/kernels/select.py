"""The indexer: pools scored by exact dot products, and the best of them found without a sort."""

import numpy as np
from numba.extending import register_jitable

from . import meaning
from .linear import extreme_rows
from .madd import OUTPUTS, wide1, wide2, wide3
from .registry import inner, register
from .scalars import INF_BITS, SIGN_OFF, ZERO, add, bits, fma, mul
from .weigh import LOWEST, in_order

f32, i8, i16, i32, i64, u64 = np.float32, np.int8, np.int16, np.int32, np.int64, np.uint64
CHUNK = 64  # pools that are scored at once, by TILE_QUERIES query heads or those of one row
TILE_QUERIES = 64
BINS = 2048
LANES = u64(OUTPUTS)
SHIFTS = (21, 10, 0)  # of a key's digits: 11, 11 and 10 bits

# --- the meaning ---------------------------------------------------------------------------------


def pool_scores(q, e, w, keys, exponent):
    """q [heads, width] int16, e [heads], w [heads] float32, keys [n, width] -> scores [n]."""
    dots = q.astype(np.float64) @ keys.T.astype(np.float64)
    score = np.zeros(len(keys), f32)
    with np.errstate(all="ignore"):
        s = dots.astype(f32) * meaning.pow2(e.astype(i32) + exponent)[:, None]
        for head in range(len(q)):
            score = meaning.fma(w[head], np.where(s[head] > 0, s[head], f32(0)), score)
    return score


def select_meaning(
    qi, ei, w, wcol, wscale, keys, exponent, positions, lanes, tables, page_rows, kpool, most,
    picked, counts, first, last,
):  # fmt: skip
    """As select_rows, by a stable sort."""
    heads, per_page = ei.shape[1], page_rows // kpool
    for row in range(first, last):
        n = (positions[row] + 1) // kpool
        kept = np.arange(n)
        if n > most:
            pages = tables[lanes[row], kept // per_page]
            with np.errstate(all="ignore"):
                weights = w[row, wcol : wcol + heads] * wscale
            q, rows = qi[row].reshape(heads, -1), keys[pages, kept % per_page]
            scores = pool_scores(q, ei[row], weights, rows, exponent)
            kept = np.sort(np.argsort(-scores, kind="stable")[:most])
        picked[row, : kept.size], counts[row] = kept, kept.size


# --- the loops for the CPU -----------------------------------------------------------------------


@register_jitable
def pack_row(row, packed, lane):
    """Put a row [pairs] into one lane of a block [pairs * 16]; int32."""
    for p in range(row.shape[0]):
        # An unsigned index cannot count from the end, so the compiler need not ask.
        packed[u64(p) * LANES + lane] = row[p]


@register_jitable
def dot_rows(x, rows, pairs, w, at, ex, ew, y, to, stride):
    """y[to + stride r + o] = RN(dot) * 2^(ex[r] + ew[o]) of the rows of x by one block of w."""
    r = 0
    while r < rows:
        left = rows - r
        a, b = r * pairs, to + r * stride
        if left == 3 or left > 4:
            wide3(x, a, pairs, w, at, ex, r, ew, 0, pairs, y, b, stride, False)
            r += 3
        elif left > 1:
            wide2(x, a, pairs, w, at, ex, r, ew, 0, pairs, y, b, stride, False)
            r += 2
        else:
            wide1(x, a, pairs, w, at, ex, r, ew, 0, pairs, y, b, stride, False)
            r += 1


@register_jitable
def add_heads(y, weights, chain, scores):
    """scores [n] = the chain over the heads, from +0, of weight times relu(y [heads * CHUNK])."""
    chain[:] = ZERO
    for h in range(weights.shape[0]):
        one, weight = y[h * CHUNK : (h + 1) * CHUNK], weights[h]
        for o in range(CHUNK):
            s = one[o] if one[o] > ZERO else ZERO
            chain[o] = fma(weight, s, chain[o])
    for o in range(scores.shape[0]):
        scores[o] = chain[o]


@register_jitable
def score_tile(q, e, weights, keys, exponent, table, per_page, pools, scores):
    """scores [rows, pools] of a tile; q [rows * heads * pairs] int32, weights [rows, heads]."""
    rows, heads = weights.shape
    pairs, flat, ew = keys.shape[2] // 2, keys.reshape(keys.size).view(i32), np.empty(OUTPUTS, i8)
    packed, y = np.zeros(CHUNK * pairs, i32), np.empty(rows * heads * CHUNK, f32)
    chain = np.empty(CHUNK, f32)
    ew[:] = exponent
    page, left, at = -1, 0, 0
    for first in range(0, pools, CHUNK):
        n = min(CHUNK, pools - first)
        for o in range(n):
            if left == 0:
                page, left = page + 1, per_page
                at = i64(table[page]) * per_page * pairs
            block = packed[o // OUTPUTS * OUTPUTS * pairs :]
            pack_row(flat[at : at + pairs], block, u64(o % OUTPUTS))
            at += pairs
            left -= 1
        for block in range(0, n, OUTPUTS):
            dot_rows(q, rows * heads, pairs, packed, block * pairs, e, ew, y, block, CHUNK)
        for t in range(rows):
            one = y[t * heads * CHUNK : (t + 1) * heads * CHUNK]
            add_heads(one, weights[t], chain, scores[t, first : first + n])


@register_jitable
def score_keys(scores, keys):
    """Scores as int32 in their order, equal for zeros of both signs; a NaN is the least."""
    for i in range(scores.shape[0]):
        pattern = bits(add(scores[i], ZERO))
        keys[i] = LOWEST if i32(pattern & SIGN_OFF) > INF_BITS else in_order(pattern)


@register_jitable
def count_digits(keys, shift, upper, bins):
    """bins: how many keys have each digit at `shift`, of those whose digits above are `upper`."""
    bins[:] = 0
    if shift == SHIFTS[0]:
        for i in range(keys.shape[0]):
            bins[(keys[i] >> i32(SHIFTS[0])) + BINS // 2] += 1
        return
    above = i32(SHIFTS[0] if shift == SHIFTS[1] else SHIFTS[1])
    mask = i32((1 << (above - shift)) - 1)
    for i in range(keys.shape[0]):
        if keys[i] >> above == upper:
            bins[i32(keys[i] >> i32(shift)) & mask] += 1


@register_jitable
def least_kept(keys, most):
    """(the key of the `most`-th best, how many with just this key are kept), most <= keys."""
    bins, left, upper = np.empty(BINS, i32), i64(most), i32(0)
    for shift in SHIFTS:
        count_digits(keys, shift, upper, bins)
        digit = BINS - 1
        while bins[digit] < left:
            left -= bins[digit]
            digit -= 1
        if shift == SHIFTS[0]:
            upper = i32(digit - BINS // 2)
        elif shift == SHIFTS[1]:
            upper = i32(i32(upper << i32(11)) | i32(digit))
        else:
            upper = i32(i32(upper << i32(10)) | i32(digit))
    return upper, left


@register_jitable
def keep_best(keys, most, picked):
    """picked [most]: the places of the best keys, ascending; of equal ones the lower places."""
    least, equal = least_kept(keys, most)
    count, i = 0, 0
    while count < most:
        same = keys[i] == least
        if keys[i] > least or (same and equal > 0):
            picked[count] = i
            count += 1
            equal -= i64(same)
        i += 1


@register_jitable
def tile_end(row, last, most_rows, positions, lanes, kpool, most):
    """The end of a tile that begins at row: rows of one lane, each with more pools than `most`."""
    end = row + 1
    while (
        end < last
        and end - row < most_rows
        and lanes[end] == lanes[row]
        and (positions[end] + 1) // kpool > most
    ):
        end += 1
    return end


@inner
def select_rows(
    qi, ei, w, wcol, wscale, keys, exponent, positions, lanes, tables, page_rows, kpool, most,
    picked, counts, scores, first, last,
):  # fmt: skip
    """The pools that rows first to last attend to: the best `most` of those complete, ascending.

    qi [rows, heads * width] int16 and ei [rows, heads] int8: queries; w [rows, stride] float32:
    head weights from column wcol, times wscale; keys [pages, page_rows / kpool, width] int16,
    q * 2^exponent; positions, lanes [rows] int64; tables [lanes, entries] int32. A score is the
    fma chain, over the heads from +0, of weight times relu(dot); of equal ones the lower pool wins.
    picked [rows, most] int32 and counts [rows] int64: what is kept; entries past it are left alone.
    scores [n] float32: scratch of a party, room for the pools of one row; with room for more, some
    rows are scored together.
    """
    heads, per_page = ei.shape[1], page_rows // kpool
    flat_q, flat_e = qi.reshape(qi.size).view(i32), ei.reshape(ei.size)
    pairs = qi.shape[1] // 2
    row = first
    while row < last:
        pools = (positions[row] + 1) // kpool
        if pools <= most:
            for i in range(pools):
                picked[row, i] = i
            counts[row] = pools
            row += 1
            continue
        end = tile_end(row, last, max(TILE_QUERIES // heads, 1), positions, lanes, kpool, most)
        for r in range(row, end):
            pools = max(pools, (positions[r] + 1) // kpool)
        end = min(end, row + max(scores.size // pools, 1))
        weights = np.empty((end - row, heads), f32)
        for r in range(row, end):
            for h in range(heads):
                weights[r - row, h] = mul(w[r, wcol + h], wscale)
        room = scores[: (end - row) * pools].reshape(end - row, pools)
        q, e = flat_q[row * pairs : end * pairs], flat_e[row * heads : end * heads]
        score_tile(q, e, weights, keys, exponent, tables[lanes[row]], per_page, pools, room)
        for r in range(row, end):
            one = room[r - row][: (positions[r] + 1) // kpool]
            ordered = one.view(i32)
            score_keys(one, ordered)
            keep_best(ordered, most, picked[r])
            counts[r] = most
        row = end


# --- random cases --------------------------------------------------------------------------------


def select_fresh(*arguments):
    """As select_rows, with scratch that holds junk: what a caller sees of it."""
    positions, kpool = arguments[7], arguments[11]
    pools = max((int(positions.max()) + 1) // kpool, 1)
    room = np.full(pools * (1 + pools % 6), np.nan, f32)  # for one row, or for some
    select_rows(*arguments[:-2], room, *arguments[-2:])


def select_shapes(rng):
    """(heads, width, pools a page, kpool, most): one head, more than a block, the real widths."""
    yield from ((1, 4, 2, 1, 3), (4, 16, 8, 4, 4), (6, 12, 3, 2, 5), (20, 16, 16, 4, 8))
    yield (32, 128, int(rng.choice([1, 7])), 4, 9)


def select_cases(rng):
    """Runs about the place where all fit; many equal scores, weights of both signs, NaN, poison."""
    for heads, width, per_page, kpool, most in select_shapes(rng):
        entries = -(-4 * most // per_page)
        keys = extreme_rows(rng, 2 * entries * per_page, width)
        keys[rng.random(len(keys)) < 0.3] = keys[0]
        keys = keys.reshape(-1, per_page, width)
        tables = rng.permutation(2 * entries).reshape(2, entries).astype(i32)
        rows = int(rng.integers(1, 8))
        starts = rng.integers(0, entries * per_page * kpool - rows, 2)
        lanes = np.sort(rng.integers(0, 2, rows))
        positions = starts[lanes] + np.arange(rows)
        qi = extreme_rows(rng, rows * heads, width).reshape(rows, -1)
        ei, wcol = rng.integers(-63, 64, (rows, heads), i8), int(rng.integers(0, 3))
        ei[rng.integers(0, 2, rows) == 0] = -20
        w = (rng.standard_normal((rows, wcol + heads)) * rng.choice([1e-38, 1, 1e20])).astype(f32)
        w[rng.random(w.shape) < 0.05] = rng.choice([np.nan, np.inf, -np.inf, -0.0, -1e-45])
        for lane in (0, 1):
            seen = (positions[lanes == lane].max(initial=-1) + 1) // kpool
            for pool in range(seen, entries * per_page):
                keys[tables[lane, pool // per_page], pool % per_page] = -0x8000
        picked, counts = np.full((rows, most), -1, i32), np.full(rows, -1, i64)
        wscale, exponent = f32(1) / np.sqrt(f32(heads * width)), int(rng.choice([-12, -63]))
        yield (qi, ei, w, wcol, wscale, keys, exponent, positions, lanes, tables, per_page * kpool,
               kpool, most, picked, counts, int(rng.integers(0, rows)), rows)  # fmt: skip


register(
    "select_rows",
    meaning=select_meaning,
    cpu=select_fresh,
    shapes="qi [rows, heads * width] int16; ei [rows, heads] int8; w [rows, stride] float32; keys "
    "[pages, page_rows / kpool, width] int16; positions, lanes [rows] int64; tables [lanes, "
    "entries] int32; picked [rows, most] int32; counts [rows] int64",
    units="wcol in columns of w; page_rows, kpool in tokens; picked, most, counts in pools; a key "
    "is q * 2^exponent; wscale float32",
    cases=select_cases,
)
