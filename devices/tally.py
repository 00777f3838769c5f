"""What a rank says of a finished step: flags, poison, tokens, sums, and sums that do not hold."""

import numpy as np
from numpy.typing import NDArray

from ..core.device import Break, Pair, Poisoned, Report
from ..core.kernels.counting import CLEAN
from ..core.kernels.program_memory import Draws
from ..core.state import State
from ..events.ids import StreamId
from .batch import Batch
from .inspect import Looks
from .ledger import Ledger


def note_flags(
    batch: Batch, flags: NDArray[np.uint8], poisoned: NDArray[np.int64], report: Report
) -> None:
    """Streams with a row that was no number, and the first poisoned row of each."""
    if flags[: batch.rows].any():
        flagged = [run for run in batch.runs if flags[run.at : run.at + run.rows].any()]
        report.flagged.extend(run.stream for run in flagged)
    for run, key in zip(batch.runs, poisoned.tolist(), strict=True):
        if key != CLEAN:
            report.poisoned.append(Poisoned(run.stream, key & 0xFFF, key >> 12))


def note_tokens(batch: Batch, draws: Draws, report: Report) -> None:
    """The token of each run that reached the last one known; of every row, if that was asked."""
    at = 0
    for run in batch.runs:
        at += run.sampled
        if run.accepts:
            report.streams.append(run.stream)
            report.tokens.append(int(draws.tokens[at - 1]))
            report.starts.append(len(report.tokens))
        if report.every_row is not None:
            report.every_row.tokens.append(draws.tokens[at - run.sampled : at])


def note_all_sums(state: State, ledger: Ledger, inspector: Looks, report: Report) -> None:
    """The sums of every seated stream, and where its rows, summed anew, are not what they were."""
    sums: dict[StreamId, dict[str, Pair]] = {}
    report.sums = sums
    for stream in state.lanes:
        if stream is None or stream not in ledger.streams:
            continue
        table = state.tables[state.streams[stream].lane]
        kept = sums[stream] = ledger.sums(stream, table)
        found = inspector.sum(table, 0, ledger.rows(stream))
        if found != kept["rows"]:
            report.breaks.append(Break(stream, "rows", kept["rows"], found))
