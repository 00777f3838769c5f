"""The CUDA twins of route.py: a block picks a row's experts, a block finds an expert's slots."""

from functools import cache

import numpy as np
from numba import cuda
from numba.core import types

from ..route import LEAST
from ..scalars import ZERO, add, bits, div, fma, mul, sigmoid
from ..weigh import in_order
from .target import WARP, kernel, threads
from .threshold import block_before
from .twins import twin
from .warps import block_sum, lane_value, warp_max, warp_meets

i32, i64 = np.int32, np.int64
MOST_EXPERTS, MOST_CHOSEN = 1024, 32
TAKEN = i64(-(2**63))
MOST_THREADS = 512  # that look for an expert's slots
THREADS = 256


@kernel
def route_block(m, bias, k, scale, experts, weights, first):
    """Row first + block; a key is a score's order above, the lower id greater, below."""
    keys = cuda.shared.array(MOST_EXPERTS, types.int64)
    scores = cuda.shared.array(MOST_CHOSEN, types.float32)
    row, me, many = first + cuda.blockIdx.x, cuda.threadIdx.x, bias.shape[0]
    e, lane = me, me & (WARP - 1)
    while e < many:
        order = in_order(bits(add(sigmoid(m[row, e]), bias[e])))
        keys[e] = (i64(order) << i64(32)) | (i64(0x7FFFFFFF) - i64(e))
        e += cuda.blockDim.x
    cuda.syncthreads()
    if me >= WARP:
        return
    mine = i64(MOST_EXPERTS)  # the expert that this lane holds
    for j in range(k):
        best = TAKEN
        for e in range(lane, many, WARP):
            best = max(best, keys[e])
        best = warp_max(best)
        picked = i64(0x7FFFFFFF) - (best & i64(0xFFFFFFFF))
        if picked & i64(WARP - 1) == lane:
            keys[picked] = TAKEN
        if j == lane:
            mine = picked
    rank = 0
    for j in range(k):
        rank += 1 if lane_value(mine, j) < mine else 0
    if lane < k:
        experts[row, rank] = mine
        scores[rank] = sigmoid(m[row, mine])
    warp_meets()
    total = scores[0]
    for j in range(1, k):
        total = add(total, scores[j])
    if lane < k:
        weights[row, lane] = mul(div(scores[lane], add(total, LEAST)), scale)


def route_rows(stream, m, bias, k, scale, experts, weights, first, last):
    """As the CPU's route_rows."""
    assert bias.shape[0] <= MOST_EXPERTS and k <= WARP, (bias.shape, k)
    if last > first:
        block = threads(-(-bias.shape[0] // WARP) * WARP)
        route_block[last - first, block, stream](m, bias, k, scale, experts, weights, first)


@kernel
def group_expert(experts, each, order, starts):
    """Expert blockIdx.x puts down its slots in their order; a thread looks at `each` of all."""
    part, room = cuda.shared.array(MOST_THREADS, types.int64), cuda.shared.array(32, types.int64)
    e, slots, me = i64(cuda.blockIdx.x), experts.shape[0], cuda.threadIdx.x
    first, mine, less = me * each, i64(0), i64(0)
    last = min(first + each, slots)
    for i in range(first, last):
        mine += i64(1) if experts[i] == e else i64(0)
        less += i64(1) if experts[i] < e else i64(0)
    before, start = block_before(part, mine), block_sum(less, room)
    if me == 0:
        starts[e] = start
        if e == 0:
            starts[cuda.gridDim.x] = slots
    at = start + before
    if mine > 0:
        for i in range(first, last):
            if experts[i] == e:
                order[at] = i
                at += 1


def group_rows(stream, experts, order, starts):
    """As the CPU's group_rows."""
    many, slots = starts.shape[0] - 1, experts.size
    block = threads(min(MOST_THREADS, max(64, -(-slots // WARP) * WARP)))
    flat = experts.reshape(slots)
    group_expert[many, block, stream](flat, -(-slots // block), order, starts)


@cache
def combine_kernel(k):
    """The kernel for so many experts a row."""

    def combine_values(parts, weights, shared, y, c0, c1, first):
        """Row first + blockIdx.y."""
        row, c = first + i64(cuda.blockIdx.y), c0 + i64(cuda.grid(1))
        if c < c1:
            mine = cuda.local.array(k, types.float32)
            for j in range(k):
                mine[j] = parts[row * k + j, c]
            total, more = ZERO, shared[row, c]
            for j in range(k):
                total = fma(weights[row, j], mine[j], total)
            y[row, c] = add(total, more)

    combine_values.__name__ += f"_{k}"
    return kernel(combine_values)


def combine_rows(stream, parts, weights, shared, y, c0, c1, first, last):
    """As the CPU's combine_rows."""
    width = threads(THREADS)
    if last > first and c1 > c0:
        shape = ((-(-(c1 - c0) // width), last - first), width, stream)
        combine_kernel(weights.shape[1])[shape](parts, weights, shared, y, c0, c1, first)


twin("route_rows", route_rows)
twin("group_rows", group_rows)
twin("combine_rows", combine_rows)
