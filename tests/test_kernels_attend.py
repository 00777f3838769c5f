"""Attention over pages: the golden vectors, whatever the pages, batches, chunks and parties."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

kernel: Any = import_module("kvtape.core.kernels.attend")
rows_: Any = import_module("kvtape.core.kernels.rows")

f32, i16 = np.float32, np.int16
GOLDEN = np.load(Path(__file__).parent / "data" / "attention.npz")
SCALE = f32(0.125)  # of heads 64 wide


class Stream:
    """Random rows of one stream of 200 positions, two kv heads of three query heads each."""

    rows, kv_heads, heads, width = 200, 2, 6, 64

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shape = self.rows, self.kv_heads
        self.k, self.v = (
            kernel.extreme_rows(rng, self.rows * self.kv_heads, self.width).reshape(*shape, -1)
            for _ in (0, 1)
        )
        self.ek, self.ev = (rng.integers(-22, -12, shape, np.int8) for _ in (0, 1))
        self.q = rng.integers(-32639, 32640, (self.rows, self.heads, self.width), i16)
        self.eq = rng.integers(-24, -16, (self.rows, self.heads), np.int8)


class Pages:
    """Arenas of one layer full of poison, and the tables of what was put there."""

    def __init__(self, pages: int, page_rows: int, kv_heads: int, width: int) -> None:
        self.page_rows = page_rows
        shape = 1, pages, kv_heads, page_rows
        data = [np.full((*shape[:3], page_rows * width), -0x8000, i16) for _ in (0, 1)]
        exponents = [np.full(shape, -128, np.int8) for _ in (0, 1)]
        self.arenas = data[0], exponents[0], data[1], exponents[1]

    def put(
        self,
        side: int,
        table: NDArray[np.int32],
        digits: NDArray[np.int16],
        exponents: NDArray[np.int8],
        rows: int,
    ) -> None:
        data, e = self.arenas[2 * side], self.arenas[2 * side + 1]
        for row, head in np.ndindex(rows, digits.shape[1]):
            page, at = table[row // self.page_rows], row % self.page_rows
            view = rows_.row_view(data, self.page_rows, 0, page, head, at, side)
            view[...] = digits[row, head].reshape(view.shape)
            e[0, page, head, at] = exponents[row, head]

    def hold(self, stream: Stream, table: NDArray[np.int32], rows: int) -> None:
        self.put(0, table, stream.k, stream.ek, rows)
        self.put(1, table, stream.v, stream.ev, rows)

    def attend(
        self,
        q: NDArray[np.int16],
        eq: NDArray[np.int8],
        positions: NDArray[np.int64],
        lanes: NDArray[np.int64],
        tables: NDArray[np.int32],
        parties: int = 1,
        most: int = 0,
    ) -> NDArray[np.float32]:
        rows, heads, width = q.shape
        kv_heads = self.arenas[0].shape[2]
        tiles = np.zeros((rows, 2), np.int64)
        most = most or kernel.tile_rows(heads // kv_heads)
        count = kernel.cut_tiles(positions, lanes, 0, rows, most, tiles)
        o = np.full((rows, heads * width), np.nan, f32)
        for party in range(parties):
            kernel.attend_fresh(
                np.ascontiguousarray(q), np.ascontiguousarray(eq), positions, lanes, tables,
                *self.arenas, 0, SCALE, tiles, party, count * kv_heads, parties, o, 0,
            )  # fmt: skip
        return o.reshape(rows, heads, width)


def same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.tobytes() == b.tobytes()


def whole(stream: Stream, rows: int) -> NDArray[np.float32]:
    """Attention of the first rows, one row at a time, over pages in order."""
    pages = Pages(8, 32, stream.kv_heads, stream.width)
    table = np.arange(8, dtype=np.int32)
    pages.hold(stream, table, rows)
    lanes = np.zeros(rows, np.int64)
    return pages.attend(
        stream.q[:rows], stream.eq[:rows], np.arange(rows), lanes, table[None], most=1
    )


@pytest.mark.parametrize("page_rows", [16, 32, 64])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_the_golden_vectors(page_rows: int, order: list[int]) -> None:
    pages = Pages(6, page_rows, 1, 64)
    table = np.array([4, 2, 5, 0, 3], np.int32)
    for side, name in enumerate("KV"):
        digits, e = GOLDEN[f"at_{name}"], GOLDEN[f"at_e{name.lower()}"].astype(np.int8)
        pages.put(side, table, digits[:, None], e[:, None], 65)
    positions = np.array([0, 9, 40, 64])[order]
    q, eq = GOLDEN["at_q"][order], GOLDEN["at_eq"].astype(np.int8)[order]
    o = pages.attend(q, eq, positions, np.zeros(4, np.int64), table[None])
    assert same(o, GOLDEN["at_o"][order].view(f32))


def test_the_order_of_pages_and_their_size_change_no_bit() -> None:
    stream, rows = Stream(1), 100
    expected = whole(stream, rows)
    rng = np.random.default_rng(0)
    for page_rows in (16, 32, 32, 64):
        pages = Pages(20, page_rows, stream.kv_heads, stream.width)
        table = rng.permutation(20)[:8].astype(np.int32)
        pages.hold(stream, table, rows)
        lanes = np.zeros(rows, np.int64)
        q, eq = stream.q[:rows], stream.eq[:rows]
        assert same(pages.attend(q, eq, np.arange(rows), lanes, table[None]), expected)


@pytest.mark.parametrize("parties", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 3, 4])
def test_chunks_tiles_and_parties_change_no_bit(parties: int, most: int) -> None:
    stream, rows = Stream(2), 90
    expected = whole(stream, rows)
    pages = Pages(4, 32, stream.kv_heads, stream.width)
    table = np.array([2, 0, 3], np.int32)
    for first, last in ((0, 1), (1, 8), (8, 41), (41, 90)):
        pages.hold(stream, table, last)  # later rows are poison still
        part = slice(first, last)
        o = pages.attend(
            stream.q[part], stream.eq[part], np.arange(first, last),
            np.zeros(last - first, np.int64), table[None], parties, most,
        )  # fmt: skip
        assert same(o, expected[part])


def test_a_batch_of_streams_has_the_bits_of_each_alone() -> None:
    streams = [Stream(seed) for seed in (3, 4, 5)]
    pages = Pages(16, 32, 2, 64)
    tables = np.random.default_rng(1).permutation(15).reshape(3, 5).astype(np.int32)
    runs = [(0, 70, 75), (2, 0, 3), (1, 149, 150), (0, 20, 25)]  # lane, first, last
    for lane, rows in ((0, 75), (2, 3), (1, 150)):
        pages.hold(streams[lane], tables[lane], rows)
    q, eq = (
        np.concatenate([getattr(streams[lane], name)[a:b] for lane, a, b in runs])
        for name in ("q", "eq")
    )
    positions = np.concatenate([np.arange(a, b) for _, a, b in runs])
    lanes = np.repeat([lane for lane, _, _ in runs], [b - a for _, a, b in runs])
    o = pages.attend(q, eq, positions, lanes, tables, 2)
    at = 0
    for lane, a, b in runs:
        assert same(o[at : at + b - a], whole(streams[lane], b)[a:b])
        at += b - a


def test_what_stands_past_the_visible_rows_does_not_matter() -> None:
    stream, rows = Stream(6), 37
    expected = whole(stream, rows)
    table = np.array([1, 0], np.int32)
    for junk in (-0x8000, -0x7F80, 0x7FFF, 0, -1):
        pages = Pages(2, 32, stream.kv_heads, stream.width)
        for data in pages.arenas[::2]:
            data[...] = junk
        for e in pages.arenas[1::2]:
            e[...] = 127 if junk % 3 else 0
        pages.hold(stream, table, rows)
        lanes = np.zeros(rows, np.int64)
        q, eq = stream.q[:rows], stream.eq[:rows]
        assert same(pages.attend(q, eq, np.arange(rows), lanes, table[None]), expected)


def test_equal_scores_over_many_rows_add_up_without_a_carry_lost() -> None:
    """The greatest sums: every weight is 1, every value the largest of one sign."""
    rows = 4096
    pages = Pages(rows // 32, 32, 1, 16)
    table = np.arange(rows // 32, dtype=np.int32)
    for side, value in ((0, 0), (1, -32639)):
        pages.arenas[2 * side][...] = value
        pages.arenas[2 * side + 1][...] = -15
    q, eq = np.full((1, 3, 16), 32639, i16), np.full((1, 3), -15, np.int8)
    o = pages.attend(q, eq, np.array([rows - 1]), np.zeros(1, np.int64), table[None])
    assert (o == f32(-32639 * 2.0**-15)).all()
