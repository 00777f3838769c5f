"""Hyper-connections: the weights of a site, and how it reads and writes the residual streams.

A row holds N streams of D values side by side. A site's weights are N(N + 2) numbers a row: how
much it reads of each stream, how much of its result each stream takes, and `comb` [m, n]: how much
of stream m stays in stream n.
"""

import numpy as np
from numba.extending import register_jitable

from . import meaning
from .registry import cpu, register
from .scalars import LOG2E, ONE, ZERO, add, div, exp2c, fma, mul, rn, sigmoid, sub

f32 = np.float32
TWO = f32(2)
CHUNK = 64  # columns of all streams that are held while they are rewritten

# --- the meaning ---------------------------------------------------------------------------------


def hc_weights_meaning(m, base, scale, eps, iters, site, first, last):
    """As hc_weights."""
    n = streams_of(base.size)
    rows = m[first:last, : base.size]
    with np.errstate(all="ignore"):
        site[first:last, :n] = meaning.sigmoid(rows[:, :n] * scale[0] + base[:n]) + eps
        post = rows[:, n : 2 * n] * scale[1] + base[n : 2 * n]
        site[first:last, n : 2 * n] = f32(2) * meaning.sigmoid(post)
        c = (rows[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n)
        c = meaning.exp(c - c.max(-1, keepdims=True))
        c = c / _left_to_right(c, 2)[:, :, None] + eps
        c = c / (_left_to_right(c, 1) + eps)[:, None, :]
        for _ in range(iters - 1):
            c = c / (_left_to_right(c, 2) + eps)[:, :, None]
            c = c / (_left_to_right(c, 1) + eps)[:, None, :]
    site[first:last, 2 * n :] = c.reshape(-1, n * n)


def _left_to_right(c, axis):
    total = c.take(0, axis)
    for i in range(1, c.shape[axis]):
        total = total + c.take(i, axis)
    return total


def hc_read_meaning(x, site, u, first, last):
    """As hc_read."""
    n = streams_of(site.shape[1])
    streams = x[first:last].reshape(last - first, n, x.shape[1] // n)
    total = np.zeros_like(streams[:, 0])
    for i in range(n):
        total = meaning.fma(site[first:last, i, None], streams[:, i], total)
    u[first:last] = total


def hc_write_meaning(x, site, y, first, last):
    """As hc_write."""
    n = streams_of(site.shape[1])
    streams = x[first:last].reshape(last - first, n, x.shape[1] // n)
    before = streams.copy()
    post, comb = site[first:last, n : 2 * n], site[first:last, 2 * n :].reshape(-1, n, n)
    with np.errstate(all="ignore"):
        for i in range(n):
            total = post[:, i, None] * y[first:last, : streams.shape[2]]
            for j in range(n):
                total = meaning.fma(comb[:, j, i, None], before[:, j], total)
            streams[:, i] = total


def hc_mean_meaning(x, site_n, h, first, last):
    """As hc_mean."""
    streams = x[first:last].reshape(last - first, site_n, h.shape[1])
    with np.errstate(all="ignore"):
        h[first:last] = _left_to_right(streams, 1) * f32(1 / site_n)


# --- the loops for the CPU -----------------------------------------------------------------------


@register_jitable
def streams_of(weights):
    """N, from the N(N + 2) weights of a site."""
    n = 1
    while n * (n + 2) < weights:
        n += 1
    return n


@register_jitable
def divide_columns(c, n, eps):
    """Every column of c [n * n] divided by its sum (over m) + eps."""
    for i in range(n):
        total = c[i]
        for j in range(1, n):
            total = add(total, c[j * n + i])
        total = add(total, eps)
        for j in range(n):
            c[j * n + i] = div(c[j * n + i], total)


@register_jitable
def divide_rows(c, n, eps):
    """Every row of c [n * n] divided by its sum (over n) + eps."""
    for j in range(n):
        total = c[j * n]
        for i in range(1, n):
            total = add(total, c[j * n + i])
        total = add(total, eps)
        for i in range(n):
            c[j * n + i] = div(c[j * n + i], total)


@register_jitable
def softmax_rows(c, n):
    """Softmax of every row of c [n * n], in place."""
    for j in range(n):
        top = c[j * n]
        for i in range(1, n):
            top = max(top, c[j * n + i])
        for i in range(n):
            c[j * n + i] = exp2c(mul(sub(c[j * n + i], top), LOG2E))
    divide_rows(c, n, ZERO)


@cpu
def hc_weights(m, base, scale, eps, iters, site, first, last):
    """A site's weights: sigmoids for reading and writing, a Sinkhorn-balanced square for keeping.

    m [rows, >= N(N + 2)] float32; base [N(N + 2)] float32; scale [3] float32; eps float32;
    iters: passes over columns; site [rows, N(N + 2)] float32: pre [N], post [N], comb [N, N].
    """
    size = base.shape[0]
    n = streams_of(size)
    for at in range(first, last):
        row, out = m[at, :size], site[at, :size]
        for i in range(n):
            out[i] = add(sigmoid(add(mul(row[i], scale[0]), base[i])), eps)
        for i in range(n, 2 * n):
            out[i] = mul(TWO, sigmoid(add(mul(row[i], scale[1]), base[i])))
        for i in range(2 * n, size):
            out[i] = add(mul(row[i], scale[2]), base[i])
        c = out[2 * n :]
        softmax_rows(c, n)
        for i in range(n * n):
            c[i] = add(c[i], eps)
        divide_columns(c, n, eps)
        for _ in range(iters - 1):
            divide_rows(c, n, eps)
            divide_columns(c, n, eps)


@cpu
def hc_read(x, site, u, first, last):
    """u = the streams weighted by pre, an fma each from +0; x [rows, N * D], u [rows, D] float32.

    site [rows, N(N + 2)] float32 as hc_weights has it.
    """
    n, width = streams_of(site.shape[1]), u.shape[1]
    for row in range(first, last):
        out = u[row]
        for c in range(width):
            out[c] = ZERO
        for i in range(n):
            weight, stream = site[row, i], x[row, i * width : (i + 1) * width]
            for c in range(width):
                out[c] = fma(weight, stream[c], out[c])


@cpu
def hc_write(x, site, y, first, last):
    """Stream n becomes post[n] y + sum over m of comb[m, n] stream m, in place, m ascending.

    x [rows, N * D] float32; site [rows, N(N + 2)] float32; y [rows, >= D] float32.
    """
    n = streams_of(site.shape[1])
    width = x.shape[1] // n
    held = np.empty((n, CHUNK), f32)
    for row in range(first, last):
        post, comb = site[row, n : 2 * n], site[row, 2 * n :]
        for start in range(0, width, CHUNK):
            size = min(CHUNK, width - start)
            result = y[row, start : start + size]
            for i in range(n):
                kept, stream = held[i], x[row, i * width + start : i * width + start + size]
                for c in range(size):
                    kept[c] = stream[c]
            for i in range(n):
                out = x[row, i * width + start : i * width + start + size]
                weight = post[i]
                for c in range(size):
                    out[c] = mul(weight, result[c])
                for j in range(n):
                    weight, stream = comb[j * n + i], held[j]
                    for c in range(size):
                        out[c] = fma(weight, stream[c], out[c])


@cpu
def hc_mean(x, site_n, h, first, last):
    """h = the streams added in order, times RN(1 / N); x [rows, N * D], h [rows, D] float32."""
    width = h.shape[1]
    part = div(ONE, rn(site_n))
    for row in range(first, last):
        out, stream = h[row], x[row, :width]
        for c in range(width):
            out[c] = stream[c]
        for i in range(1, site_n):
            stream = x[row, i * width : (i + 1) * width]
            for c in range(width):
                out[c] = add(out[c], stream[c])
        for c in range(width):
            out[c] = mul(out[c], part)


# --- random cases --------------------------------------------------------------------------------


def some_site(rng, rows, n):
    """Weights of a site such as hc_weights makes them, and some of another size."""
    site = rng.random((rows, n * (n + 2))) * rng.choice([1e-3, 1, 50])
    return site.astype(f32)


def streams_cases(rng):
    """Counts of streams, widths beside a chunk's, values of every size."""
    for n, width in ((4, 1), (4, 63), (4, 128), (4, 200), (2, 65), (1, 5), (3, 64)):
        rows = int(rng.integers(1, 5))
        x = (rng.standard_normal((rows, n * width)) * rng.choice([1e-30, 1, 1e30])).astype(f32)
        x[rng.random(x.shape) < 0.05] = -0.0
        yield n, width, x, int(rng.integers(0, rows + 1)), rows


def weights_cases(rng):
    """Maps of a usual size, wide apart, and infinite ones where only sigmoids see them."""
    for n, iters in ((4, 20), (4, 1), (2, 3), (1, 2), (3, 20)):
        rows, size = int(rng.integers(1, 5)), n * (n + 2)
        m = (rng.standard_normal((rows, size + 3)) * rng.choice([0.1, 3, 300])).astype(f32)
        m[0, 0] = rng.choice([np.inf, -np.inf, 0.0, -0.0])
        base, scale = rng.standard_normal(size).astype(f32), rng.uniform(0.1, 2, 3).astype(f32)
        site = np.full((rows, size), 7, f32)
        first = int(rng.integers(0, rows + 1))
        yield m, base, scale, f32(1e-6), iters, site, first, rows


def read_cases(rng):
    """Into rows that hold something else."""
    for n, width, x, first, last in streams_cases(rng):
        yield x, some_site(rng, len(x), n), np.full((len(x), width), 7, f32), first, last


def write_cases(rng):
    """Results as wide as a stream, and wider."""
    for n, width, x, first, last in streams_cases(rng):
        y = rng.standard_normal((len(x), width + int(rng.integers(0, 3)))).astype(f32)
        yield x, some_site(rng, len(x), n), y, first, last


def mean_cases(rng):
    """Into rows that hold something else."""
    for n, width, x, first, last in streams_cases(rng):
        yield x, n, np.full((len(x), width), 7, f32), first, last


_UNITS = "float32; N streams of D values a row; site: pre [N], post [N], comb [N, N] by (m, n)"
register(
    "hc_weights",
    meaning=hc_weights_meaning,
    cpu=hc_weights,
    shapes="m [rows, >= N(N + 2)] float32; base [N(N + 2)], scale [3], eps float32; "
    "site [rows, N(N + 2)] float32",
    units=_UNITS,
    cases=weights_cases,
)
register(
    "hc_read",
    meaning=hc_read_meaning,
    cpu=hc_read,
    shapes="x [rows, N * D], site [rows, N(N + 2)], u [rows, D] float32",
    units=_UNITS,
    cases=read_cases,
)
register(
    "hc_write",
    meaning=hc_write_meaning,
    cpu=hc_write,
    shapes="x [rows, N * D], site [rows, N(N + 2)], y [rows, >= D] float32",
    units=_UNITS,
    cases=write_cases,
)
register(
    "hc_mean",
    meaning=hc_mean_meaning,
    cpu=hc_mean,
    shapes="x [rows, N * D], h [rows, D] float32",
    units=_UNITS + "; site_n: N",
    cases=mean_cases,
)
