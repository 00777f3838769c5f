"""One token drawn from each row of logits on a GPU: a block a row, no sort, no chance."""

import numpy as np
from numba import cuda
from numba.core import types

from ..philox import high_product, random_bits
from ..scalars import (
    INF,
    INF_BITS,
    LOG2E,
    ONE,
    SIGN_OFF,
    ZERO,
    add,
    bits,
    div,
    exp2c,
    flt,
    mul,
    rint,
    rn,
    sub,
    to_int,
)
from ..threshold import BINS
from ..weigh import FULL_WEIGHT, LOWEST
from .attend import in_order
from .placed import on_device
from .target import device, kernel, threads
from .threshold import block_before, keep
from .twins import twin
from .warps import block_max, block_sum

f32, i32, i64, u64 = np.float32, np.int32, np.int64, np.uint64
THREADS = threads(1024)
NOWHERE = i32(0x7FFFFFFF)


@device
def penalise(z, logits, row, draws, biases, bias_starts, bias_ids, counts, reply_counts, of):
    """z[row] = logits[row] after bias, repetition, frequency and presence, in this order."""
    me, vocab = cuda.threadIdx.x, logits.shape[1]
    repetition, frequency, presence = draws[2, row], draws[3, row], draws[4, row]
    for i in range(me, vocab, THREADS):
        z[row, i] = logits[row, i]
    cuda.syncthreads()
    if me == 0:
        for i in range(bias_starts[row], bias_starts[row + 1]):
            z[row, bias_ids[i]] = add(z[row, bias_ids[i]], biases[i])
    cuda.syncthreads()
    if repetition == ONE and frequency == ZERO and presence == ZERO:
        return
    for i in range(me, vocab, THREADS):
        v = z[row, i]
        if counts[of, i] > 0:
            v = div(v, repetition) if v > ZERO else mul(v, repetition)
        v = sub(v, mul(frequency, rn(i64(reply_counts[of, i]))))
        if reply_counts[of, i] > 0:
            v = sub(v, presence)
        z[row, i] = v
    cuda.syncthreads()


@device
def largest(x, row, room):
    """The largest value of a row; a NaN counts as -inf."""
    top = LOWEST
    for i in range(cuda.threadIdx.x, x.shape[1], THREADS):
        pattern = bits(x[row, i])
        here = LOWEST if i32(pattern & SIGN_OFF) > INF_BITS else in_order(pattern)
        top = max(top, here)
    top = block_max(top, room)
    return -INF if top == LOWEST else flt(in_order(top))


@device
def first_of(x, row, top, room):
    """The lowest id of a value in a row; 0 if it is not there."""
    first = NOWHERE
    for i in range(cuda.threadIdx.x, x.shape[1], THREADS):
        if x[row, i] == top:
            first = min(first, i32(i))
    first = i32(-block_max(i32(-first), room))
    return i64(0) if first == NOWHERE else i64(first)


@device
def pick(weights, row, least, ties, target, part, found):
    """The id at which the running weight of the kept ids, ascending, passes the target."""
    me, vocab = cuda.threadIdx.x, weights.shape[1]
    each = (vocab + THREADS - 1) // THREADS
    first, last = me * each, min((me + 1) * each, vocab)
    above, level = i64(0), i64(0)
    for i in range(first, last):
        weight = i64(weights[row, i])
        above += weight if weight > least else i64(0)
        level += i64(1) if weight == least else i64(0)
    left = max(ties - block_before(part, level), i64(0))
    cuda.syncthreads()
    more = above + min(level, left) * least
    running = block_before(part, more)
    if me == 0:
        found[0] = 0
    cuda.syncthreads()
    if running <= target and target < running + more:
        for i in range(first, last):
            weight = i64(weights[row, i])
            if weight > least or (weight == least and left > 0):
                running += weight
                left -= i64(1) if weight == least else i64(0)
                if running > target:
                    found[0] = i
                    break
    cuda.syncthreads()
    return found[0]


@device
def draw_hot(
    x, row, temperature, top_p, whole, position, weights, room, wide_room, sums, found, counts, bins
):  # fmt: skip
    """The token of a row [vocab] whose temperature is above 0."""
    scale = div(ONE, temperature)
    best = largest(x, row, room)
    top, everything = mul(best, scale), i64(0)
    for i in range(cuda.threadIdx.x, x.shape[1], THREADS):
        u = mul(sub(mul(x[row, i], scale), top), LOG2E)
        weight = to_int(rint(mul(exp2c(u), FULL_WEIGHT)))
        weights[row, i] = weight
        everything += i64(weight)
    everything = block_sum(everything, wide_room)
    if everything == 0:  # an infinite logit leaves no weights
        return first_of(x, row, best, room)
    keep(weights, row, everything, whole[0, row], top_p, counts, bins, sums, found)
    least, ties, total = found[0], found[1], found[2]
    cuda.syncthreads()
    random = random_bits(whole[1, row], position, whole[2, row])
    target = i64(high_product(random, u64(total)))
    return i64(pick(weights, row, least, ties, target, sums, found))


@kernel
def draw_rows_kernel(
    draws, whole, bias_starts, bias_ids, biases, counts, reply_counts, logits, positions,
    z, weights, tokens,
):  # fmt: skip
    """As draw_rows; a block a row."""
    room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
    sums, found = cuda.shared.array(THREADS, types.int64), cuda.shared.array(3, types.int64)
    numbers = cuda.shared.array(BINS, types.int32)
    bins = cuda.shared.array(BINS, types.int64)
    row = cuda.blockIdx.x
    plain = draws[2, row] == ONE and draws[3, row] == ZERO and draws[4, row] == ZERO
    plain = plain and bias_starts[row] == bias_starts[row + 1]
    x = logits
    if not plain:
        penalise(
            z, logits, row, draws, biases, bias_starts, bias_ids, counts, reply_counts,
            whole[3, row],
        )  # fmt: skip
        x = z
    if draws[0, row] == ZERO:
        token = first_of(x, row, largest(x, row, room), room)
    else:
        token = draw_hot(
            x, row, draws[0, row], draws[1, row], whole, positions[row] + 1, weights,
            room, wide_room, sums, found, numbers, bins,
        )  # fmt: skip
    if cuda.threadIdx.x == 0:
        tokens[row] = token


def draw_rows(stream, *arguments):
    """tokens[r] = the token after row r of logits [rows, vocab], as core/kernels/sampling.py draws.

    draws [5, rows] float32, whole [4, rows] int64 and the rest of `Draws` (program_memory.py);
    positions [rows]: of the logits, the token is of the next;
    z [rows, vocab] float32, weights [rows, vocab] int32: work space.  The last argument: rows.
    """
    *given, rows = arguments
    if rows:
        draw_rows_kernel[rows, THREADS, stream](*given)


@kernel
def greedy_kernel(logits, tokens):
    """tokens[blockIdx.x] = the largest logit of that row, the lower id of equal ones."""
    room = cuda.shared.array(32, types.int32)
    row = cuda.blockIdx.x
    token = first_of(logits, row, largest(logits, row, room), room)
    if cuda.threadIdx.x == 0:
        tokens[row] = token


def greedy(stream, logits):
    """As core/kernels/weigh.py has it; the id comes back as an array [1] on the device."""
    token = on_device(np.zeros(1, i64))
    greedy_kernel[1, THREADS, stream](logits.reshape(1, -1), token)
    return token


def sample_row(
    stream, logits, temperature, top_k, top_p, penalties, bias_ids, bias, counts, reply_counts,
    seed, position, choice, z, weights, candidates, bins,
):  # fmt: skip
    """As core/kernels/sampling.py has it; the token comes back as an array [1] on the device."""
    draws = np.array([[temperature], [top_p], *([one] for one in penalties)], f32)
    whole = np.array([[top_k], [seed], [choice], [0]], i64)
    token = on_device(np.zeros(1, i64))
    rows = [one.reshape(1, -1) for one in (counts, reply_counts, logits)]
    draw_rows(
        stream, on_device(draws), on_device(whole), on_device(np.array([0, bias_ids.shape[0]])),
        bias_ids, bias, *rows, on_device(np.array([position - 1])), z.reshape(1, -1),
        weights.reshape(1, -1), token, 1,
    )  # fmt: skip
    return token


twin("greedy", greedy)
twin("sample_row", sample_row)
