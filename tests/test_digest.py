"""Digests: sums that any order, split or rank adds up to alike, and that every bit changes."""

import json
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvtape.core.digests import (
    ZERO,
    Pair,
    StreamSums,
    SumTable,
    add_pairs,
    hex_pair,
    pair_hex,
    pairs_hex,
    sub_pairs,
)
from kvtape.events.ids import StreamId
from kvtape.events.records import Digests

digest: Any = import_module("kvtape.core.kernels.digest")

u64 = np.uint64
CASES = json.loads((Path(__file__).parent / "data" / "digest_vectors.json").read_text())
PAIRS = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))


def rows_digest(
    words: NDArray[np.uint64], positions: list[int], head: int = 2, column: int = 0
) -> list[Pair]:
    sums = np.zeros((len(words), 2), u64)
    digest.digest_rows(words, 1, 3, head, np.array(positions), column, sums, 0, len(words))
    return [(int(a), int(b)) for a, b in sums]


def test_digests_are_the_golden_ones() -> None:
    total = ZERO
    for case in CASES["cases"]:
        words = digest.row_words(np.array(case["row"], np.int16))
        where = (case["part"], case["layer"], case["head"])
        sums = np.zeros((1, 2), u64)
        digest.digest_rows(words[None], *where, np.array([case["position"]]), 0, sums, 0, 1)
        made = (int(sums[0, 0]), int(sums[0, 1]))
        assert made == digest.digest_of(words, *where, case["position"], np.arange(words.size))
        assert pair_hex(made) == "".join(case["digest"])
        total = add_pairs(total, made)
    assert pair_hex(total) == "".join(CASES["sum"])


@given(st.integers(0, 12), st.randoms(use_true_random=False))
def test_a_row_split_at_any_word_sums_to_the_whole(cut: int, chance: object) -> None:
    words = np.random.default_rng(cut).integers(0, 2**64, (1, 12), u64)
    [whole] = rows_digest(words, [9])
    parts = [ZERO]
    if cut:
        parts += rows_digest(words[:, :cut].copy(), [9])
    if cut < 12:
        parts += rows_digest(words[:, cut:].copy(), [9], column=cut)
    chance.shuffle(parts)  # type: ignore[attr-defined]
    assert add_pairs(*parts) == whole
    assert sub_pairs(whole, parts[-1]) == add_pairs(*parts[:-1])


@given(st.permutations(range(6)))
def test_rows_may_stand_in_any_order(order: list[int]) -> None:
    words = np.random.default_rng(1).integers(0, 2**64, (6, 5), u64)
    positions = [4, 5, 6, 100, 2**33, 7]
    moved = rows_digest(words[order], [positions[i] for i in order])
    assert add_pairs(*moved) == add_pairs(*rows_digest(words, positions))


@given(st.integers(0, 3), st.integers(0, 63))
def test_one_flipped_bit_changes_both_lanes(word: int, bit: int) -> None:
    words = np.random.default_rng(2).integers(0, 2**64, (1, 4), u64)
    [before] = rows_digest(words, [1])
    words[0, word] ^= u64(1) << u64(bit)
    [after] = rows_digest(words, [1])
    syndrome = sub_pairs(after, before)
    assert syndrome[0] != 0
    assert syndrome[1] != 0


def test_where_a_word_stands_matters() -> None:
    words = np.full((1, 1), 7, u64)
    places = [
        rows_digest(words, [0])[0],
        rows_digest(words, [1])[0],
        rows_digest(words, [0], head=3)[0],
        rows_digest(words, [0], column=1)[0],
    ]
    assert len(set(places)) == 4


def test_each_part_has_a_code_of_its_own_that_fits_eight_bits() -> None:
    codes = list(digest.PARTS.values())
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 256 for code in codes)


@given(PAIRS, PAIRS)
def test_pairs_come_back_from_their_digits_and_add_like_a_group(a: Pair, b: Pair) -> None:
    assert hex_pair(pair_hex(a)) == a
    assert len(pair_hex(a)) == 32
    assert sub_pairs(add_pairs(a, b), b) == a
    assert add_pairs(a, ZERO) == a


def test_what_is_not_a_pair_is_refused() -> None:
    with pytest.raises(AssertionError, match="two 64-bit sums"):
        pair_hex((0, 2**64))
    with pytest.raises(AssertionError, match="32 hex digits"):
        hex_pair("")


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=6, unique=True),
    st.lists(
        st.sampled_from(["rows", "keys", "states", "logits", "tokens", "marks"]),
        min_size=1,
        unique=True,
    ),
    st.randoms(use_true_random=False),
)
def test_a_table_of_sums_is_the_mapping_and_the_text_of_its_words(
    streams: list[int], parts: list[str], chance: Random
) -> None:
    pairs = {
        StreamId(stream): {part: (chance.getrandbits(64), chance.getrandbits(64)) for part in parts}
        for stream in streams
    }
    words = np.array([[sums[part] for part in parts] for sums in pairs.values()], np.uint64)
    table = SumTable(list(pairs), parts, words)
    assert table == pairs and list(table) == list(pairs)
    named, texts = table.texts()
    assert list(named) == sorted(pairs) and list(texts) == sorted(parts)
    for part in parts:
        assert list(texts[part]) == [pair_hex(pairs[stream][part]) for stream in sorted(pairs)]
        assert pairs_hex([sums[part] for sums in pairs.values()]) == [
            pair_hex(sums[part]) for sums in pairs.values()
        ]


@given(
    parts=st.lists(st.sampled_from(["rows", "keys", "states", "logits"]), min_size=1, unique=True),
    streams=st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True),
    data=st.data(),
)
def test_the_texts_of_a_table_are_those_of_its_pairs(
    parts: list[str], streams: list[int], data: st.DataObject
) -> None:
    pairs = [[data.draw(PAIRS) for _ in parts] for _ in streams]
    ids = [StreamId(stream) for stream in streams]
    table = SumTable(ids, parts, np.array(pairs, u64))
    named, by_part = table.texts()
    assert list(named) == sorted(ids)
    assert list(by_part) == sorted(parts)
    digests = Digests(streams=named, parts=by_part)
    for at, stream in enumerate(named):
        sums = StreamSums(digests, at)
        assert sums == {part: pair_hex(pair) for part, pair in table[stream].items()}
        assert len(sums) == len(parts)
