"""Digests of memory: sums of salted mixes of 8-byte words, over logical coordinates.

A word has a part, a layer (or cache), a head, a position and a word column, packed as
`part << 56 | layer << 44 | head << 32 | column`; what it is mixed with depends on no stream, page,
batch or rank. A digest is two sums modulo 2^64, so words may be summed in any order and anywhere.
"""

from typing import Any

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from .registry import cpu, register

u64 = np.uint64

PARTS = {
    "rows": 1,
    "keys": 2,
    "states": 3,
    "rings": 4,
    "drafts": 5,
    "logits": 6,
    "tokens": 7,
    "weights": 8,
}
SEED_0, SEED_1 = u64(0x9E3779B97F4A7C15), u64(0xD1B54A32D192ED03)
SEEDS = (SEED_0, SEED_1)
MIX_A, MIX_B = u64(0xBF58476D1CE4E5B9), u64(0x94D049BB133111EB)
S27, S30, S31, S32, S44, S56 = (u64(n) for n in (27, 30, 31, 32, 44, 56))


@register_jitable
def mix64(x):
    """The splitmix64 finaliser of a uint64."""
    x = (x ^ (x >> S30)) * MIX_A
    x = (x ^ (x >> S27)) * MIX_B
    return x ^ (x >> S31)


@register_jitable
def place(part, layer, head):
    """The coordinates of a row as the high bits of a word's place; a column is ORed in below."""
    return (u64(part) << S56) | (u64(layer) << S44) | (u64(head) << S32)


@register_jitable
def word_mix(word, where, position_mix):
    """A word's share of one lane; where: place | column, position_mix: mix64(position ^ SEED)."""
    return mix64(word ^ mix64(where ^ position_mix))


# --- the meaning: as the definition stands ------------------------------------------------------


def row_words(row: NDArray[Any]) -> NDArray[np.uint64]:
    """One array row of 2-, 4- or 8-byte elements -> its words, little-endian uint64 [n]."""
    return np.ascontiguousarray(row).view("<u8").astype(u64)


def digest_of(
    words: NDArray[np.uint64],
    part: int,
    layer: int,
    head: int,
    position: int,
    columns: NDArray[Any],
) -> tuple[int, int]:
    """words, columns uint64 of one shape -> (lane 0, lane 1) as Python integers."""
    with np.errstate(over="ignore"):
        where = place(part, layer, head) | np.asarray(columns, u64)
        at = [mix64(where ^ mix64(u64(position) ^ seed)) for seed in SEEDS]
        lanes = [int(mix64(np.asarray(words, u64) ^ one).sum(dtype=u64)) for one in at]
    return lanes[0], lanes[1]


def digest_rows_meaning(words, part, layer, head, positions, column, sums, first, last):
    """As digest_rows."""
    columns = np.arange(words.shape[1], dtype=u64) + u64(column)
    for row in range(first, last):
        sums[row] = digest_of(words[row], part, layer, head, int(positions[row]), columns)


# --- the loop for the CPU ------------------------------------------------------------------------


@register_jitable
def digest_words(words, part, layer, head, position, column):
    """words [n] uint64 of one row, the first at word `column` -> (lane 0, lane 1) uint64."""
    where = place(part, layer, head) | u64(column)
    mix_0, mix_1 = mix64(u64(position) ^ SEED_0), mix64(u64(position) ^ SEED_1)
    sum_0, sum_1 = u64(0), u64(0)
    for i in range(words.shape[0]):
        word, at = words[i], where + u64(i)
        sum_0 += word_mix(word, at, mix_0)
        sum_1 += word_mix(word, at, mix_1)
    return sum_0, sum_1


@cpu
def digest_rows(words, part, layer, head, positions, column, sums, first, last):
    """sums[r] = the digest of row r, for rows first to last.

    words [rows, n] uint64; positions [rows] int64; sums [rows, 2] uint64.
    """
    for row in range(first, last):
        one = digest_words(words[row], part, layer, head, positions[row], column)
        sums[row, 0] = one[0]
        sums[row, 1] = one[1]


def digest_cases(rng):
    """Rows of every part at random coordinates."""
    for part in PARTS.values():
        rows, width = int(rng.integers(1, 5)), int(rng.integers(1, 40))
        words = rng.integers(0, 2**64, (rows, width), u64)
        layer, head = (int(n) for n in rng.integers(0, 4096, 2))
        positions = rng.integers(0, 2**40, rows)
        first = int(rng.integers(0, rows))
        sums = np.zeros((rows, 2), u64)
        column = int(rng.integers(0, 1000))
        yield words, part, layer, head, positions, column, sums, first, rows


register(
    "digest_rows",
    meaning=digest_rows_meaning,
    cpu=digest_rows,
    shapes="words [rows, n] uint64; positions [rows] int64; sums [rows, 2] uint64",
    units="a word is 8 bytes of one row; column: index of the row's first word; sums modulo 2^64",
    cases=digest_cases,
)
