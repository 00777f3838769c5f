"""From the difference of two digests to the one word that changed, by search over sound words.

If a single word turned from w into v, lane 0 of the difference is mix(v ^ a) - mix(w ^ a), where
a is the word's place. The mix can be undone, so each candidate w gives its v at once; lane 1 then
says whether it was that one. Any number of bits may have changed, as long as one word holds them.
"""

import numpy as np
from numba.extending import register_jitable

from .digest import (
    MIX_A,
    MIX_B,
    PARTS,
    S27,
    S30,
    S31,
    SEED_0,
    SEED_1,
    digest_of,
    mix64,
    place,
)
from .registry import cpu, register

i64, u64 = np.int64, np.uint64
S54, S60, S62 = u64(54), u64(60), u64(62)
UNMIX_A, UNMIX_B = u64(pow(int(MIX_A), -1, 2**64)), u64(pow(int(MIX_B), -1, 2**64))
WORD = 2**64


@register_jitable
def unmix64(x):
    """The inverse of mix64."""
    x = (x ^ (x >> S31) ^ (x >> S62)) * UNMIX_B
    x = (x ^ (x >> S27) ^ (x >> S54)) * UNMIX_A
    return x ^ (x >> S30) ^ (x >> S60)


def find_word_meaning(words, part, layer, head, positions, off_0, off_1, first, last):
    """As find_word: try every word with what lane 0 makes of it, and digest both versions."""
    for row in range(first, last):
        for column in range(words.shape[1]):
            columns, position = np.array([column], u64), int(positions[row])
            word = words[row, column : column + 1]
            where = place(part, layer, head) | u64(column)
            with np.errstate(over="ignore"):
                at = mix64(where ^ mix64(u64(position) ^ SEED_0))
                turned = unmix64(mix64(word ^ at) + u64(off_0)) ^ at
            before = digest_of(word, part, layer, head, position, columns)
            after = digest_of(turned, part, layer, head, position, columns)
            off = [(a - b) % WORD for a, b in zip(after, before, strict=True)]
            if off == [int(off_0), int(off_1)] and turned[0] != word[0]:
                return row, column, int(word[0] ^ turned[0])
    return -1, -1, 0


@cpu
def find_word(words, part, layer, head, positions, off_0, off_1, first, last):
    """(row, column, mask) of the first word that explains the difference, or (-1, -1, 0).

    words [rows, n] uint64: sound rows of one layer and head; positions [rows] int64; off_0, off_1:
    lanes of (digest found - digest kept); mask: the bits that changed.
    """
    where = place(part, layer, head)
    for row in range(first, last):
        position = u64(positions[row])
        mix_0, mix_1 = mix64(position ^ SEED_0), mix64(position ^ SEED_1)
        for column in range(words.shape[1]):
            word, here = words[row, column], where | u64(column)
            at = mix64(here ^ mix_0)
            turned = unmix64(mix64(word ^ at) + off_0) ^ at
            other = mix64(here ^ mix_1)
            if mix64(turned ^ other) - mix64(word ^ other) == off_1 and turned != word:
                return i64(row), i64(column), word ^ turned
    return i64(-1), i64(-1), u64(0)


def syndrome_cases(rng):
    """Rows with one word changed: by one bit, by many, or not at all."""
    for bits in (1, 8, 64, 0):
        rows, width = int(rng.integers(1, 6)), int(rng.integers(1, 20))
        words = rng.integers(0, 2**64, (rows, width), u64)
        part = int(rng.choice(list(PARTS.values())))
        layer, head = (int(n) for n in rng.integers(0, 4096, 2))
        positions = rng.integers(0, 2**40, rows)
        row, column = int(rng.integers(rows)), int(rng.integers(width))
        mask = 0
        for bit in rng.permutation(64)[:bits]:
            mask |= 1 << int(bit)
        before = digest_of(
            words[row, column], part, layer, head, int(positions[row]), np.array([column], u64)
        )
        after = digest_of(
            words[row, column] ^ u64(mask), part, layer, head, int(positions[row]),
            np.array([column], u64),
        )  # fmt: skip
        off = [u64((a - b) % WORD) for a, b in zip(after, before, strict=True)]
        yield (
            words,
            part,
            layer,
            head,
            positions,
            off[0],
            off[1],
            int(rng.integers(0, row + 1)),
            rows,
        )


register(
    "find_word",
    meaning=find_word_meaning,
    cpu=find_word,
    shapes="words [rows, n] uint64; positions [rows] int64; row, column int64; mask uint64",
    units="off_0, off_1: lanes of a difference of digests; mask: the bits of a word that changed",
    cases=syndrome_cases,
)
