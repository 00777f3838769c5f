"""The CUDA twins of route.py: a warp picks a row's experts, a block sorts the slots."""

import numpy as np
from numba import cuda
from numba.core import types

from ..route import LEAST
from ..scalars import ZERO, add, bits, div, fma, mul, sigmoid
from ..weigh import in_order
from .target import WARP, device, kernel, lane_value, threads, warp_max
from .twins import twin

i32, i64 = np.int32, np.int64
MOST_EXPERTS, MOST_CHOSEN = 1024, 32
TAKEN = i64(-(2**63))
STAGED = 2048  # slots that stand in shared memory at a time
THREADS = 256


@kernel
def route_warp(m, bias, k, scale, experts, weights, first):
    """Row first + block; a key is a score's order above, the lower id greater, below."""
    keys = cuda.shared.array(MOST_EXPERTS, types.int64)
    scores = cuda.shared.array(MOST_CHOSEN, types.float32)
    row, lane, many = first + cuda.blockIdx.x, cuda.threadIdx.x, bias.shape[0]
    for e in range(lane, many, WARP):
        order = in_order(bits(add(sigmoid(m[row, e]), bias[e])))
        keys[e] = (i64(order) << i64(32)) | (i64(0x7FFFFFFF) - i64(e))
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
    cuda.syncthreads()
    total = scores[0]
    for j in range(1, k):
        total = add(total, scores[j])
    if lane < k:
        weights[row, lane] = mul(div(scores[lane], add(total, LEAST)), scale)


def route_rows(stream, m, bias, k, scale, experts, weights, first, last):
    """As the CPU's route_rows."""
    assert bias.shape[0] <= MOST_EXPERTS and k <= WARP, (bias.shape, k)
    if last > first:
        route_warp[last - first, WARP, stream](m, bias, k, scale, experts, weights, first)


@device
def stage_slots(experts, first, slots, staged):
    """The experts of up to STAGED slots, in shared memory; returns how many."""
    mine = min(STAGED, slots - first)
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, mine, cuda.blockDim.x):
        staged[i] = experts[first + i]
    cuda.syncthreads()
    return mine


@device
def sums_before(counts, many):
    """counts [many] shared become the sums of those before each; the first warp does it."""
    lane, each = cuda.threadIdx.x, (many + WARP - 1) // WARP
    low, high = min(lane * each, many), min((lane + 1) * each, many)
    if lane < WARP:
        total, before = i32(0), i32(0)
        for e in range(low, high):
            total = i32(total + counts[e])
        for j in range(WARP):
            other = lane_value(total, j)
            before = i32(before + (other if j < lane else i32(0)))
        for e in range(low, high):
            mine = counts[e]
            counts[e] = before
            before = i32(before + mine)


@kernel
def group_block(experts, order, starts):
    """One block; a thread an expert: it counts its slots, and puts them down in their order."""
    counts = cuda.shared.array(MOST_EXPERTS, types.int32)
    staged = cuda.shared.array(STAGED, types.int32)
    many, slots, me, step = (
        starts.shape[0] - 1, experts.shape[0], cuda.threadIdx.x, cuda.blockDim.x
    )  # fmt: skip
    for e in range(me, many, step):
        counts[e] = 0
    for first in range(0, slots, STAGED):
        mine = stage_slots(experts, first, slots, staged)
        for e in range(me, many, step):
            found = i32(0)
            for i in range(mine):
                found = i32(found + (i32(1) if staged[i] == e else i32(0)))
            counts[e] += found
    cuda.syncthreads()
    sums_before(counts, many)
    cuda.syncthreads()
    for e in range(me, many, step):
        starts[e] = counts[e]
    if me == 0:
        starts[many] = slots
    for first in range(0, slots, STAGED):
        mine = stage_slots(experts, first, slots, staged)
        for e in range(me, many, step):
            at = counts[e]
            for i in range(mine):
                if staged[i] == e:
                    order[at] = first + i
                    at += 1
            counts[e] = at


def group_rows(stream, experts, order, starts):
    """As the CPU's group_rows."""
    many = starts.shape[0] - 1
    assert many <= MOST_EXPERTS, many
    block = threads(-(-many // WARP) * WARP)
    flat = experts.reshape(experts.size)
    group_block[1, block, stream](flat, order, starts)


@kernel
def combine_values(parts, weights, shared, y, c0, c1, first):
    """Row first + blockIdx.y."""
    row, c, k = first + cuda.blockIdx.y, c0 + cuda.grid(1), weights.shape[1]
    if c < c1:
        total = ZERO
        for j in range(k):
            total = fma(weights[row, j], parts[row * k + j, c], total)
        y[row, c] = add(total, shared[row, c])


def combine_rows(stream, parts, weights, shared, y, c0, c1, first, last):
    """As the CPU's combine_rows."""
    width = threads(THREADS)
    if last > first and c1 > c0:
        grid = (-(-(c1 - c0) // width), last - first)
        combine_values[grid, width, stream](parts, weights, shared, y, c0, c1, first)


twin("route_rows", route_rows)
twin("group_rows", group_rows)
twin("combine_rows", combine_rows)
