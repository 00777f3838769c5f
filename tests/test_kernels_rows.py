"""Rows in pages: what is written is read back, and its digest is the one that memory sums to."""

from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

rows_: Any = import_module("kvtape.core.kernels.rows")
rope: Any = import_module("kvtape.core.kernels.rope")
poisoned: Any = import_module("kvtape.core.kernels.poisoned")

f32, u64 = np.float32, np.uint64
HEADS, KV_HEADS, WIDTH, PAGE_ROWS, LAYERS = 6, 2, 32, 32, 2
TABLES = np.array([[5, 0, 3], [1, 4, 2]], np.int32)
COS, SIN = rope.rope_tables(96, WIDTH, 10000)


class Memory:
    """Arenas, and what a write leaves besides."""

    def __init__(self, rows: int, pages: int = 6) -> None:
        shape = LAYERS, pages, KV_HEADS, PAGE_ROWS
        self.arenas = [
            np.full((*shape[:3], shape[3] * WIDTH) if dtype is np.int16 else shape, least, dtype)
            for dtype, least in ((np.int16, -32768), (np.int8, -128)) * 2
        ]
        self.q = np.zeros((rows, HEADS, WIDTH), np.int16)
        self.eq = np.zeros((rows, HEADS), np.int8)
        self.sums = np.zeros((rows, 2), u64)
        self.flags = np.zeros(rows, np.uint8)

    def write(
        self,
        qkv: NDArray[np.float32],
        positions: NDArray[np.int64],
        lanes: NDArray[np.int64],
        tables: NDArray[np.int32] = TABLES,
        items: tuple[int, int] | None = None,
    ) -> None:
        first, last = items or (0, len(qkv) * KV_HEADS)
        rows_.write_rows(
            qkv, positions, lanes, tables, COS, SIN, *self.arenas, 1, 7,
            self.q, self.eq, self.sums, self.flags, first, last,
        )  # fmt: skip

    def summed(
        self, table: NDArray[np.int32], first: int, last: int, layers: tuple[int, int] = (2, 4)
    ) -> tuple[int, int]:
        sums = np.zeros(2, u64)
        rows_.sum_rows(*self.arenas, table, first, last, *layers, 7, sums)
        return int(sums[0]), int(sums[1])


def qkv_of(rows: int, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, (HEADS + 2 * KV_HEADS) * WIDTH))
    return (x * np.exp(rng.uniform(-20, 20, (rows, 1)))).astype(f32)


def total(sums: NDArray[np.uint64]) -> tuple[int, int]:
    both = sums.sum(axis=0, dtype=u64)
    return int(both[0]), int(both[1])


def test_the_digest_of_written_rows_is_what_memory_sums_to() -> None:
    memory = Memory(40)
    memory.write(qkv_of(40), np.arange(40) + 13, np.zeros(40, np.int64))
    assert memory.summed(TABLES[0], 13, 53) == total(memory.sums)
    for first in (13, 14, 31, 32, 48, 52):
        assert memory.summed(TABLES[0], first, 53) == total(memory.sums[first - 13 :])


def test_a_layer_and_a_side_are_summed_on_their_own() -> None:
    memory = Memory(9)
    memory.write(qkv_of(9), np.arange(9), np.zeros(9, np.int64))
    keys, values = (memory.summed(TABLES[0], 0, 9, (n, n + 1)) for n in (2, 3))
    both = memory.summed(TABLES[0], 0, 9)
    assert both == tuple((a + b) % 2**64 for a, b in zip(keys, values, strict=True))
    assert len({keys, values, both, (0, 0)}) == 4


def test_neither_pages_nor_batches_nor_chunks_change_a_digest_or_a_query() -> None:
    x, positions = qkv_of(50), np.arange(50) + 20
    whole = Memory(50)
    whole.write(x, positions, np.zeros(50, np.int64))
    apart = Memory(50)
    for first, last in ((0, 1), (1, 30), (30, 50)):
        items = first * KV_HEADS, last * KV_HEADS
        apart.write(x, positions, np.ones(50, np.int64), items=items)
    order = np.random.default_rng(1).permutation(50)
    mixed = Memory(50)
    mixed.write(x[order], positions[order], np.zeros(50, np.int64), TABLES[::-1].copy())
    for other, back in ((apart, np.arange(50)), (mixed, np.argsort(order))):
        assert other.sums[back].tobytes() == whole.sums.tobytes()
        assert other.q[back].tobytes() == whole.q.tobytes()
        assert other.eq[back].tobytes() == whole.eq.tobytes()
    assert apart.summed(TABLES[1], 20, 70) == whole.summed(TABLES[0], 20, 70)


def test_threads_that_share_rows_lose_no_part_of_a_digest() -> None:
    x, positions, lanes = qkv_of(60), np.arange(60), np.zeros(60, np.int64)
    alone, shared = Memory(60), Memory(60)
    alone.write(x, positions, lanes)

    def take(part: int) -> None:
        for item in range(part, 120, 2):  # a row's two heads: each row is shared
            shared.write(x, positions, lanes, items=(item, item + 1))

    threads = [Thread(target=take, args=(part,)) for part in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared.sums.tobytes() == alone.sums.tobytes()


def test_every_bit_that_flips_moves_the_sum_by_a_difference_of_its_own() -> None:
    memory = Memory(4)
    memory.write(qkv_of(4), np.arange(4) + 30, np.zeros(4, np.int64))
    before, found = memory.summed(TABLES[0], 30, 34), set()
    for layer in (2, 3):
        for head in range(KV_HEADS):
            for column in (0, 1, 15, 16, WIDTH - 1, WIDTH):
                for bit in range(8 if column == WIDTH else 16):
                    at = layer, int(TABLES[0, 1]), head, 1, column, bit  # position 33
                    rows_.flip_bit(*memory.arenas, *at)
                    a, b = memory.summed(TABLES[0], 30, 34)
                    found.add(((a - before[0]) % 2**64, (b - before[1]) % 2**64))
                    rows_.flip_bit(*memory.arenas, *at)
    assert (0, 0) not in found
    assert len(found) == 2 * KV_HEADS * (5 * 16 + 8)
    assert memory.summed(TABLES[0], 30, 34) == before


@pytest.mark.parametrize("bit", [0, 7, 15])
@pytest.mark.parametrize("layer", [2, 3])
def test_a_flipped_bit_is_read_back_in_its_column_and_nowhere_else(layer: int, bit: int) -> None:
    memory = Memory(32)
    memory.write(qkv_of(32), np.arange(32), np.zeros(32, np.int64))
    before, after = np.zeros(WIDTH, np.int16), np.zeros(WIDTH, np.int16)
    for column in range(WIDTH):
        at = layer, 5, 1, 17
        exponent = rows_.read_row(*memory.arenas, *at, before)
        rows_.flip_bit(*memory.arenas, *at, column, bit)
        assert rows_.read_row(*memory.arenas, *at, after) == exponent
        change = before.view(np.uint16) ^ after.view(np.uint16)
        assert np.flatnonzero(change).tolist() == [column]
        assert change[column] == 1 << bit


def test_a_row_that_is_not_sound_is_flagged_and_no_other() -> None:
    x = qkv_of(5)
    x[2, 0], x[4, -1] = np.nan, np.inf
    memory = Memory(5)
    memory.write(x, np.arange(5), np.zeros(5, np.int64))
    assert memory.flags.tolist() == [0, 0, 1, 0, 1]


@pytest.mark.parametrize("value", [-0x8000, -0x7F80])
def test_poison_is_found_where_it_is_and_not_past_what_is_seen(value: int) -> None:
    memory = Memory(40)
    memory.write(qkv_of(40), np.arange(40), np.zeros(40, np.int64))
    assert poisoned.first_poisoned(*memory.arenas, TABLES[0], 0, 40, 1) == -1
    assert poisoned.first_poisoned(*memory.arenas, TABLES[0], 0, 41, 1) == 40 << 12 | 2
    assert poisoned.first_poisoned(*memory.arenas, TABLES[0], 0, 40, 0) == 0
    for side, position in ((1, 39), (0, 39), (1, 8)):
        page, row = TABLES[0, position // PAGE_ROWS], position % PAGE_ROWS
        view = rows_.row_view(memory.arenas[2 * side], PAGE_ROWS, 1, page, 1, row, side)
        view[-1, -1] = value
        found = poisoned.first_poisoned(*memory.arenas, TABLES[0], 0, 40, 1)
        assert found == position << 12 | 2 + side
        assert poisoned.first_poisoned(*memory.arenas, TABLES[0], 0, position, 1) == -1
    memory.arenas[1][1, TABLES[0, 0], 0, 3] = 127
    assert poisoned.first_poisoned(*memory.arenas, TABLES[0], 0, 40, 1) == 3 << 12 | 2
