"""A GLM's running sums: added late or at once, they are the same whoever asks, and when."""

from typing import NamedTuple

import numpy as np
import pytest

from kvtape.devices.batch import Batch, Run
from kvtape.devices.glm.ledger import GlmLedger, RowSums
from kvtape.devices.glm.step import GlmBatch
from kvtape.events.ids import StreamId

PARTS = ("rows", "keys", "states", "rings", "drafts", "logits", "tokens")
PAGE_ROWS, PAGES = 4, 32


class Step(NamedTuple):
    """A step of some streams, windows of which not all rows may be kept."""

    batch: GlmBatch
    kept: np.ndarray
    found: RowSums


def steps(rng: np.random.Generator, count: int) -> list[Step]:
    """Prompts, then rounds of one row each or of windows; each stream has pages of its own."""
    firsts, found = {StreamId(at): 0 for at in range(3)}, []
    for at in range(count):
        most = 1 if at % 3 == 1 else 3
        runs, pages, kept = list[Run](), list[int](), list[int]()
        for stream in rng.permutation(3)[: int(rng.integers(1, 4))]:
            first, rows = firsts[StreamId(stream)], int(rng.integers(1, most + 1))
            sampled = 1 if most == 1 else int(rng.integers(0, rows + 1))
            runs.append(Run(StreamId(stream), stream, len(pages), first, rows, sampled, True))
            pages += [8 * stream + position // PAGE_ROWS for position in range(first, first + rows)]
            kept.append(int(rng.integers(1, rows + 1)))
            firsts[StreamId(stream)] += kept[-1]
        rows, sampled = len(pages), sum(run.sampled for run in runs)
        none, every = np.zeros(rows, np.int64), np.arange(sampled)
        batch = Batch(runs, none, none, none, np.array(pages), every)
        words = [rng.integers(0, 2**64, (n, 2), np.uint64) for n in (*[rows] * 3, sampled, rows)]
        sums = RowSums(np.stack(words[:3]), words[3], words[4])
        found.append(Step(GlmBatch(batch, [True] * len(runs), []), np.array(kept), sums))
    return found


def ledger() -> GlmLedger:
    made = GlmLedger(PAGES, PAGE_ROWS, PARTS)
    for stream in range(3):
        made.begin(StreamId(stream))
    return made


def plain(ledger_of: GlmLedger, step: Step) -> None:
    """A step's sums added row by row, by Python."""
    held, pages, at = ledger_of.held, ledger_of.pages, 0
    for run, kept in zip(step.batch.rows.runs, step.kept.tolist(), strict=True):
        totals = ledger_of.streams[run.stream]
        for row in range(run.at, run.at + kept):
            for column, part in enumerate(("rows", "keys", "drafts")):
                held[totals.slot, column] += step.found.paged[column, row]
                pages[part][step.batch.rows.pages[row]] += step.found.paged[column, row]
            held[totals.slot, 4] += step.found.tokens[row]
        for row in range(at, at + min(run.sampled, kept)):
            held[totals.slot, 3] += step.found.logits[row]
        at += run.sampled
        totals.rows += kept


@pytest.mark.parametrize("settles", [True, False])
def test_sums_are_those_of_each_row_whether_they_are_added_at_once_or_late(settles: bool) -> None:
    for seed in range(20):
        late, early = ledger(), ledger()
        for step in steps(np.random.default_rng(seed), 12):
            table = late.add(*step)
            if settles:
                late.settle()
            plain(early, step)
            if seed % 2:  # otherwise nobody asks before the end
                assert {one: dict(sums) for one, sums in table.items()} == {
                    run.stream: early.sums(run.stream) for run in step.batch.rows.runs
                }
        for stream in range(3):
            assert late.sums(StreamId(stream)) == early.sums(StreamId(stream))
        for part, sums in early.pages.items():
            assert np.array_equal(late.pages[part], sums)


def test_a_tables_sums_are_of_its_own_step_however_late_they_are_asked_for() -> None:
    late, early, told = ledger(), ledger(), []
    for step in steps(np.random.default_rng(7), 9):
        table = late.add(*step)
        plain(early, step)
        told.append((table, {run.stream: early.sums(run.stream) for run in step.batch.rows.runs}))
    for table, sums in told:
        assert dict(table) == sums


def test_a_stream_that_takes_the_place_of_one_just_counted_starts_from_nothing() -> None:
    late = ledger()
    (step,) = steps(np.random.default_rng(1), 1)
    late.add(*step)
    gone = step.batch.rows.runs[0].stream
    late.forget(gone)
    late.begin(StreamId(9))
    assert all(pair == (0, 0) for pair in late.sums(StreamId(9)).values())
    late.leased((8 * int(gone),))
    assert not late.pages["rows"][8 * int(gone)].any(), "what was counted before is not on it"


def test_a_page_that_is_leased_anew_holds_nothing_of_what_was_just_counted() -> None:
    late = ledger()
    (step,) = steps(np.random.default_rng(1), 1)
    late.add(*step)
    page = int(step.batch.rows.pages[0])
    late.leased((page,))
    assert not late.pages["rows"][page].any()
