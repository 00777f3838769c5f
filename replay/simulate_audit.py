"""The audit of a simulated run's tape: every byte, every fact folded, the invariants in samples."""

from pathlib import Path
from typing import cast

from ..core.apply import apply
from ..core.check import check
from ..core.state import State, open_state
from ..devices.kernel_cache import keep_book
from ..events.chain import FACT
from ..events.commands import AnyCommand
from ..events.facts import AnyFact, RunOpened
from ..events.stored import StoredRow
from ..events.verify import Finding, find

EVERY = 1000  # steps from one whole look at the invariants to the next; a look costs as many pages


class _Folding:
    """The state of a run as its rows are read; the first that does not fit ends it."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.broken: list[Finding] = []
        self._step = 0  # whose facts are being applied

    def look(self, row: StoredRow, record: AnyCommand | AnyFact) -> None:
        """Apply a fact."""
        if self.broken or row.side != FACT:
            return
        try:
            if isinstance(record, RunOpened):
                keep_book()
                self.state = open_state(record)
            assert self.state is not None, "a fact comes before its run is opened"
            if row.step != self._step and row.step % EVERY == 0:
                check(self.state)  # the steps before are whole
            self._step = row.step
            apply(self.state, cast(AnyFact, record))
        except (AssertionError, KeyError, IndexError, ValueError) as error:
            says = f"{type(error).__name__}: {error}"
            self.broken.append(Finding("state", f"event {row.seq}, {record.kind}", says))

    def end(self) -> list[Finding]:
        """What is wrong with the whole."""
        state = self.state
        if not self.broken and (state is None or not state.closed or state.streams):
            self.broken.append(Finding("state", "the end", "the run is not closed, or not empty"))
        return self.broken


def audit_simulated(path: Path) -> list[Finding]:
    """What is wrong with a tape: its chain and content, a fact that does not fit, a state."""
    folding = _Folding()
    found = list(find(path, folding.look))
    return found or folding.end()  # rows that are not as written say nothing of the state
