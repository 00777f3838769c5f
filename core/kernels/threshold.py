"""Top-k and top-p as a threshold: the least weight kept, found digit by digit without a sort.

Weights are ordered down, equal ones by id up; top-k and top-p keep a prefix of that order, so each
is a least weight and a number of ids that have just it. The digits are of the weights' float32
patterns: a weight has at most 24 bits, so its pattern is exact and keeps the order.
"""

import numpy as np

from .registry import inner
from .scalars import bits, flt, mul, rint, rn, to_int

f32, i32, i64 = np.float32, np.int32, np.int64
BINS = 2048  # a weight's pattern is at most 157 << 23: 1,257 values of its upper 12 bits
TOP_P_ONE = f32(1 << 24)


def kept_meaning(weights, top_k, top_p):
    """The ids that may be drawn, ascending: top_k of them (0: all), then the least top_p prefix."""
    order = np.lexsort((np.arange(weights.size), -weights.astype(i64)))
    if top_k:
        order = order[:top_k]
    running = np.cumsum(weights[order].astype(i64))
    share = int(np.rint(float(top_p) * 2.0**24))
    need = -(-int(running[-1]) * share // 2**24)
    count = int(np.searchsorted(running, max(need, 1))) + 1
    return np.sort(order[:count])


@inner
def weight_key(weight):
    """The float32 pattern of a weight."""
    return bits(rn(weight))


@inner
def fall(bins, count, total, want_count, want_total):
    """Go down the bins from the top until enough ids, or enough weight, would be passed.

    Returns that bin, and the ids and weight above it. A want of -1 is no want.
    """
    for b in range(BINS - 1, -1, -1):
        more, weight = bins[0, b], bins[1, b]
        if want_count >= 0 and count + more >= want_count:
            return b, count, total
        if want_total >= 0 and total + weight >= want_total and more > 0:
            return b, count, total
        count += more
        total += weight
    return 0, count, total


@inner
def bin_floor(high):
    """The least weight whose pattern has at least these upper 12 bits."""
    return i32(np.ceil(flt(i32(high << 20))))


@inner
def histogram(weights, floor, bins):
    """Ids and weight by the upper 12 bits of the pattern, weights below `floor` left out."""
    bins[:, :] = 0
    for i in range(weights.shape[0]):
        weight = weights[i]
        if weight >= floor:
            high = weight_key(weight) >> i32(20)
            bins[0, high] += 1
            bins[1, high] += weight


@inner
def gather(weights, high, candidates):
    """Write the ids whose weights are in bin `high`, ascending; returns how many."""
    low, top = bin_floor(high), bin_floor(high + 1)
    found = 0
    for i in range(weights.shape[0]):
        if low <= weights[i] < top:
            candidates[found] = i
            found += 1
    return found


@inner
def cut(weights, floor, candidates, bins, want_count, want_total):
    """The least prefix of the order with `want_count` ids, or with `want_total` weight.

    floor: no weight below it can be in that prefix. Returns the least weight kept, how many ids of
    just that weight are kept (lowest first), and the weight of all kept.
    """
    histogram(weights, floor, bins)
    low, count, total = fall(bins, i64(0), i64(0), want_count, want_total)
    found = gather(weights, low, candidates)
    prefix = i64(low)
    for shift in (10, 0):
        bins[:, :] = 0
        for c in range(found):
            weight = weights[candidates[c]]
            key = i64(weight_key(weight))
            if key >> (shift + 10) == prefix:
                digit = (key >> shift) & 1023
                bins[0, digit] += 1
                bins[1, digit] += weight
        low, count, total = fall(bins, count, total, want_count, want_total)
        prefix = (prefix << 10) | low
    ties = bins[0, low]
    least = bins[1, low] // max(ties, 1)
    if want_count >= 0:
        ties = min(ties, want_count - count)
    elif least > 0:
        ties = min(ties, (want_total - total + least - 1) // least)
    return least, ties, total + ties * least


@inner
def keep(weights, top_k, top_p, candidates, bins):
    """The threshold of top_k, then top_p: (least weight, ids of just it, weight of all kept)."""
    vocab = weights.shape[0]
    everything = i64(0)
    for i in range(vocab):
        everything += weights[i]
    least, ties, total = i64(0), i64(vocab), everything
    if 0 < top_k < vocab:
        least, ties, total = cut(weights, i64(0), candidates, bins, i64(top_k), i64(-1))
    share = i64(to_int(rint(mul(top_p, TOP_P_ONE))))
    if share < 1 << 24:
        # ceil(total * share / 2^24) without a 128-bit product: share is below 2^24.
        need = (total >> 24) * share + (((total & 0xFFFFFF) * share + 0xFFFFFF) >> 24)
        need = max(need, i64(1))
        # All weights below this floor together are less than what may be left out.
        floor = max(least, (everything - need) // vocab)
        least, ties, total = cut(weights, floor, candidates, bins, i64(-1), need)
    return least, ties, total
