"""Top-k and top-p as a threshold on a GPU: a block counts weights by the digits of their patterns.

As core/kernels/threshold.py has it, digit by digit from the top; a thread owns a stretch of bins.
"""

import numpy as np
from numba import cuda

from ..scalars import bits, mul, rint, rn, to_int
from ..threshold import BINS, TOP_P_ONE
from .target import device

i32, i64 = np.int32, np.int64


@device
def block_before(part, value):
    """The sum of the int64 values of the threads before this one; part: shared, one a thread.

    part[-1] is left as the sum of all, until the next call.
    """
    me, size, step = cuda.threadIdx.x, cuda.blockDim.x, 1
    part[me] = value
    cuda.syncthreads()
    while step < size:
        more = i64(0)
        if me >= step:
            more = part[me - step]
        cuda.syncthreads()
        part[me] = part[me] + more
        cuda.syncthreads()
        step *= 2
    return part[me] - value


@device
def clear_bins(counts, totals):
    """No weights in any bin."""
    for b in range(cuda.threadIdx.x, BINS, cuda.blockDim.x):
        counts[b] = 0
        totals[b] = 0
    cuda.syncthreads()


@device
def fall(counts, totals, part, found, count, total, want_count, want_total):
    """The bin at which enough ids, or enough weight, would be passed from the top down.

    found [3] int64: that bin, the ids and the weight above it (with count and total, which were
    above all bins). Wants of -1 are none. If none passes: bin 0, everything above.
    """
    me, each = cuda.threadIdx.x, BINS // cuda.blockDim.x
    top = BINS - 1 - me * each
    more, weight = i64(0), i64(0)
    for b in range(each):
        more += counts[top - b]
        weight += totals[top - b]
    count += block_before(part, more)
    cuda.syncthreads()
    total += block_before(part, weight)
    cuda.syncthreads()
    if me == cuda.blockDim.x - 1:
        found[0], found[1], found[2] = 0, count + more, total + weight
    cuda.syncthreads()
    for b in range(each):
        more, weight = counts[top - b], totals[top - b]
        here = want_count >= 0 and count < want_count and count + more >= want_count
        here = here or (want_total >= 0 and total < want_total and total + weight >= want_total)
        if here:
            found[0], found[1], found[2] = top - b, count, total
        count += more
        total += weight
    cuda.syncthreads()


@device
def cut(weights, row, floor, counts, totals, part, found, want_count, want_total):
    """As threshold.cut; the three results are left in found [3]."""
    vocab, me = weights.shape[1], cuda.threadIdx.x
    prefix, count, total = i64(0), i64(0), i64(0)
    for level in range(3):
        shift = i64(20 - 10 * level)
        clear_bins(counts, totals)
        for i in range(me, vocab, cuda.blockDim.x):
            weight = weights[row, i]
            key = i64(bits(rn(i64(weight))))
            inside = weight >= floor if level == 0 else key >> (shift + 10) == prefix
            if inside:
                digit = key >> shift if level == 0 else (key >> shift) & 1023
                cuda.atomic.add(counts, digit, 1)
                cuda.atomic.add(totals, digit, i64(weight))
        cuda.syncthreads()
        fall(counts, totals, part, found, count, total, want_count, want_total)
        low, count, total = found[0], found[1], found[2]
        prefix = low if level == 0 else (prefix << 10) | low
        cuda.syncthreads()
    ties = i64(counts[low])
    least = totals[low] // max(ties, i64(1))
    if want_count >= 0:
        ties = min(ties, want_count - count)
    elif least > 0:
        ties = min(ties, (want_total - total + least - 1) // least)
    cuda.syncthreads()
    if me == 0:
        found[0], found[1], found[2] = least, ties, total + ties * least
    cuda.syncthreads()


@device
def keep(weights, row, everything, top_k, top_p, counts, totals, part, found):
    """As threshold.keep: least weight, ids of just it, weight of all kept, in found [3]."""
    vocab = i64(weights.shape[1])
    least = i64(0)
    if cuda.threadIdx.x == 0:
        found[0], found[1], found[2] = least, vocab, everything
    cuda.syncthreads()
    if top_k > 0 and top_k < vocab:
        cut(weights, row, i64(0), counts, totals, part, found, i64(top_k), i64(-1))
    share = i64(to_int(rint(mul(top_p, TOP_P_ONE))))
    if share < 1 << 24:
        least, total = found[0], found[2]
        need = (total >> 24) * share + (((total & 0xFFFFFF) * share + 0xFFFFFF) >> 24)
        need = max(need, i64(1))
        floor = max(least, (everything - need) // vocab)
        cuda.syncthreads()
        cut(weights, row, floor, counts, totals, part, found, i64(-1), need)
