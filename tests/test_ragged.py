"""Ragged batches: what is laid out by compiled loops is what the plain meaning says of each row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvtape.core.kernels import counting
from kvtape.core.paging import ragged

LANES, ENTRIES = 4, 3
UNLEASED, SPARE, CLEAN, LITTER = 90, 91, 2**62, -77
Table = NDArray[np.int64]


@st.composite
def laid(draw: st.DrawFn) -> tuple[Table, NDArray[np.int32], int]:
    """Runs in lanes of their own, page tables, rows a page."""
    page_rows, at = draw(st.integers(1, 4)), 0
    runs = []
    for lane in draw(st.permutations(range(LANES)))[: draw(st.integers(0, LANES))]:
        seen = draw(st.integers(1, ENTRIES * page_rows))
        rows = draw(st.integers(1, seen))
        runs.append((lane, seen, at, rows, draw(st.integers(0, rows))))
        at += rows
    pages = draw(st.lists(st.integers(0, 95), min_size=12, max_size=12))
    tables = np.array(pages, np.int32).reshape(LANES, ENTRIES)
    return np.array(runs, np.int64).reshape(-1, 5), tables, page_rows


def littered(*axes: int) -> Table:
    return np.full(axes, LITTER, np.int64)


@given(laid())
def test_every_row_stands_at_its_position_on_its_page(
    given_: tuple[Table, NDArray[np.int32], int],
) -> None:
    runs, tables, page_rows = given_
    want, selected = list[tuple[int, int, int]](), list[int]()
    for lane, seen, at, rows, sampled in runs.tolist():
        assert at == len(want)
        places = range(seen - rows, seen)
        want += [(place, lane, int(tables[lane, place // page_rows])) for place in places]
        selected += range(at + rows - sampled, at + rows)
    columns, drawn = littered(3, len(want)), littered(len(selected))
    largest = ragged.spread(runs, tables, page_rows, columns, drawn)
    assert columns.T.tolist() == [list(row) for row in want]
    assert drawn.tolist() == selected
    assert largest == max((page for _, _, page in want), default=-1)


@pytest.mark.parametrize("past", [0, 1])
def test_a_row_past_its_table_is_on_no_page(past: int) -> None:
    page_rows, tables = 2, np.zeros((1, ENTRIES), np.int32)
    rows = ENTRIES * page_rows + past
    runs = np.array([[0, rows, 0, rows, 1]])
    largest = ragged.spread(runs, tables, page_rows, littered(3, rows), littered(1))
    assert largest == (ragged.NOWHERE if past else 0)


@given(laid(), st.data())
def test_what_a_step_asks_of_runs_stands_by_row_and_by_run(
    given_: tuple[Table, NDArray[np.int32], int], data: st.DataObject
) -> None:
    runs, _, _ = given_
    count, total = len(runs), int(runs[:, 3].sum())
    word = st.integers(-1, 500)
    asked = [
        [data.draw(word), data.draw(st.integers(0, 1)), 3 + at, 40 + at] for at in range(count)
    ]
    tokens = np.arange(100, 100 + total)
    after, places, sampled, by_run = (
        littered(total), littered(count, 4), littered(count, 2), littered(5, count)
    )  # fmt: skip
    ragged.follow(
        runs, np.array(asked, np.int64).reshape(-1, 4), tokens, CLEAN, after, places, sampled,
        by_run,
    )  # fmt: skip
    want, drawn = list[int](), 0
    for run, (lane, seen, at, rows, chosen) in enumerate(runs.tolist()):
        want += [*tokens[at + 1 : at + rows].tolist(), asked[run][0]]
        assert places[run].tolist() == [lane, at, seen - rows, rows]
        assert sampled[run].tolist() == [drawn, chosen]
        assert by_run[:, run].tolist() == [asked[run][1], rows, *asked[run][2:], CLEAN]
        drawn += chosen
    assert after.tolist() == want


def test_a_copy_of_page_tables_has_one_page_in_place_of_another_and_is_its_own() -> None:
    tables = np.array([[1, UNLEASED, 2], [UNLEASED, UNLEASED, SPARE]], np.int32)
    own = ragged.copied_tables(tables, UNLEASED, SPARE)
    assert own.tolist() == [[1, SPARE, 2], [SPARE, SPARE, SPARE]] and own.dtype == np.int32
    own[:] = 0
    assert tables[0].tolist() == [1, UNLEASED, 2]


def test_columns_of_runs_are_those_that_are_counted() -> None:
    names = ("LANE", "SEEN", "AT", "ROWS", "SAMPLED")
    assert [getattr(ragged, name) for name in names] == [getattr(counting, n) for n in names]
