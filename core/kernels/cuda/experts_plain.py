"""Routed experts whose inputs are not whole tiles of weights: a thread an output of a slot."""

import numpy as np
from numba import cuda

from .clamped import clamped_unit
from .linear import plain_dot, scaled
from .planes import INPUTS, OUTPUTS
from .target import kernel, threads

i64 = np.int64
THREADS = 128


@kernel
def expert_up_values(
    xq, ex, w, ew, pairs, experts, order, chosen, columns, limit, h, stride, column0
):  # fmt: skip
    """Slot blockIdx.y in the order of the experts."""
    slot, column = cuda.blockIdx.y, cuda.grid(1)
    if column < columns:
        number, tiles = order[slot], (2 * pairs + INPUTS - 1) // INPUTS
        expert, row = experts[number // chosen, number % chosen], number // chosen
        on_gate = expert * 2 * columns + column
        on_up = on_gate + columns
        gate = plain_dot(xq, row * pairs, w, on_gate >> 4, on_gate & 15, tiles, pairs)
        up = plain_dot(xq, row * pairs, w, on_up >> 4, on_up & 15, tiles, pairs)
        g = scaled(gate, i64(ex[row]) + i64(ew[on_gate]))
        u = scaled(up, i64(ex[row]) + i64(ew[on_up]))
        h[slot * stride + column0 + column] = clamped_unit(g, u, limit)


@kernel
def expert_down_values(
    xq, ex, w, ew, pairs, experts, order, chosen, columns, parts, stride, column0
):  # fmt: skip
    """Slot blockIdx.y in the order of the experts."""
    slot, column = cuda.blockIdx.y, cuda.grid(1)
    if column < columns:
        number, tiles = order[slot], (2 * pairs + INPUTS - 1) // INPUTS
        at = experts[number // chosen, number % chosen] * columns + column
        whole = plain_dot(xq, slot * pairs, w, at >> 4, at & 15, tiles, pairs)
        value = scaled(whole, i64(ex[slot]) + i64(ew[at]))
        parts[number * stride + column0 + column] = value


def plain_up(
    stream, xq, ex, w, ew, pairs, experts, order, chosen, blocks, limit, h, stride, column0
):  # fmt: skip
    """As expert_up (experts.py), by experts [rows, chosen] int64 in place of the busy ones."""
    width, columns = threads(THREADS), blocks * OUTPUTS
    if order.shape[0] and blocks:
        expert_up_values[(-(-columns // width), order.shape[0]), width, stream](
            xq, ex, w, ew, pairs, experts, order, chosen, columns, limit, h, stride, column0
        )


def plain_down(
    stream, xq, ex, w, ew, pairs, experts, order, chosen, blocks, parts, stride, column0
):  # fmt: skip
    """As expert_down (experts.py), by experts [rows, chosen] int64 in place of the busy ones."""
    width, columns = threads(THREADS), blocks * OUTPUTS
    if order.shape[0] and blocks:
        expert_down_values[(-(-columns // width), order.shape[0]), width, stream](
            xq, ex, w, ew, pairs, experts, order, chosen, columns, parts, stride, column0
        )
