"""Digests as values: two sums modulo 2^64, lane 0 first, and their 32 hex digits on the tape."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import chain
from struct import pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..events.ids import StreamId
from ..events.records import Digests

Pair = tuple[int, int]
Words = NDArray[np.uint64]
Texts = dict[str, tuple[str, ...]]

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


class SumTable(Mapping[StreamId, dict[str, Pair]]):
    """The sums of a step's streams by part, as a mapping that is made only where it is asked for.

    words uint64 [streams, parts, 2], nobody else's; or what gives them when they are asked for.
    """

    def __init__(
        self,
        streams: Sequence[StreamId],
        parts: Sequence[str],
        words: Words | Callable[[], Words],
    ) -> None:
        self._at = {stream: at for at, stream in enumerate(streams)}
        self._parts, self._given = parts, words

    @property
    def _words(self) -> Words:
        if callable(self._given):
            self._given = self._given()
        words = self._given
        assert words.shape == (len(self._at), len(self._parts), 2), words.shape
        return words

    def __reduce__(self) -> tuple[Any, ...]:
        return SumTable, ([*self._at], self._parts, self._words)

    def __getitem__(self, stream: StreamId) -> dict[str, Pair]:
        sums = self._words[self._at[stream]].tolist()
        return {part: (pair[0], pair[1]) for part, pair in zip(self._parts, sums, strict=True)}

    def __iter__(self) -> Iterator[StreamId]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)

    def texts(self) -> tuple[tuple[StreamId, ...], Mapping[str, tuple[str, ...]]]:
        """The streams ascending, and by part, as the tape orders them, each one's 32 digits."""
        streams = sorted(self._at)
        return tuple(streams), LateTexts(partial(self._texts, streams))

    def _texts(self, streams: list[StreamId]) -> Texts:
        names, columns = _tape_order(tuple(self._parts))
        count, words = len(streams), self._words
        if streams != list(self._at):
            words = words[[self._at[stream] for stream in streams]]
        by_part = words.transpose(1, 0, 2)[columns].astype(">u8")
        texts = by_part.tobytes().hex("-", 16).split("-")
        firsts = range(0, count * len(names), count)
        return {
            name: tuple(texts[first : first + count])
            for name, first in zip(names, firsts, strict=True)
        }


class LateTexts(Mapping[str, tuple[str, ...]]):
    """Digits by part, made when anybody asks for any: sums are written while the next step runs."""

    def __init__(self, make: Callable[[], Texts]) -> None:
        self._make = make

    @cached_property
    def _texts(self) -> Texts:
        return self._make()

    def __getitem__(self, part: str) -> tuple[str, ...]:
        return self._texts[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __repr__(self) -> str:
        return repr(self._texts)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._texts,)


@lru_cache
def _tape_order(parts: tuple[str, ...]) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """The parts ascending, as the keys of a map stand on the tape, and where each is found."""
    names = sorted(parts)
    return tuple(names), np.array([parts.index(name) for name in names], np.intp)


class StreamSums(Mapping[str, str]):
    """One stream's 32 digits by part, as a step's digests hold them for all of its streams."""

    __slots__ = ("_at", "_parts")

    def __init__(self, digests: Digests, at: int) -> None:
        self._parts, self._at = digests.parts, at

    def __getitem__(self, part: str) -> str:
        return self._parts[part][self._at]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)
