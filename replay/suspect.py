"""What a tape says against itself: broken sums, ranks that parted, states read back otherwise."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..events import commands as c
from ..events import facts as f
from ..events.ids import StreamId
from .difference import Difference
from .recording import Recording
from .rerun import numbered


@dataclass(frozen=True, slots=True)
class Suspect:
    """A contradiction at a fact: `found` in memory against `kept` before it.

    at: left is what was found, right what was kept.  layer, position and rows (each rank's bytes)
    are known where ranks parted.
    """

    kind: str
    at: Difference
    layer: int = -1
    rows: tuple[bytes, ...] = ()


def suspects(recording: Recording) -> Iterator[Suspect]:
    """Every contradiction of a tape, in its order."""
    taken: dict[int, f.SnapshotTaken] = {}
    answers: dict[tuple[int, int], c.ResumeAcked] = {}
    sessions: dict[int, str] = {}
    asked = ""
    for step in recording.steps():
        for command in step.commands:
            if isinstance(command, c.ResumeAcked):
                answers[command.stream, command.state] = command
        for seq, fact in numbered(step):
            match fact:
                case f.RequestArrived():
                    asked = fact.session
                case f.StreamQueued():
                    sessions[fact.stream] = asked
                case f.SnapshotTaken():
                    taken[fact.state] = fact
                case f.SumsBroken():
                    yield Suspect("sums_broken", _broken(seq, fact, sessions))
                case f.RanksParted():
                    yield _parted(recording, seq, fact, sessions)
                case f.StateResumed():
                    whole = taken[fact.state].mark == fact.mark
                    kept = taken[fact.state].digest if whole else {}
                    yield from _unlike(
                        step.step, seq, fact.stream, fact.mark, kept, fact.digest, sessions
                    )
                case f.ResumeRefused():
                    answer = answers.get((fact.stream, fact.state))
                    digest = {} if answer is None else answer.digest
                    kept, mark = taken[fact.state].digest, taken[fact.state].mark
                    yield from _unlike(step.step, seq, fact.stream, mark, kept, digest, sessions)
                case _:
                    pass  # nothing that could contradict


def _broken(seq: int, fact: f.SumsBroken, sessions: dict[int, str]) -> Difference:
    return Difference(
        fact.step, seq, fact.part, fact.stream, fact.rank,
        session=sessions.get(fact.stream, ""), left=fact.found, right=fact.kept,
    )  # fmt: skip


def _parted(
    recording: Recording, seq: int, fact: f.RanksParted, sessions: dict[int, str]
) -> Suspect:
    odd = next((at for at, value in enumerate(fact.values) if value != fact.values[0]), 0)
    at = Difference(
        fact.step, seq, fact.part, fact.stream, fact.ranks[odd], fact.position,
        sessions.get(fact.stream, ""), fact.values[odd], fact.values[0],
    )  # fmt: skip
    rows = tuple(_bytes(recording, blob) for blob in fact.blobs)
    return Suspect("ranks_parted", at, fact.layer, rows)


def _bytes(recording: Recording, blob: str) -> bytes:
    """A blob by its name, or the bytes themselves in hex."""
    try:
        return recording.blob(blob)
    except KeyError:
        return bytes.fromhex(blob)


def _unlike(
    step: int, seq: int, stream: StreamId, mark: int, kept: dict[str, str],
    read: dict[str, str], sessions: dict[int, str],
) -> Iterator[Suspect]:  # fmt: skip
    for part, value in kept.items():
        if value and read.get(part, "") not in ("", value):
            at = Difference(
                step, seq, part, stream, position=mark, session=sessions.get(stream, ""),
                left=read[part], right=value,
            )  # fmt: skip
            yield Suspect("state_unlike", at)
