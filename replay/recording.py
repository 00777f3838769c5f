"""What replays read: a run's settings and its steps, as often as they are asked for."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..events.errors import TapeError
from ..events.facts import RunOpened
from ..events.lock import being_written
from ..events.reader import Step, Tape
from ..events.seal import Seal

NEVER_CLOSED = "its run was never closed: this is how far it came"


class WrongUse(Exception):
    """Options that do not go together, or name what is not on the tape."""

    exit_code = 2


def open_whole(path: Path, run: int = 0) -> Tape:
    """Open a run (0: the last) of a tape whose bytes are those it was closed with, if it was."""
    tape = Tape.open(path, run or None)
    if tape.seal is Seal.BROKEN:
        tape.close()
        raise TapeError(f"{path}: its bytes changed since it was closed; `audit` says more")
    return tape


def among_runs(tape: Tape) -> str:
    """Which run of its tape is read, and how to read another; "" where there is but one."""
    others = [str(run) for run in tape.runs if run != tape.run]
    if not others:
        return ""
    which = f"run {tape.run} of {len(tape.runs)}"
    if len(others) == 1:
        return f"{which}; --run {others[0]} for the other"
    return f"{which}; --run {', '.join(others)} for the others"


def end_of(tape: Tape) -> str:
    """How a run ended that did not end in order; "" of one that did, or still goes on."""
    closed = tape.closed
    if closed is None:
        return "" if being_written(tape.path) else NEVER_CLOSED
    step = tape.at(tape.last_seq).step
    return f"the run ended at step {step}: {closed.error}" if closed.error else ""


def check_on_tape(tape: Tape, seq: int, named: str) -> None:
    """Refuse an event that the run does not have; named: how it was asked for."""
    if seq > tape.last_seq:
        raise WrongUse(f"{named}: the run has events 1 to {tape.last_seq}")


def _no_blob(name: str) -> bytes:
    raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Recording:
    """A run that was recorded, on a tape or in memory.

    rank: the one whose view is asked for, -1 for all.  last: the fact at which it is cut, -1 for
    none.  last_step: of the whole run.  hint: where its model was, "" if nobody knows.
    within: which of its tape's runs it is, "" if the only one.
    """

    opened: RunOpened
    read: Callable[[], Iterable[Step]]
    blob: Callable[[str], bytes] = _no_blob
    name: str = ""
    hint: str = ""
    rank: int = -1
    last: int = -1
    last_step: int = 0
    within: str = ""

    @staticmethod
    def of(opened: RunOpened, steps: Sequence[Step], **more: int) -> "Recording":
        """A run in memory."""
        return Recording(opened, lambda: steps, **more)  # type: ignore[arg-type]

    @staticmethod
    def on(tape: Tape, rank: int = -1, last: int = -1) -> "Recording":
        """A run of an open tape; where its weights were counts only while something is there."""
        hint = tape.hints.get("weights", "")
        return Recording(
            tape.opened, tape.steps, tape.blob, str(tape.path), hint if Path(hint).exists() else "",
            rank, last, tape.at(tape.last_seq).step, among_runs(tape),
        )  # fmt: skip

    def steps(self) -> Iterator[Step]:
        """Its steps, from the first."""
        yield from self.read() if self.last < 0 else cut_at(self.read(), self.last)

    def before(self, seq: int) -> list[Step]:
        """The whole steps before the one that holds the fact `seq`."""
        found: list[Step] = []
        for step in self.steps():
            if step.fact_seqs.stop > seq:
                break
            found.append(step)
        return found


def cut_at(steps: Iterable[Step], seq: int) -> Iterator[Step]:
    """The steps up to the fact `seq`; its own step is cut behind it."""
    for step in steps:
        if step.fact_seqs.start > seq:
            return
        count = min(len(step.facts), seq - step.fact_seqs.start + 1)
        yield Step(step.step, step.first, step.commands, step.facts[:count])
