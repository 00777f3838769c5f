"""Sampling: the golden tokens, the kept set by its definition, draws that follow weights."""

import gzip
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

philox: Any = import_module("kvtape.core.kernels.philox")
sampling: Any = import_module("kvtape.core.kernels.sampling")
threshold: Any = import_module("kvtape.core.kernels.threshold")
weigh: Any = import_module("kvtape.core.kernels.weigh")


f32, i32 = np.float32, np.int32
DATA = Path(__file__).parent / "data"
NO_IDS, NO_BIAS = np.zeros(0, i32), np.zeros(0, f32)
PLAIN = (f32(1), f32(0), f32(0))


def as_weights(numbers: list[int]) -> list[int]:
    """Weights come from float32: at most 24 bits, and the largest is never 0."""
    return [int(f32(number)) for number in numbers] if any(numbers) else [1, *numbers]


WEIGHTS = st.lists(
    st.one_of(st.integers(0, 3), st.integers(0, 2**30), st.sampled_from([2**30, 2**20, 2**20 - 1])),
    min_size=1,
    max_size=40,
).map(as_weights)


def draw(
    logits: NDArray[np.float32],
    temperature: float | np.float32 = 1,
    top_k: int = 0,
    top_p: float | np.float32 = 1,
    seed: int = 0,
    position: int = 0,
    choice: int = 0,
    scratch: Any = None,
) -> int:
    counts = np.zeros(logits.size, i32)
    scratch = scratch or sampling.sample_scratch(logits.size)
    how = f32(temperature), top_k, f32(top_p), PLAIN, NO_IDS, NO_BIAS, counts, counts
    return int(sampling.sample_row(logits, *how, seed, position, choice, *scratch))


def kept_by_definition(weights: list[int], top_k: int, share: int) -> list[int]:
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    order = order[: top_k or None]
    total = sum(weights[token] for token in order)
    kept, running = [], 0
    for token in order:
        kept.append(token)
        running += weights[token]
        if running * 2**24 >= total * share and running > 0:
            break
    return sorted(kept)


def kept_by_threshold(weights: list[int], top_k: int, top_p: np.float32) -> list[int]:
    given = np.array(weights, i32)
    _, _, candidates, bins = sampling.sample_scratch(given.size)
    least, ties, total = threshold.keep(given, top_k, top_p, candidates, bins)
    kept = []
    for token, weight in enumerate(weights):
        if weight > least or (weight == least and ties > 0):
            ties -= weight == least
            kept.append(token)
    assert sum(weights[token] for token in kept) == total
    return kept


def test_tokens_are_the_golden_ones() -> None:
    cases = json.loads(gzip.decompress((DATA / "sampling_vectors.json.gz").read_bytes()))
    assert len(cases) == 200
    for case in cases:
        logits = np.array(case["logits_bits"], np.uint32).view(f32)
        temperature = np.uint32(case["temperature_bits"]).view(f32)
        top_p = np.uint32(case["top_p_bits"]).view(f32)
        where = case["seed"], case["position"], case["choice"]
        assert draw(logits, temperature, case["top_k"], top_p, *where) == case["token"]


@given(WEIGHTS, st.integers(0, 41), st.integers(1, 2**24))
def test_the_kept_set_is_the_defined_one(weights: list[int], top_k: int, share: int) -> None:
    top_p = f32(share / 2**24)
    if not sum(sorted(weights)[-top_k:]):
        return
    want = kept_by_definition(weights, top_k, share)
    have = kept_by_threshold(weights, top_k, top_p)
    meant = threshold.kept_meaning(np.array(weights), top_k, top_p).tolist()
    if share == 2**24:  # nothing of weight 0 can be drawn, so it does not matter whether it is kept
        have, want, meant = ([t for t in some if weights[t]] for some in (have, want, meant))
    assert have == want == meant


def test_equal_weights_are_kept_by_the_lower_id() -> None:
    weights = [5, 9, 5, 9, 5, 9]
    assert kept_by_threshold(weights, 2, f32(1)) == [1, 3]
    assert kept_by_threshold(weights, 4, f32(1)) == [0, 1, 3, 5]
    assert kept_by_threshold(weights, 0, f32(0.25)) == [1, 3]
    assert kept_by_threshold(weights, 0, f32(0.2)) == [1]


def test_a_large_row_of_equal_logits_is_cut_exactly() -> None:
    flat = np.zeros(49152, f32)
    for top_k in (1, 1000, 49151):
        tokens = [draw(flat, top_k=top_k, seed=3, position=i) for i in range(30)]
        assert max(tokens) < top_k
    half = [draw(flat, top_p=0.5, seed=3, position=i) for i in range(60)]
    assert max(half) < 24576
    assert max(half) > 20000


def test_draws_follow_the_weights() -> None:
    logits = (np.random.default_rng(8).standard_normal(30) * 2).astype(f32)
    chance = np.exp(logits.astype(float) - float(logits.max()))
    chance /= chance.sum()
    count = 20000
    for seed in (1234, -1, 2**62):
        tokens = [draw(logits, seed=seed, position=i) for i in range(count)]
        got = np.bincount(tokens, minlength=30)
        chi_square = float(((got - count * chance) ** 2 / (count * chance)).sum())
        assert chi_square < 58.3  # 29 degrees of freedom: once in a thousand


def test_a_draw_is_a_function_of_seed_position_and_choice_alone() -> None:
    logits = np.random.default_rng(4).standard_normal(500).astype(f32)
    dirty = tuple(np.full_like(part, 77) for part in sampling.sample_scratch(500))
    for where in ((0, 0, 0), (-5, 9, 1), (2**62, 2**20, 3)):
        clean = draw(logits, 0.8, 50, 0.9, *where)
        assert clean == draw(logits, 0.8, 50, 0.9, *where, scratch=dirty)
        assert clean == draw(logits, 0.8, 50, 0.9, *where, scratch=dirty)
    tokens = {
        draw(logits, 2, seed=s, position=p, choice=c)
        for s in (1, 2)
        for p in (1, 2)
        for c in (0, 1)
    }
    assert len(tokens) > 4


def test_a_negative_seed_is_its_unsigned_pattern() -> None:
    assert philox.philox(-1, 5, 6) == philox.philox_meaning(2**64 - 1, 5, 6)


def test_philox_gives_its_published_numbers() -> None:
    assert philox.philox(0, 0, 0) == 0xE169C58D6627E8D5


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_the_high_product_is_exact(a: int, b: int) -> None:
    with np.errstate(over="ignore"):
        assert int(philox.high_product(np.uint64(a), np.uint64(b))) == (a * b) >> 64


def test_greedy_takes_the_lower_of_equal_logits() -> None:
    logits = np.full(3000, -1, f32)
    logits[[700, 1400, 2999]] = 2.5
    assert weigh.greedy(logits) == 700
    assert draw(logits, 0) == 700
    assert weigh.greedy(np.array([-0.0, 0.0], f32)) == 0
    assert weigh.greedy(np.array([np.nan, -3, -2], f32)) == 2


def test_penalties_come_in_their_order() -> None:
    logits = np.array([2, -2, 1, 4], f32)
    counts, reply = np.array([1, 1, 0, 3], i32), np.array([0, 0, 0, 2], i32)
    z = np.zeros(4, f32)
    ids, bias = np.array([2, 0], i32), np.array([-3, 1], f32)
    weigh.penalise(logits, ids, bias, counts, reply, f32(2), f32(0.5), f32(0.25), z)
    assert list(z) == [1.5, -4, -2, 0.75]
    assert list(logits) == [2, -2, 1, 4]


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_infinite_bias_decides(temperature: float) -> None:
    logits = np.zeros(5, f32)
    logits[3] = np.inf
    assert draw(logits, temperature) == 3
    logits[:] = -np.inf
    logits[2] = 0
    assert draw(logits, temperature) == 2
