"""Logits made ready to draw from: penalties, the largest one, and whole-number weights."""

import numpy as np
from numba.extending import register_jitable

from . import meaning
from .registry import cpu, register
from .scalars import (
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

f32, i32, i64 = np.float32, np.int32, np.int64
FULL_WEIGHT = f32(1 << 30)  # the weight of the largest logit
LOWEST = i32(-(2**31))
BLOCK = 512  # ids looked at together before any is looked at alone


def penalise_meaning(
    logits, bias_ids, bias, counts, reply_counts, repetition, frequency, presence, z
):
    """As penalise."""
    z[:] = logits
    for token, extra in zip(bias_ids, bias, strict=True):
        z[token] = z[token] + extra
    with np.errstate(all="ignore"):
        divided = np.where(z > 0, z / repetition, z * repetition)
        z[:] = np.where(counts > 0, divided, z)
        z[:] = z - frequency * reply_counts.astype(f32)
        z[:] = np.where(reply_counts > 0, z - presence, z)


@cpu
def penalise(logits, bias_ids, bias, counts, reply_counts, repetition, frequency, presence, z):
    """z = logits after bias, repetition, frequency and presence, in this order.

    logits, z [vocab] float32; bias_ids [n] int32, bias [n] float32; counts [vocab] int32 over
    prompt and reply, reply_counts [vocab] int32 over the reply; the three penalties float32.
    """
    z[:] = logits
    for i in range(bias_ids.shape[0]):
        z[bias_ids[i]] = add(z[bias_ids[i]], bias[i])
    if repetition == ONE and frequency == ZERO and presence == ZERO:
        return
    for i in range(z.shape[0]):
        v = z[i]
        if counts[i] > 0:
            v = div(v, repetition) if v > ZERO else mul(v, repetition)
        v = sub(v, mul(frequency, rn(reply_counts[i])))
        if reply_counts[i] > 0:
            v = sub(v, presence)
        z[i] = v


def greedy_meaning(logits):
    """As greedy."""
    return int(np.where(np.isnan(logits), f32(-np.inf), logits).argmax())


@register_jitable
def in_order(pattern):
    """A float32 pattern as an integer in the order of the floats, and back."""
    return i32(pattern ^ i32(i32(pattern >> i32(31)) & SIGN_OFF))


@register_jitable
def largest(logits):
    """The largest logit; a NaN counts as -inf. Patterns are compared: integers keep lanes busy."""
    top = LOWEST
    for i in range(logits.shape[0]):
        pattern = bits(logits[i])
        here = LOWEST if i32(pattern & SIGN_OFF) > INF_BITS else in_order(pattern)
        top = max(top, here)
    return -INF if top == LOWEST else flt(in_order(top))


@cpu
def greedy(logits):
    """The id of the largest logit [vocab] float32; ties to the lower id."""
    top = largest(logits)
    for start in range(0, logits.shape[0], BLOCK):
        block = logits[start : start + BLOCK]
        hits = i32(0)
        for i in range(block.shape[0]):
            hits = i32(hits + i32(block[i] == top))
        if hits:
            for i in range(block.shape[0]):
                if block[i] == top:
                    return start + i
    return 0


def weigh_meaning(logits, temperature, weights):
    """As weigh."""
    with np.errstate(all="ignore"):
        z = logits * (f32(1) / temperature)
        u = (z - np.where(np.isnan(z), f32(-np.inf), z).max()) * meaning.LOG2E
        weights[:] = np.rint(meaning.exp2c(u).astype(np.float64) * 2.0**30)


@cpu
def weigh(logits, temperature, weights):
    """weights = rint(2^30 exp(z - max z)), z = RN(logit * RN(1 / temperature)).

    logits [vocab] float32; temperature float32 above 0; weights [vocab] int32.
    """
    scale = div(ONE, temperature)
    top = mul(largest(logits), scale)
    for i in range(logits.shape[0]):
        u = mul(sub(mul(logits[i], scale), top), LOG2E)
        weights[i] = to_int(rint(mul(exp2c(u), FULL_WEIGHT)))


def some_logits(rng, vocab):
    """Logits with ties, in a third of the rows; now and then a NaN or a -inf among them."""
    logits = (rng.standard_normal(vocab) * rng.choice([0.01, 4, 40])).astype(f32)
    if rng.integers(0, 3) == 0:
        logits = np.round(logits)
    if rng.integers(0, 8) == 0:
        logits[rng.integers(0, vocab)] = rng.choice([-np.inf, np.nan])
    return logits


def some_counts(rng, vocab):
    """How often each id stands in prompt and reply, and in the reply alone."""
    reply = np.where(rng.random(vocab) < 0.2, rng.integers(1, 9, vocab), 0).astype(i32)
    return (reply + (rng.random(vocab) < 0.2)).astype(i32), reply


def penalise_cases(rng):
    """All penalties, some, none; a bias or none."""
    for vocab in (1, 17, 400):
        ids = rng.integers(0, vocab, rng.integers(0, 4)).astype(i32)
        bias = rng.uniform(-100, 100, ids.size).astype(f32)
        three = [f32(rng.choice(some)) for some in ([1, 1.3, 0.7], [0, 0.4, -2], [0, 0.6, -2])]
        logits = np.nan_to_num(some_logits(rng, vocab))
        yield logits, ids, bias, *some_counts(rng, vocab), *three, np.full(vocab, 3, f32)


def greedy_cases(rng):
    """Short and long rows, and one whose largest are zeros of both signs."""
    for vocab in (1, 2, 33, 400):
        yield (some_logits(rng, vocab),)
    yield (np.where(rng.random(50) < 0.5, f32(-0.0), f32(0)),)


def weigh_cases(rng):
    """Temperatures from cold to hot."""
    for vocab in (1, 2, 33, 400):
        temperature = f32(rng.choice([0.01, 0.3, 1, 1.7, 50]))
        yield some_logits(rng, vocab), temperature, np.full(vocab, 3, i32)


register(
    "penalise",
    meaning=penalise_meaning,
    cpu=penalise,
    shapes="logits, z [vocab] float32; bias_ids [n] int32, bias [n] float32; counts, reply_counts "
    "[vocab] int32; repetition, frequency, presence float32",
    units="logits; counts in tokens",
    cases=penalise_cases,
)
register(
    "greedy",
    meaning=greedy_meaning,
    cpu=greedy,
    shapes="logits [vocab] float32 -> token",
    units="logits; a NaN counts as -inf",
    cases=greedy_cases,
)
register(
    "weigh",
    meaning=weigh_meaning,
    cpu=weigh,
    shapes="logits [vocab], temperature float32; weights [vocab] int32",
    units="weights in 2^-30 of the largest",
    cases=weigh_cases,
)
