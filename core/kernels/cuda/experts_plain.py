"""Routed experts whose inputs are not whole tiles of weights: a thread an output of a slot."""

from functools import cache

import numpy as np
from numba import cuda

from .checksum import CHECKED, add_up, counted
from .clamped import clamped_unit
from .linear_plain import plain_dot, scaled
from .planes import INPUTS, OUTPUTS
from .target import kernel, threads

i64 = np.int64
THREADS = 128


@cache
def up_values_kernel(checked=False):
    """Gate, up and their unit."""

    def expert_up_values(
        xq, ex, w, ew, pairs, experts, order, chosen, columns, limit, h, stride, column0, check
    ):  # fmt: skip
        """Slot blockIdx.y in the order of the experts."""
        slot, column = cuda.blockIdx.y, cuda.grid(1)
        number, tiles = order[slot], (2 * pairs + INPUTS - 1) // INPUTS
        expert, row = experts[number // chosen, number % chosen], number // chosen
        if column < columns:
            on_gate = expert * 2 * columns + column
            on_up = on_gate + columns
            gate = plain_dot(xq, row * pairs, w, on_gate >> 4, on_gate & 15, tiles, pairs)
            up = plain_dot(xq, row * pairs, w, on_up >> 4, on_up & 15, tiles, pairs)
            g = scaled(gate, i64(ex[row]) + i64(ew[on_gate]))
            u = scaled(up, i64(ex[row]) + i64(ew[on_up]))
            h[slot * stride + column0 + column] = clamped_unit(g, u, limit)
        elif checked:
            output, gate, up = column - columns, i64(0), i64(0)
            if output < OUTPUTS:
                gate = plain_dot(xq, row * pairs, check[0], 2 * expert, output, tiles, pairs)
                up = plain_dot(xq, row * pairs, check[0], 2 * expert + 1, output, tiles, pairs)
        if checked:
            kept = counted(i64(0), gate + up, column & 15, column < columns)
            add_up(check[1], kept)

    expert_up_values.__name__ += CHECKED * checked
    return kernel(expert_up_values)


@cache
def down_values_kernel(checked=False):
    """The map back."""

    def expert_down_values(
        xq, ex, w, ew, pairs, experts, order, chosen, columns, parts, stride, column0, check
    ):  # fmt: skip
        """Slot blockIdx.y in the order of the experts."""
        slot, column = cuda.blockIdx.y, cuda.grid(1)
        number, tiles = order[slot], (2 * pairs + INPUTS - 1) // INPUTS
        expert = experts[number // chosen, number % chosen]
        if column < columns:
            at = expert * columns + column
            whole = plain_dot(xq, slot * pairs, w, at >> 4, at & 15, tiles, pairs)
            value = scaled(whole, i64(ex[slot]) + i64(ew[at]))
            parts[number * stride + column0 + column] = value
        elif checked:
            output, whole = column - columns, i64(0)
            if output < OUTPUTS:
                whole = plain_dot(xq, slot * pairs, check[0], expert, output, tiles, pairs)
        if checked:
            kept = counted(i64(0), whole, column & 15, column < columns)
            add_up(check[1], kept)

    expert_down_values.__name__ += CHECKED * checked
    return kernel(expert_down_values)


def plain_up(
    stream, xq, ex, w, ew, pairs, experts, order, chosen, blocks, limit, h, stride, column0,
    check=None,
):  # fmt: skip
    """As expert_up (experts.py), by experts [rows, chosen] int64 in place of the busy ones."""
    width, columns, checked = threads(THREADS), blocks * OUTPUTS, check is not None
    if order.shape[0] and blocks:
        grid = (-(-(columns + OUTPUTS * checked) // width), order.shape[0])
        up_values_kernel(checked)[grid, width, stream](
            xq, ex, w, ew, pairs, experts, order, chosen, columns, limit, h, stride, column0,
            check or (),
        )  # fmt: skip


def plain_down(
    stream, xq, ex, w, ew, pairs, experts, order, chosen, blocks, parts, stride, column0, check=None
):  # fmt: skip
    """As expert_down (experts.py), by experts [rows, chosen] int64 in place of the busy ones."""
    width, columns, checked = threads(THREADS), blocks * OUTPUTS, check is not None
    if order.shape[0] and blocks:
        grid = (-(-(columns + OUTPUTS * checked) // width), order.shape[0])
        down_values_kernel(checked)[grid, width, stream](
            xq, ex, w, ew, pairs, experts, order, chosen, columns, parts, stride, column0,
            check or (),
        )  # fmt: skip
