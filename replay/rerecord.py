"""A replay kept as a tape of its own: recorded decisions, with what this replay's ranks said."""

from collections.abc import Sequence
from pathlib import Path

from ..core.device import Report
from ..core.outcome import commands_of
from ..events import commands as c
from ..events import facts as f
from ..events.facts import AnyFact, RunOpened
from ..events.records import FamilyRules
from ..events.tape import TapeWriter


class Rerecorder:
    """Writes each turn's facts; tokens and sums are this replay's, not those of the tape."""

    def __init__(self, path: Path, opened: RunOpened) -> None:
        """Raises TapeError where the tape cannot be made; an existing file is refused."""
        self._rules: FamilyRules = opened.rules
        self._writer = TapeWriter.create(path, opened)
        self._done: c.DeviceDone | None = None

    def heard(self, reports: Sequence[Report]) -> None:
        """Take the ranks' reports of the step before the next turn."""
        news = commands_of(self._rules, reports, reports[0].book)
        self._done = next(one for one in news if isinstance(one, c.DeviceDone))

    def append(self, step: int, facts: Sequence[AnyFact]) -> None:
        """Keep a turn."""
        done, self._done = self._done, None
        mine = [fact if done is None else _as_done(fact, done) for fact in facts]
        self._writer.append(step, () if done is None else (done,), mine)

    def close(self) -> None:
        """End the tape and seal it."""
        self._writer.close("replayed")


def _as_done(fact: AnyFact, done: c.DeviceDone) -> AnyFact:
    """A fact drawn from an outcome, drawn from this one."""
    if isinstance(fact, f.RowsKept):
        return f.RowsKept(streams=done.streams, starts=done.starts, tokens=done.tokens)
    if isinstance(fact, f.StepClosed) and fact.step == done.step:
        return f.StepClosed(
            step=done.step, digests=done.digests, book=done.book, flagged=done.flagged
        )
    return fact
