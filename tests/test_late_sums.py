"""Sums that are made late: whoever asks finds what an early reader would, and bytes hold them."""

import pickle
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from kvtape.core.digests import LateTexts, StreamSums, SumTable
from kvtape.events.canon import decode_fact, encode
from kvtape.events.facts import StepClosed
from kvtape.events.ids import StreamId
from kvtape.events.records import Digests, known

TEXTS = {"logits": ("0" * 32, "1" * 32), "rows": ("2" * 32, "3" * 32)}
STREAMS = (StreamId(4), StreamId(9))


def late() -> LateTexts:
    return LateTexts(lambda: dict(TEXTS))


@pytest.mark.parametrize(
    "read",
    [
        lambda found: found["rows"], lambda found: found.get("logits", ()), lambda found: [*found],
        len, lambda found: "rows" in found, lambda found: list(found.items()),
        lambda found: list(found.keys()), lambda found: list(found.values()), repr, dict, bool,
        lambda found: found == TEXTS, lambda found: found == late(), lambda found: found != TEXTS,
        lambda found: pickle.loads(pickle.dumps(found)), deepcopy,
        lambda found: {**found},
        lambda found: StreamSums(known(Digests, streams=STREAMS, parts=found, ranks={}), 1)["rows"],
    ],
)  # fmt: skip
def test_texts_that_are_not_made_yet_read_as_a_dict_of_them(read: Callable[[Any], Any]) -> None:
    assert read(late()) == read(dict(TEXTS))


def test_texts_are_made_once() -> None:
    made: list[int] = []

    def make() -> dict[str, tuple[str, ...]]:
        made.append(1)
        return dict(TEXTS)

    found = LateTexts(make)
    assert not made, "nobody asked"
    assert found["rows"] == TEXTS["rows"] and len(found) == 2 and made == [1]


def test_a_fact_has_the_bytes_that_it_has_with_texts_made_early() -> None:
    def closed(parts: Mapping[str, tuple[str, ...]]) -> StepClosed:
        digests = known(Digests, streams=STREAMS, parts=parts, ranks={})
        return StepClosed(step=3, digests=digests, book="", flagged=())

    plain = encode(closed(dict(TEXTS)))
    assert encode(closed(late())) == plain and b'"rows":["2222' in plain
    fact = decode_fact(plain)
    assert isinstance(fact, StepClosed) and fact.digests.parts == late()


def test_a_table_asks_for_its_words_when_somebody_asks_for_sums() -> None:
    words = np.arange(8, dtype=np.uint64).reshape(2, 2, 2)
    asked: list[int] = []

    def give() -> Any:
        asked.append(1)
        return words

    table = SumTable(STREAMS[::-1], ("rows", "logits"), give)
    streams, texts = table.texts()
    assert streams == STREAMS and len(table) == 2 and not asked
    assert texts == SumTable(STREAMS[::-1], ("rows", "logits"), words).texts()[1]
    assert dict(pickle.loads(pickle.dumps(table))) == dict(table)
    assert table[StreamId(4)] == {"rows": (4, 5), "logits": (6, 7)} and asked == [1]
