"""The CUDA twins of streams.py: a warp balances a site, a thread a column of the streams."""

from functools import cache

import numpy as np
from numba import cuda

from ..scalars import LOG2E, ONE, ZERO, add, div, exp2c, fma, mul, rn, sigmoid, sub
from ..streams import TWO, streams_of
from .target import WARP, device, kernel, threads
from .twins import twin
from .warps import lane_value

THREADS = 128
MOST_STREAMS = 4  # a thread holds a column of all of them; a warp holds their square


@cache
def weights_kernel(n):
    """The kernel for so many streams: what is known when it is compiled need not wait its turn."""

    @device
    def divided(c, first, step, eps):
        """A lane's element of the square, by the sum of n lanes from `first` on, plus eps."""
        total = lane_value(c, first)
        for i in range(1, n):
            total = add(total, lane_value(c, first + i * step))
        return div(c, add(total, eps))

    def hc_weights_warp(m, base, scale, eps, iters, site, first):
        """Row first + block: lane n i + j has element (i, j) of what is kept."""
        row, lane = first + cuda.blockIdx.x, cuda.threadIdx.x
        at = min(lane, n * n - 1)
        line, column = at // n * n, at % n
        which, mine = 0 if lane < n else 1, min(lane, 2 * n - 1)
        one = add(mul(m[row, mine], scale[which]), base[mine])
        c = add(mul(m[row, 2 * n + at], scale[2]), base[2 * n + at])
        top = lane_value(c, line)
        for i in range(1, n):
            top = max(top, lane_value(c, line + i))
        c = exp2c(mul(sub(c, top), LOG2E))
        c = add(divided(c, line, 1, ZERO), eps)
        c = divided(c, column, n, eps)
        for _ in range(iters - 1):
            c = divided(c, line, 1, eps)
            c = divided(c, column, n, eps)
        if lane < n * n:
            site[row, 2 * n + lane] = c
        one = sigmoid(one)
        if lane < 2 * n:
            site[row, lane] = add(one, eps) if lane < n else mul(TWO, one)

    hc_weights_warp.__name__ += f"_{n}"
    return kernel(hc_weights_warp)


def hc_weights(stream, m, base, scale, eps, iters, site, first, last):
    """As the CPU's hc_weights."""
    if last > first:
        shape = (last - first, WARP, stream)
        weights_kernel(streams_of(base.shape[0]))[shape](m, base, scale, eps, iters, site, first)


@kernel
def hc_read_values(x, site, u, first):
    """Row first + block's y."""
    row, c, width = first + cuda.blockIdx.y, cuda.grid(1), u.shape[1]
    if c < width:
        total = ZERO
        for i in range(streams_of(site.shape[1])):
            total = fma(site[row, i], x[row, i * width + c], total)
        u[row, c] = total


def hc_read(stream, x, site, u, first, last):
    """As the CPU's hc_read."""
    width = threads(THREADS)
    if last > first:
        grid = (-(-u.shape[1] // width), last - first)
        hc_read_values[grid, width, stream](x, site, u, first)


@kernel
def hc_write_values(x, site, y, first):
    """Row first + block's y: a thread holds its column of every stream before it writes one."""
    row, c, n = first + cuda.blockIdx.y, cuda.grid(1), streams_of(site.shape[1])
    width = x.shape[1] // n
    if c < width:
        result = y[row, c]
        a, comb = x[row, c], 2 * n
        b = x[row, width + c] if n > 1 else ZERO
        d = x[row, 2 * width + c] if n > 2 else ZERO
        e = x[row, 3 * width + c] if n > 3 else ZERO
        for i in range(n):
            total = fma(site[row, comb + i], a, mul(site[row, n + i], result))
            if n > 1:
                total = fma(site[row, comb + n + i], b, total)
            if n > 2:
                total = fma(site[row, comb + 2 * n + i], d, total)
            if n > 3:
                total = fma(site[row, comb + 3 * n + i], e, total)
            x[row, i * width + c] = total


def hc_write(stream, x, site, y, first, last):
    """As the CPU's hc_write."""
    n, width = streams_of(site.shape[1]), threads(THREADS)
    assert n <= MOST_STREAMS, n
    if last > first:
        grid = (-(-(x.shape[1] // n) // width), last - first)
        hc_write_values[grid, width, stream](x, site, y, first)


@kernel
def hc_mean_values(x, site_n, h, first):
    """Row first + block's y."""
    row, c, width = first + cuda.blockIdx.y, cuda.grid(1), h.shape[1]
    if c < width:
        total = x[row, c]
        for i in range(1, site_n):
            total = add(total, x[row, i * width + c])
        h[row, c] = mul(total, div(ONE, rn(np.int64(site_n))))


def hc_mean(stream, x, site_n, h, first, last):
    """As the CPU's hc_mean."""
    width = threads(THREADS)
    if last > first:
        grid = (-(-h.shape[1] // width), last - first)
        hc_mean_values[grid, width, stream](x, site_n, h, first)


twin("hc_weights", hc_weights)
twin("hc_read", hc_read)
twin("hc_write", hc_write)
twin("hc_mean", hc_mean)
