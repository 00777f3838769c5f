"""Latent rows, pools, selection and attention: golden bits, whatever pages, windows and parties."""

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

attend: Any = import_module("kvtape.core.kernels.latent_attend")
latent: Any = import_module("kvtape.core.kernels.latent")
meaning: Any = import_module("kvtape.core.kernels.meaning")
parties: Any = import_module("kvtape.core.kernels.latent_parties")
pools: Any = import_module("kvtape.core.kernels.pools")
select: Any = import_module("kvtape.core.kernels.select")
tile: Any = import_module("kvtape.core.kernels.latent_tile")
words: Any = import_module("kvtape.core.kernels.words")

f32, i16, i32, i64, u64 = np.float32, np.int16, np.int32, np.int64, np.uint64
VECTORS = np.load(Path(__file__).parent / "data" / "glm_cache.npz")
POISON = -0x8000
EPS = f32(1e-5)


def same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class Golden:
    """Inputs and results of one attention over a stream; two models' sizes, "a" and "b"."""

    def __init__(self, name: str) -> None:
        def floats(key: str) -> NDArray[np.float32]:
            patterns: NDArray[np.uint32] = VECTORS[f"{name}_{key}"]
            return patterns.view(f32)

        self.kv, self.ik, self.ig, self.ape, self.iw = map(floats, ("kv", "ik", "ig", "ape", "iw"))
        self.o, self.wscale, self.scale = floats("o"), floats("wsc")[()], floats("scale")[()]
        self.lat, self.pool, self.iq, self.ie, self.q, self.eq = (
            VECTORS[f"{name}_{key}"] for key in ("lat", "pool", "iq", "ie", "q", "eq")
        )
        self.lat_e, self.pool_e, self.kpool, self.most = (
            int(VECTORS[f"{name}_{key}"]) for key in ("lat_e", "pool_e", "kpool", "most")
        )
        self.rows, self.width = self.lat.shape
        seen = np.unpackbits(VECTORS[f"{name}_vis"], axis=1)[:, : self.rows].astype(bool)
        self.picked = [
            np.flatnonzero(seen[p, : (p + 1) // self.kpool * self.kpool : self.kpool])
            for p in range(self.rows)
        ]


class Memory:
    """What one device holds of a stream on lane 1 of 2, poisoned at first."""

    def __init__(self, golden: Golden, page_rows: int, drafts: int = 0, ring_rows: int = 0) -> None:
        self.golden, self.page_rows = golden, page_rows
        entries = -(-(golden.rows + drafts) // page_rows)
        order = np.random.default_rng(page_rows).permutation(2 * entries + 1)
        self.tables = order[: 2 * entries].reshape(2, entries).astype(i32)
        self.latent = np.full((order.size, page_rows, golden.width), POISON, i16)
        per_page, width = page_rows // golden.kpool, golden.ik.shape[1]
        self.keys = np.full((order.size, per_page, width), POISON, i16)
        blocks = -(-(golden.kpool + drafts) // golden.kpool)
        ring_rows = ring_rows or golden.kpool * (1 << (blocks - 1).bit_length())
        self.ring = np.full((2, ring_rows, 2, width), np.nan, f32)

    def write(
        self, kv: NDArray[Any], ik: NDArray[Any], ig: NDArray[Any], first: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Rows at positions from `first` on; the sums of latents and of keys, by row."""
        g, rows = self.golden, len(kv)
        sums, key_sums = np.zeros((rows, 2), u64), np.zeros((rows, 2), u64)
        flags = np.zeros(rows, np.uint8)
        latent.latent_rows(
            kv, 0, g.width, EPS, g.lat_e, np.arange(first, first + rows), np.ones(rows, i64),
            self.tables, self.latent, 1, 3, sums, flags, 0, rows,
        )  # fmt: skip
        assert not flags.any()
        pools.pool_rows(
            ik, ig, 0, g.ape, g.pool_e, self.ring, np.array([[1, 0, first, rows]]), self.tables,
            self.keys, self.page_rows, 2, 3, key_sums, 0, 1,
        )  # fmt: skip
        return sums, key_sums

    def take(self, first: int, last: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Rows first to last of the golden stream."""
        g = self.golden
        return self.write(g.kv[first:last], g.ik[first:last], g.ig[first:last], first)

    def select(
        self, first: int, last: int, room: int = 1
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        g, n = self.golden, last - first
        picked, counts = np.full((n, g.most), -1, i32), np.zeros(n, i64)
        select.select_rows(
            g.iq[first:last], g.ie[first:last], g.iw[first:last], 0, g.wscale, self.keys, g.pool_e,
            np.arange(first, last), np.ones(n, i64), self.tables, self.page_rows, g.kpool, g.most,
            picked, counts, np.full(room * len(g.pool), np.nan, f32), 0, n,
        )  # fmt: skip
        return picked, counts

    def shared(self, first: int, last: int) -> tuple[Any, ...]:
        """What every loop over latent rows takes first."""
        g, n = self.golden, last - first
        return (
            g.q[first:last], g.eq[first:last], np.arange(first, last), np.ones(n, i64), self.tables,
            self.latent, g.lat_e, self.page_rows, g.kpool, *self.select(first, last), g.scale,
        )  # fmt: skip

    def scratch(self) -> NDArray[np.int64]:
        g = self.golden
        return np.full(tile.latent_scratch(g.most, g.kpool, g.width), -1, i64)

    def attend(self, first: int, last: int) -> NDArray[np.float32]:
        out = np.full((last - first, self.golden.q.shape[1]), np.nan, f32)
        attend.latent_attend(*self.shared(first, last), out, self.scratch(), 0, last - first)
        return out

    def rows_of_keys(self) -> NDArray[np.int16]:
        g = self.golden
        return np.array(
            [words.paged_row(self.keys[None], self.tables[1], 0, b) for b in range(len(g.pool))]
        )

    def rows_of_latents(self) -> NDArray[np.int16]:
        view = self.latent[None]
        return np.array(
            [words.paged_row(view, self.tables[1], 0, p) for p in range(self.golden.rows)]
        )


@pytest.fixture(params=["a", "b"])
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


@pytest.mark.parametrize("pools_a_page", [1, 2, 5, 64])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_golden_bits_in_any_pages_and_chunks(
    golden: Golden, pools_a_page: int, step: int
) -> None:
    memory = Memory(golden, golden.kpool * pools_a_page)
    edges = [*range(0, golden.rows, step), golden.rows]
    for first, last in pairwise(edges):
        memory.take(first, last)
        picked, counts = memory.select(first, last)
        for at, p in enumerate(range(first, last)):
            assert picked[at, : counts[at]].tolist() == golden.picked[p].tolist()
        assert same(memory.attend(first, last), golden.o[first:last])
    assert same(memory.rows_of_latents(), golden.lat)
    assert same(memory.rows_of_keys(), golden.pool)


def test_the_vectors_hold_what_they_are_to_show(golden: Golden) -> None:
    assert any(len(one) == golden.most < (p + 1) // golden.kpool for p, one in
               enumerate(golden.picked))  # fmt: skip
    left_out = [
        p for p in range(golden.rows)
        if (p + 1) % golden.kpool == 0 and p // golden.kpool not in golden.picked[p]
    ]  # fmt: skip
    assert left_out  # a row that ends a pool may not see even itself


@pytest.mark.parametrize("room", [1, 2, 64])
def test_rows_scored_together_are_scored_alike(golden: Golden, room: int) -> None:
    memory = Memory(golden, golden.kpool * 4)
    memory.take(0, golden.rows)
    picked, counts = memory.select(0, golden.rows, room)
    for p in range(golden.rows):
        assert picked[p, : counts[p]].tolist() == golden.picked[p].tolist()


def draft_rounds(memory: Memory, drafts: int) -> None:
    """The golden stream in windows of 1 + drafts rows: the next row, drafts that may be junk."""
    g, rng, at = memory.golden, np.random.default_rng(5), 0
    while at < g.rows:
        right = int(rng.integers(0, drafts + 1))
        window = []
        for rows in (g.kv, g.ik, g.ig):
            true = rows[at : at + 1 + right]
            junk = rng.standard_normal((1 + drafts - len(true), rows.shape[1])).astype(f32)
            window.append(np.concatenate([true, junk]))
        memory.write(window[0], window[1], window[2], at)
        at = min(at + 1 + right, g.rows)


@pytest.mark.parametrize("drafts", [1, 3, 6])
def test_rejected_drafts_are_taken_back_by_position_alone(golden: Golden, drafts: int) -> None:
    memory = Memory(golden, golden.kpool * 3, drafts)
    draft_rounds(memory, drafts)
    assert same(memory.rows_of_keys(), golden.pool)
    assert same(memory.rows_of_latents(), golden.lat)
    assert same(memory.attend(0, golden.rows), golden.o)


def test_a_ring_without_room_for_drafts_would_be_seen(golden: Golden) -> None:
    memory = Memory(golden, golden.kpool * 3, 3, ring_rows=golden.kpool)
    draft_rounds(memory, 3)
    assert not same(memory.rows_of_keys(), golden.pool)


def test_rows_that_are_not_selected_do_not_matter(golden: Golden) -> None:
    memory = Memory(golden, golden.kpool * 2)
    memory.take(0, golden.rows)
    for p in range(golden.rows):
        n = (p + 1) // golden.kpool
        kept = (golden.picked[p][:, None] * golden.kpool + np.arange(golden.kpool)).reshape(-1)
        seen = {*kept.tolist(), *range(n * golden.kpool, p + 1)}
        before = memory.latent.copy()
        for at in range(golden.rows):
            if at not in seen:
                words.paged_row(memory.latent[None], memory.tables[1], 0, at)[:] = POISON
        assert same(memory.attend(p, p + 1), golden.o[p : p + 1])
        memory.latent[...] = before


def merged(memory: Memory, count: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(tops, n, d) of every party by itself, with the tops merged before the sums."""
    rows = memory.golden.rows
    shared = memory.shared(0, rows)
    tops = np.full((count, *shared[1].shape), 9, f32)
    n, d = np.zeros((count, *shared[0].shape), i64), np.zeros(tops.shape, i64)
    for party in range(count):
        parties.latent_tops(*shared, party, count, tops[party], memory.scratch(), 0, rows)
    for party in range(count):
        parties.latent_sums(
            *shared, party, count, tops.max(0), n[party], d[party], memory.scratch(), 0, rows
        )
    return tops, n, d


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_rows_dealt_over_parties_merge_to_the_same_bits(golden: Golden, count: int) -> None:
    memory = Memory(golden, golden.kpool * 2)
    memory.take(0, golden.rows)
    _, n, d = merged(memory, count)
    out = np.full(golden.o.shape, np.nan, f32)
    heads = golden.eq.shape[1]
    parties.latent_close(n.sum(0), d.sum(0), golden.lat_e, out, 0, golden.rows * heads)
    assert same(out, golden.o)


def test_a_merge_by_rescaling_does_not_give_the_same_bits(golden: Golden) -> None:
    """Each party with the greatest score of its own rows, rescaled to the greatest of all."""
    memory, count = Memory(golden, golden.kpool * 2), 3
    memory.take(0, golden.rows)
    shared, rows = memory.shared(0, golden.rows), golden.rows
    tops, n, d = merged(memory, count)
    above, below = np.zeros(golden.o.shape, f32), np.zeros(golden.eq.shape, f32)
    for party in range(count):
        parties.latent_sums(
            *shared, party, count, tops[party], n[party], d[party], memory.scratch(), 0, rows
        )
        share = meaning.exp(tops[party] - tops.max(0))
        below = below + share * d[party].astype(f32)
        above = above + np.repeat(share, golden.width, axis=1) * n[party].astype(f32)
    out = above / np.repeat(below, golden.width, axis=1) * meaning.pow2(golden.lat_e)
    np.testing.assert_allclose(out, golden.o, rtol=1e-3, atol=1e-5)  # the same attention
    assert not same(out.astype(f32), golden.o)


def picks(
    keys: NDArray[np.int16], q: NDArray[np.int16], w: NDArray[np.float32], most: int
) -> list[int]:
    """The pools [n, width] that one query [heads, width] keeps, two a page and two tokens each."""
    n, heads = len(keys), len(w)
    paged = keys.reshape(-1, 2, keys.shape[1])
    picked, counts = np.full((1, most), -1, i32), np.zeros(1, i64)
    select.select_rows(
        q.reshape(1, -1), np.full((1, heads), -63, np.int8), w[None], 0, f32(1), paged, -63,
        np.array([2 * n - 1]), np.zeros(1, i64), np.arange(n, dtype=i32)[None], 4, 2, most,
        picked, counts, np.zeros(n, f32), 0, 1,
    )  # fmt: skip
    assert counts[0] == most
    return [int(one) for one in picked[0]]


def test_equal_scores_go_to_the_lower_pools() -> None:
    keys = np.full((200, 4), -5, i16)  # every dot is below zero: every score is 0
    q = np.ones((3, 4), i16)
    assert picks(keys, q, np.ones(3, f32), 7) == list(range(7))
    keys[[9, 150]] = 5
    assert picks(keys, q, np.ones(3, f32), 4) == [0, 1, 9, 150]
    assert picks(keys, q, -np.ones(3, f32), 9) == list(range(9))
    assert picks(keys, q, -np.ones(3, f32), 10) == [*range(9), 10]


def test_a_score_of_minus_zero_equals_zero() -> None:
    """A product too small for a float32 and below zero leaves -0.0 in the chain."""
    keys = np.full((40, 4), -5, i16)
    keys[::2] = 1
    q, w = np.ones((1, 4), i16), np.array([-1e-30], f32)
    assert picks(keys, q, w, 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("weight", [np.inf, -np.inf])
def test_a_score_that_is_no_number_is_the_least(weight: float) -> None:
    keys = np.full((40, 4), -5, i16)  # zero times infinity
    keys[[3, 17]] = 5
    q = np.ones((1, 4), i16)
    assert picks(keys, q, np.array([weight], f32), 3) == [0, 3, 17]
    assert picks(keys, q, np.array([np.nan], f32), 3) == [0, 1, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_a_latent_that_is_not_sound_is_flagged_and_no_poison(value: float) -> None:
    x = np.ones((3, 12), f32)
    x[1, 5], x[2] = value, 0
    pages, flags = np.full((1, 4, 12), POISON, i16), np.zeros(3, np.uint8)
    tables, sums = np.zeros((1, 1), i32), np.zeros((3, 2), u64)
    latent.latent_rows(
        x, 0, 12, EPS, -10, np.arange(3), np.zeros(3, i64), tables, pages, 1, 0, sums, flags, 0, 3
    )
    assert flags.tolist() == [0, 1, 0]
    assert (np.abs(pages[0, :3].astype(int)) <= 32639).all()
    assert not pages[0, 2].any()
    assert (pages[0, 3] == POISON).all()


def digest(memory: Memory, last: int) -> tuple[list[int], list[int]]:
    """The digests of latents and keys from memory, `last` rows."""
    sums, key_sums = np.zeros(2, u64), np.zeros(2, u64)
    table, kpool = memory.tables[1], memory.golden.kpool
    words.sum_paged(memory.latent[None].view(u64), table, 0, last, 1, 1, 0, 1, 3, sums)
    words.sum_paged(
        memory.keys[None].view(u64), table, 0, last // kpool, kpool, 2, 0, 1, 3, key_sums
    )
    return sums.tolist(), key_sums.tolist()


def test_what_is_written_is_what_is_summed_from_memory_in_any_pages(golden: Golden) -> None:
    found = []
    for pools_a_page in (1, 3):
        memory = Memory(golden, golden.kpool * pools_a_page)
        sums, key_sums = memory.take(0, golden.rows)
        found.append(digest(memory, golden.rows))
        assert found[-1] == (sums.sum(0).tolist(), key_sums.sum(0).tolist())
        ends = np.arange(1, golden.rows + 1) % golden.kpool == 0
        assert (key_sums.any(1) == ends).all()  # a key is summed with the row that completes it
    assert found[0] == found[1]
    one = words.paged_row(memory.keys[None].view(u64), memory.tables[1], 0, 2)
    one[1] ^= u64(1 << 17)
    after = digest(memory, golden.rows)
    assert after[0] == found[0][0] and after[1] != found[0][1]


def test_poison_is_found_by_position_and_then_by_cache() -> None:
    rows = np.zeros((3, 4, 8, 12), i16)
    table = np.array([2, 0, 3], i32)

    def first(low: int = 0, high: int = 24, step: int = 4) -> int:
        return int(words.first_poisoned_paged(rows, table, low, high, step, 0, 3, 5))

    assert first() == words.ALL_SOUND
    rows[0, 0, 1, 3] = 0x8080 - 0x10000  # row 9
    rows[2, 2, 7, 11] = POISON  # row 7
    rows[1, 2, 7, 0] = POISON
    rows[1, 1, 0, 0] = POISON  # a page of nobody
    assert first() == (7 * 4 + 3) << 12 | 6
    assert first(step=1) == 7 << 12 | 6
    assert first(8) == (9 * 4 + 3) << 12 | 5
    assert first(0, 7) == first(10) == first(9, 9) == words.ALL_SOUND


def test_states_and_rings_are_seen_by_head() -> None:
    rng = np.random.default_rng(3)
    states = rng.standard_normal((2, 3, 2, 4, 8, 8)).astype(f32)
    one = words.state_row(states, 2, 1, 0, 3)
    assert same(one.view(f32).reshape(8, 8), states[0, 2, 1, 3])
    ring = rng.standard_normal((2, 3, 5, 3 * 4 * 8)).astype(f32)
    row = words.ring_row(ring, 1, 12, 1, 2, 4)
    q, k, v = ring[1, 1, 2].reshape(3, 4, 8)[:, 2]
    assert same(row.view(f32), np.stack([q, k, v]))

    def sums(low: int, high: int) -> list[list[int]]:
        both = np.zeros((2, 2), u64)
        words.sum_state(states.view(u64), 2, 1, low, high, 7, 3, both[0])
        words.sum_ring(ring, 1, 9, 13, low, high, 7, 4, 4, both[1])
        return [[int(lane) for lane in pair] for pair in both]

    before = [sums(0, 1), sums(1, 2)]
    one[5] ^= u64(1)  # of layer 0
    assert sums(0, 1)[0] != before[0][0] and sums(1, 2) == before[1]
    row[1, 3] ^= u64(1 << 63)  # of layer 1
    assert sums(1, 2)[1] != before[1][1] and sums(0, 1)[1] == before[0][1]


def test_positions_below_zero_hold_nothing() -> None:
    ring = np.random.default_rng(4).standard_normal((1, 1, 4, 12)).astype(f32)
    below, none = np.zeros(2, u64), np.zeros(2, u64)
    words.sum_ring(ring, 0, -3, 0, 0, 1, 0, 2, 4, below)
    assert same(below, none)
    words.sum_ring(ring, 0, -3, 2, 0, 1, 0, 2, 4, below)
    words.sum_ring(ring, 0, 0, 2, 0, 1, 0, 2, 4, none)
    assert same(below, none) and none.any()
