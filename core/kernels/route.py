"""Routed experts: which of them a row goes to, rows gathered by expert, their results combined."""

import numpy as np

from . import meaning
from .registry import cpu, register
from .scalars import INF, ZERO, add, div, fma, mul, sigmoid

f32, i64 = np.float32, np.int64
LEAST = f32(1e-20)  # keeps the sum of a row's weights above zero

# --- the meaning ---------------------------------------------------------------------------------


def route_rows_meaning(m, bias, k, scale, experts, weights, first, last):
    """As route_rows."""
    scores = meaning.sigmoid(m[first:last, : bias.size])
    order = np.argsort(-(scores + bias), axis=-1, kind="stable")
    chosen = np.sort(order[:, :k], axis=-1)
    picked = np.take_along_axis(scores, chosen, 1)
    total = picked[:, 0]
    for j in range(1, k):
        total = total + picked[:, j]
    experts[first:last] = chosen
    weights[first:last] = picked / (total + LEAST)[:, None] * scale


def group_rows_meaning(experts, order, starts):
    """As group_rows."""
    flat = experts.reshape(-1)
    order[: flat.size] = np.argsort(flat, kind="stable")
    starts[:] = np.searchsorted(np.sort(flat), np.arange(starts.size))


def combine_rows_meaning(parts, weights, shared, y, c0, c1, first, last):
    """As combine_rows."""
    k = weights.shape[1]
    total = np.zeros((last - first, c1 - c0), f32)
    for j in range(k):
        part = parts[first * k + j : last * k : k, c0:c1]
        total = meaning.fma(weights[first:last, j, None], part, total)
    with np.errstate(all="ignore"):
        y[first:last, c0:c1] = total + shared[first:last, c0:c1]


# --- the loops for the CPU -----------------------------------------------------------------------


@cpu
def route_rows(m, bias, k, scale, experts, weights, first, last):
    """The k experts with the largest sigmoid(m) + bias, ties to the lower id, and their weights.

    m [rows, >= E] float32; bias [E] float32; scale float32; experts [rows, k] int64, ascending;
    weights [rows, k] float32: the sigmoids without bias, by their sum, times scale.
    """
    many = bias.shape[0]
    scores, keys = np.empty(many, f32), np.empty(many, f32)
    chosen = np.empty(many, np.bool_)
    for row in range(first, last):
        x, ids, shares = m[row, :many], experts[row], weights[row]
        for e in range(many):
            scores[e] = sigmoid(x[e])
        for e in range(many):
            keys[e] = add(scores[e], bias[e])
            chosen[e] = False
        for _ in range(k):
            best, top = -1, -INF
            for e in range(many):
                if not chosen[e] and (best < 0 or keys[e] > top):
                    best, top = e, keys[e]
            chosen[best] = True
        total, at = ZERO, 0
        for e in range(many):
            if chosen[e]:
                ids[at], shares[at] = e, scores[e]
                total = add(total, scores[e])
                at += 1
        total = add(total, LEAST)
        for j in range(k):
            shares[j] = mul(div(shares[j], total), scale)


@cpu
def group_rows(experts, order, starts):
    """Slots row * k + j sorted by expert, each expert's in order: order[starts[e]:starts[e + 1]].

    experts [rows, k] int64; order [>= rows * k] int64; starts [E + 1] int64.
    """
    k, many = experts.shape[1], starts.shape[0] - 1
    for e in range(many + 1):
        starts[e] = 0
    for row in range(experts.shape[0]):
        for j in range(k):
            starts[experts[row, j] + 1] += 1
    for e in range(many):
        starts[e + 1] += starts[e]
    for row in range(experts.shape[0]):
        for j in range(k):
            e = experts[row, j]
            order[starts[e]] = row * k + j
            starts[e] += 1
    for e in range(many, 0, -1):  # every start has moved on to the next one's
        starts[e] = starts[e - 1]
    starts[0] = 0


@cpu
def combine_rows(parts, weights, shared, y, c0, c1, first, last):
    """y = the experts' results by their weights, an fma each from +0, + the shared one's.

    parts [rows * k, >= c1] float32 by slot row * k + j; weights [rows, k] float32; shared and
    y [rows, >= c1] float32, two arrays; columns c0 to c1 (excluded).
    """
    k, size = weights.shape[1], c1 - c0
    for row in range(first, last):
        out, more = y[row, c0:c1], shared[row, c0:c1]
        for c in range(size):
            out[c] = ZERO
        for j in range(k):
            weight, part = weights[row, j], parts[row * k + j, c0:c1]
            for c in range(size):
                out[c] = fma(weight, part[c], out[c])
        for c in range(size):
            out[c] = add(out[c], more[c])


# --- random cases --------------------------------------------------------------------------------


def route_cases(rng):
    """Few and many experts, all chosen, ties on purpose, scores that saturate or vanish."""
    for many, k in ((8, 2), (288, 8), (5, 5), (1, 1), (16, 3)):
        rows = int(rng.integers(1, 6))
        m = (rng.standard_normal((rows, many + 2)) * rng.choice([1, 30, 1000])).astype(f32)
        if rng.integers(0, 2):
            m = np.round(m)
        m[0] = rng.choice([-np.inf, np.inf, -200, 0])
        bias = (np.round(rng.standard_normal(many)) * rng.choice([0, 0.5])).astype(f32)
        experts, weights = np.full((rows, k), -1, i64), np.full((rows, k), 7, f32)
        first = int(rng.integers(0, rows + 1))
        yield m, bias, k, f32(2.5), experts, weights, first, rows


def group_cases(rng):
    """Experts that nobody chose, that all chose, and no rows at all."""
    for many, k, rows in ((8, 2, 5), (288, 8, 3), (1, 1, 4), (16, 3, 40), (8, 2, 0)):
        experts = [np.sort(rng.permutation(many)[:k]) for _ in range(rows)]
        experts = np.array(experts, i64).reshape(rows, k)
        yield experts, np.full(rows * k + 2, -1, i64), np.full(many + 1, -1, i64)


def combine_cases(rng):
    """Some rows and some columns only, products that cancel."""
    for k, width in ((1, 16), (2, 33), (8, 128), (3, 1)):
        rows = int(rng.integers(1, 5))
        parts = rng.standard_normal((rows * k, width + 1)).astype(f32)
        parts[::2] *= f32(rng.choice([1, 1e6, 0]))
        weights = (rng.random((rows, k)) * 2.5).astype(f32)
        shared = rng.standard_normal((rows, width)).astype(f32)
        y = np.full((rows, width + 3), 7, f32)
        c0, c1 = (int(n) for n in np.sort(rng.integers(0, width + 1, 2)))
        yield parts, weights, shared, y, c0, c1, int(rng.integers(0, rows + 1)), rows


register(
    "route_rows",
    meaning=route_rows_meaning,
    cpu=route_rows,
    shapes="m [rows, >= E] float32; bias [E], scale float32; experts [rows, k] int64; "
    "weights [rows, k] float32",
    units="experts by id, ascending in a row; weights sum to about scale",
    cases=route_cases,
)
register(
    "group_rows",
    meaning=group_rows_meaning,
    cpu=group_rows,
    shapes="experts [rows, k] int64; order [>= rows * k] int64; starts [E + 1] int64",
    units="order: slots row * k + j; starts: indices into order",
    cases=group_cases,
)
register(
    "combine_rows",
    meaning=combine_rows_meaning,
    cpu=combine_rows,
    shapes="parts [rows * k, >= c1], weights [rows, k], shared, y [rows, >= c1] float32",
    units="float32; parts by slot row * k + j; c0, c1: columns",
    cases=combine_cases,
)
