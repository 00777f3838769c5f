"""How rows are drawn: tables of the same streams are made once, and never those of others."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from kvtape.devices.batch import Batch, Run
from kvtape.devices.draws import DrawTables
from kvtape.events.ids import StreamId
from kvtape.events.records import Sampling

NONE = np.zeros(0, np.int64)
PENALTY = 0x40000000  # 2, as a pattern


def streams(*samplings: Sampling) -> dict[StreamId, Any]:
    return {
        StreamId(at): SimpleNamespace(
            request=SimpleNamespace(sampling=one), choice=0, tokens=[1, 2], prompt_tokens=1
        )
        for at, one in enumerate(samplings)
    }


def rounds(count: int) -> Batch:
    runs = [Run(StreamId(at), at, at, 1, 1, 1, True) for at in range(count)]
    return Batch(runs, NONE, NONE, NONE, NONE, NONE)


def test_rounds_of_the_same_streams_read_the_same_tables_and_draw_into_their_own() -> None:
    tables, mine = DrawTables(8), streams(Sampling(seed=3), Sampling(seed=4, top_k=2))
    first, second = (tables.of(mine, rounds(2)) for _ in range(2))
    assert second.whole is first.whole and second.floats is first.floats
    assert first.tokens is not second.tokens and second.tokens.tolist() == [0, 0]
    assert first.whole.tolist() == [[0, 2], [3, 4], [0, 0], [0, 0]]


def test_other_streams_and_fewer_of_them_have_tables_of_their_own() -> None:
    tables = DrawTables(8)
    for samplings in ((Sampling(seed=3),), (Sampling(seed=5),), (Sampling(seed=5),) * 2, ()):
        mine = streams(*samplings)
        found, plain = tables.of(mine, rounds(len(mine))), DrawTables(8).of(mine, rounds(len(mine)))
        for ours, theirs in zip(found, plain, strict=True):
            assert np.array_equal(ours, theirs)


def test_counts_of_a_penalised_stream_are_those_of_each_round() -> None:
    tables, mine = DrawTables(8), streams(Sampling(repetition_bits=PENALTY))
    assert tables.of(mine, rounds(1)).counts[1].tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    mine[StreamId(0)].tokens.insert(0, 5)
    assert tables.of(mine, rounds(1)).counts[1].tolist() == [0, 1, 0, 0, 0, 1, 0, 0]
