"""Digests as values: two sums modulo 2^64, lane 0 first, and their 32 hex digits on the tape."""

from collections.abc import Sequence
from itertools import chain
from struct import pack

Pair = tuple[int, int]

ZERO: Pair = (0, 0)
_WORD = 2**64


def pair_hex(pair: Pair) -> str:
    """A pair as 32 lowercase hex digits, lane 0 first."""
    text = f"{pair[0]:016x}{pair[1]:016x}"
    assert len(text) == 32, f"{pair} is not two 64-bit sums"
    return text


def pairs_hex(pairs: Sequence[Pair]) -> list[str]:
    """Each pair as `pair_hex` gives it; struct refuses what is not a 64-bit sum."""
    words = list(chain.from_iterable(pairs))
    return pack(f">{len(words)}Q", *words).hex("-", 16).split("-") if words else []


def hex_pair(text: str) -> Pair:
    """The pair that stands in 32 hex digits; the empty string ("not kept") has none."""
    assert len(text) == 32, f"{text!r} is not 32 hex digits"
    return int(text[:16], 16), int(text[16:], 16)


def add_pairs(*pairs: Pair) -> Pair:
    """The digest of all words that the given digests are of."""
    return sum(pair[0] for pair in pairs) % _WORD, sum(pair[1] for pair in pairs) % _WORD


def sub_pairs(whole: Pair, part: Pair) -> Pair:
    """The digest of what is in `whole` and not in `part`; of two versions, their syndrome."""
    return (whole[0] - part[0]) % _WORD, (whole[1] - part[1]) % _WORD
