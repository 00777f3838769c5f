"""One token drawn from one row of logits: top-k and top-p by threshold, no sort, no chance."""

from typing import Any

import numpy as np

from .philox import high_product, philox, philox_meaning
from .registry import cpu, inner, register
from .scalars import ONE, ZERO
from .threshold import BINS, keep, kept_meaning
from .weigh import (
    BLOCK,
    greedy,
    greedy_meaning,
    penalise,
    penalise_meaning,
    some_counts,
    some_logits,
    weigh,
    weigh_meaning,
)

f32, i32, i64, u64 = np.float32, np.int32, np.int64, np.uint64


def sample_scratch(vocab: int) -> tuple[Any, Any, Any, Any]:
    """What sample_row works in: z, weights, candidates [vocab] and bins [2, BINS]."""
    return (
        np.zeros(vocab, f32),
        np.zeros(vocab, i32),
        np.zeros(vocab, i32),
        np.zeros((2, BINS), i64),
    )


def sample_row_meaning(
    logits,
    temperature,
    top_k,
    top_p,
    penalties,
    bias_ids,
    bias,
    counts,
    reply_counts,
    seed,
    position,
    choice,
    z,
    weights,
    candidates,
    bins,
):
    """As sample_row; the scratch is left alone."""
    z, weights = z.copy(), weights.copy()
    penalise_meaning(logits, bias_ids, bias, counts, reply_counts, *penalties, z)
    if temperature == 0:
        return greedy_meaning(z)
    weigh_meaning(z, temperature, weights)
    if not weights.any():
        return greedy_meaning(z)
    kept = kept_meaning(weights, top_k, top_p)
    running = np.cumsum(weights[kept].astype(i64))
    target = (philox_meaning(seed, position, choice) * int(running[-1])) >> 64
    return int(kept[np.searchsorted(running, target, side="right")])


@inner
def pick(weights, least, ties, target):
    """The id at which the running weight of the kept ids, ascending, passes the target."""
    running = i64(0)
    for start in range(0, weights.shape[0], BLOCK):
        block = weights[start : start + BLOCK]
        above, level = i64(0), i64(0)
        for i in range(block.shape[0]):
            above += block[i] if block[i] > least else 0
            level += block[i] == least
        more = above + min(level, ties) * least
        if running + more > target:
            for i in range(block.shape[0]):
                if block[i] > least or (block[i] == least and ties > 0):
                    running += block[i]
                    ties -= block[i] == least
                    if running > target:
                        return start + i
        running += more
        ties -= min(level, ties)
    return 0


@cpu
def sample_row(
    logits,
    temperature,
    top_k,
    top_p,
    penalties,
    bias_ids,
    bias,
    counts,
    reply_counts,
    seed,
    position,
    choice,
    z,
    weights,
    candidates,
    bins,
):
    """The token of one row. Temperature 0: the largest logit, ties to the lower id.

    logits [vocab] float32; temperature, top_p float32; top_k int (0: all); penalties: repetition,
    frequency, presence float32; the next four as in penalise; seed int64, position, choice as in
    philox; then sample_scratch(vocab).
    """
    repetition, frequency, presence = penalties
    penalise(logits, bias_ids, bias, counts, reply_counts, repetition, frequency, presence, z)
    if temperature == ZERO:
        return i64(greedy(z))
    weigh(z, temperature, weights)
    least, ties, total = keep(weights, top_k, top_p, candidates, bins)
    if total == 0:  # an infinite logit leaves no weights
        return i64(greedy(z))
    target = i64(high_product(philox(seed, position, choice), u64(total)))
    return i64(pick(weights, least, ties, target))


@inner
def draw_row(draws, row, logits, position, z, weights, candidates, bins):
    """The token of one row of logits [vocab]; row: its column of draws (program_memory.py).

    position: the one that is drawn.  z, weights, candidates, bins: a party's own (sample_scratch).
    """
    temperature, repetition = draws.floats[0, row], draws.floats[2, row]
    frequency, presence = draws.floats[3, row], draws.floats[4, row]
    first, last = draws.bias_starts[row], draws.bias_starts[row + 1]
    plain = repetition == ONE and frequency == ZERO and presence == ZERO and first == last
    if plain and temperature == ZERO:
        return i64(greedy(logits))
    top_k, seed, choice = draws.whole[0, row], draws.whole[1, row], draws.whole[2, row]
    counts = draws.counts[draws.whole[3, row]]
    reply_counts = draws.reply_counts[draws.whole[3, row]]
    return i64(
        sample_row(
            logits, temperature, top_k, draws.floats[1, row], (repetition, frequency, presence),
            draws.bias_ids[first:last], draws.biases[first:last], counts, reply_counts,
            seed, position, choice, z, weights, candidates, bins,
        )
    )  # fmt: skip


def sample_cases(rng):
    """Cold and hot, with and without cuts and penalties, over rows with ties."""
    for vocab in (2, 33, 400):
        logits = some_logits(rng, vocab)
        temperature = f32(rng.choice([0, 0.3, 0.7, 1, 1.7]))
        top_k = int(rng.choice([0, 1, 20, vocab - 1, vocab, 1000]))
        top_p = f32(rng.choice([1, 0.95, 0.5, 0.01]))
        penalties = tuple(f32(rng.choice(some)) for some in ([1, 1.3], [0, 0.4], [0, 0.6]))
        ids = rng.integers(0, vocab, rng.integers(0, 3)).astype(i32)
        bias = rng.uniform(-5, 5, ids.size).astype(f32)
        draw = int(rng.integers(-(2**63), 2**63)), int(rng.integers(0, 2**20)), 0
        counts = some_counts(rng, vocab)
        scratch = sample_scratch(vocab)
        yield logits, temperature, top_k, top_p, penalties, ids, bias, *counts, *draw, *scratch


register(
    "sample_row",
    meaning=sample_row_meaning,
    cpu=sample_row,
    shapes="logits [vocab] float32; temperature, top_p float32; top_k; (repetition, frequency, "
    "presence) float32; bias_ids [n] int32, bias [n] float32; counts, reply_counts [vocab] int32; "
    "seed, position, choice int64; z [vocab] float32, weights, candidates [vocab] int32, bins "
    "[2, 2048] int64 -> token",
    units="weights in 2^-30 of the largest; top_p in 2^-24",
    cases=sample_cases,
    scratch=4,
)
