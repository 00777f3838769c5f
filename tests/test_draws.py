"""How rows are drawn: tables of the same streams are made once, and never those of others."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtape.devices.batch import Batch, Run
from kvtape.devices.draws import DrawTables
from kvtape.events.ids import StreamId
from kvtape.events.records import Sampling

NONE = np.zeros(0, np.int64)
PENALTY = 0x40000000  # 2, as a pattern


@dataclass
class Request:
    """What tables are asked for of a request."""

    sampling: Sampling


def streams(*samplings: Sampling) -> dict[StreamId, Any]:
    return {
        StreamId(at): SimpleNamespace(
            request=Request(one), choice=0, tokens=[1, 2], prompt_tokens=1
        )
        for at, one in enumerate(samplings)
    }


def rounds(count: int, rows: int = 1) -> Batch:
    runs = [Run(StreamId(at), at, at * rows, 1, rows, rows, True) for at in range(count)]
    return Batch(runs, NONE, NONE, NONE, NONE, NONE)


def test_rounds_of_the_same_streams_read_the_same_tables_and_draw_into_their_own() -> None:
    tables, mine = DrawTables(8), streams(Sampling(seed=3), Sampling(seed=4, top_k=2))
    first, second = (tables.of(mine, rounds(2)) for _ in range(2))
    assert second.whole is first.whole and second.floats is first.floats
    assert first.tokens is not second.tokens and second.tokens.tolist() == [0, 0]
    assert first.whole.tolist() == [[0, 2], [3, 4], [0, 0], [0, 0]]


def same(ours: Iterable[NDArray[Any]], theirs: Iterable[NDArray[Any]]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_windows_of_other_lengths_and_another_choice_have_tables_of_their_own() -> None:
    tables, mine = DrawTables(8), streams(Sampling(seed=3), Sampling(seed=4))
    for rows in (1, 3, 2):
        found = tables.of(mine, rounds(2, rows))
        assert found.whole.shape[1] == 2 * rows
        assert same(found, DrawTables(8).of(mine, rounds(2, rows)))
    mine[StreamId(1)].choice = 5
    assert tables.of(mine, rounds(2, 2)).whole[2].tolist() == [0, 0, 5, 5]


def test_a_request_that_takes_the_place_of_another_in_memory_is_not_taken_for_it() -> None:
    tables, mine = DrawTables(8), streams(Sampling(seed=3))
    request = weakref.ref(mine[StreamId(0)].request)
    tables.of(mine, rounds(1))
    mine.clear()
    assert request() is not None, "while its tables are kept, no other has its id"


def test_other_streams_and_fewer_of_them_have_tables_of_their_own() -> None:
    tables = DrawTables(8)
    for samplings in ((Sampling(seed=3),), (Sampling(seed=5),), (Sampling(seed=5),) * 2, ()):
        mine = streams(*samplings)
        batch = rounds(len(mine))
        assert same(tables.of(mine, batch), DrawTables(8).of(mine, batch))


def test_counts_of_a_penalised_stream_are_those_of_each_round() -> None:
    tables, mine = DrawTables(8), streams(Sampling(repetition_bits=PENALTY))
    assert tables.of(mine, rounds(1)).counts[1].tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    mine[StreamId(0)].tokens.insert(0, 5)
    assert tables.of(mine, rounds(1)).counts[1].tolist() == [0, 1, 0, 0, 0, 1, 0, 0]
