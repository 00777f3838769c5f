"""A whole run again: its facts from the tape, every sum that the ranks make compared with it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..core import outcome
from ..core.device import Report
from ..core.outcome import Parting
from ..events import commands as c
from ..events import facts as f
from ..events.facts import AnyFact, RunOpened
from ..events.ids import StreamId
from ..events.reader import Step
from .difference import Comparison, Difference, shares_of
from .machine import Machine, Turn

Tick = Callable[[int], None]  # told of every step that is done: a progress bar


@dataclass(slots=True)
class Played:
    """How far a replay came: steps played, reply tokens on the tape by then, what was compared.

    drafted, accepted: tokens that its rounds drafted, and those of them that were kept.
    """

    steps: int
    tokens: int
    comparison: Comparison
    drafted: int = 0
    accepted: int = 0

    def count(self, reports: Sequence[Report]) -> None:
        """Add a step's drafts, by the leader's report."""
        for drafted, accepted in reports[0].drafts.values() if reports else ():
            self.drafted += drafted
            self.accepted += accepted


def reopened(
    opened: RunOpened, *, world: int | None = None, device: str = "", poison: str | None = None
) -> RunOpened:
    """The settings of a run for another world: the plan, the pool and the rules stay the tape's."""
    world = opened.world if world is None else world
    kept = opened.devices if world == opened.world else opened.devices[:1] * world
    devices = (device,) * world if device else kept
    poison = opened.poison if poison is None else poison
    return opened.model_copy(update={"world": world, "devices": devices, "poison": poison})


def numbered(step: Step) -> Iterable[tuple[int, AnyFact]]:
    """A step's facts, each with its `seq`."""
    return zip(step.fact_seqs, step.facts, strict=True)


def rerun(
    machine: Machine,
    steps: Iterable[Step],
    *,
    with_faults: bool = False,
    tick: Tick = lambda step: None,
) -> Played:
    """Play a tape's steps until they end or a value differs; the machine is left as it then is."""
    played = Played(0, 0, Comparison())
    machine.play(_turns(machine, steps, played, with_faults, tick))
    return played


def _turns(
    machine: Machine, steps: Iterable[Step], played: Played, with_faults: bool, tick: Tick
) -> Iterator[Turn]:
    coming = iter(steps)
    step = next(coming, None)
    while step is not None:
        played.steps += 1
        played.tokens += sum(len(f.tokens) for f in step.facts if f.kind == "rows_kept")
        facts = [fact for fact in step.facts if _done_again(fact, with_faults)]
        yield Turn.of(step.step, facts, lambda state, given: given)
        played.count(machine.reports)
        tick(step.step)
        following = next(coming, None)
        if machine.reports and following is not None:
            compare_outcome(machine, step.step, following, played.comparison)
        if played.comparison.first is not None:
            return
        step = following


def _done_again(fact: AnyFact, with_faults: bool) -> bool:
    match fact:
        case f.RunOpened():
            return False
        case f.FaultInjected():
            return with_faults
        case _:
            return True


# --- one step's outcome against the facts that the tape drew from its own -------------------------


def compare_outcome(machine: Machine, step: int, told: Step, into: Comparison) -> None:
    """Compare the ranks' reports of a step with the facts of the turn that heard of it."""
    rules, reports = machine.opened.rules, machine.reports
    parted = outcome.partings(rules, reports, reports[0].book)
    if parted:
        _compare_parting(step, told, parted[0], into)
        return
    news = outcome.commands_of(rules, reports, reports[0].book)
    checks = [one for one in news if isinstance(one, c.BreakFound | c.PoisonFound)]
    if checks:
        _compare_check(step, told, checks[0], into)
        return
    for command in news:
        if isinstance(command, c.DeviceDone):
            _compare_done(machine, told, command, into)
        elif isinstance(command, c.ResumeAcked):
            _compare_resume(machine, step, told, command, into)


def _session(machine: Machine, stream: int) -> str:
    held = machine.state.streams.get(StreamId(stream))
    return "" if held is None else str(held.request.session)


def _compare_done(machine: Machine, told: Step, done: c.DeviceDone, into: Comparison) -> None:
    closed = [
        (seq, fact)
        for seq, fact in numbered(told)
        if isinstance(fact, f.StepClosed) and fact.step == done.step
    ]
    if not closed:
        return  # the run was stopped before this step was heard of
    seq, tape = closed[0]
    _compare_tokens(machine, told, done, into)
    flags = (",".join(map(str, tape.flagged)), ",".join(map(str, done.flagged)))
    into.see(Difference(done.step, seq, "flags", left=flags[0], right=flags[1]))
    same_world = all(
        len(shares[0]) == machine.opened.world for shares in tape.digests.ranks.values()
    )
    for stream in tape.digests.streams:
        rows = _rows_after(machine, told, stream)
        at = Difference(
            done.step, seq, "", stream, position=rows, session=_session(machine, stream)
        )
        ours = done.digests.of(stream) if stream in done.digests.streams else {}
        into.see_sums(at, tape.digests.of(stream), ours)
        if not same_world or not ours:
            continue
        pairs = zip(shares_of(tape.digests, stream), shares_of(done.digests, stream), strict=False)
        for rank, (left, right) in enumerate(pairs):
            into.see_sums(
                Difference(done.step, seq, "", stream, rank, rows, at.session), left, right
            )
    if tape.book:
        into.see(Difference(done.step, seq, "book", left=tape.book, right=done.book))


def _rows_after(machine: Machine, told: Step, stream: StreamId) -> int:
    """The kept rows that a step's sums are of: with the tokens that it was accepted for."""
    held = machine.state.streams.get(stream)
    if held is None:
        return -1
    kept = next((fact for fact in told.facts if isinstance(fact, f.RowsKept)), None)
    more = len(tokens_by_stream(kept).get(stream, ())) if kept is not None else 0
    return len(held.tokens) + more - 1 if more else held.rows


def _compare_tokens(machine: Machine, told: Step, done: c.DeviceDone, into: Comparison) -> None:
    ours = tokens_by_stream(done)
    for seq, fact in numbered(told):
        if isinstance(fact, f.RowsKept):
            theirs = tokens_by_stream(fact)
            for stream in theirs.keys() | ours.keys():
                sides = (theirs.get(stream, ()), ours.get(stream, ()))
                left, right = (",".join(map(str, side)) for side in sides)
                session = _session(machine, stream)
                into.see(
                    Difference(
                        done.step, seq, "tokens", stream, session=session, left=left, right=right
                    )
                )
            return


def tokens_by_stream(kept: f.RowsKept | c.DeviceDone) -> dict[int, tuple[int, ...]]:
    """The accepted tokens of each stream, ascending."""
    return {
        int(stream): tuple(kept.tokens[kept.starts[at] : kept.starts[at + 1]])
        for at, stream in sorted(enumerate(kept.streams), key=lambda pair: pair[1])
    }


def _compare_resume(
    machine: Machine, step: int, told: Step, answer: c.ResumeAcked, into: Comparison
) -> None:
    for seq, fact in numbered(told):
        if isinstance(fact, f.StateResumed) and fact.stream == answer.stream:
            at = Difference(
                step, seq, "", fact.stream, position=fact.mark,
                session=_session(machine, fact.stream),
            )  # fmt: skip
            into.see_sums(at, fact.digest, answer.digest)
            if not answer.ok and into.first is None:
                into.see(
                    Difference(
                        step, seq, "resume", fact.stream, answer.rank, fact.mark, at.session,
                        "resumed", answer.why,
                    )
                )  # fmt: skip


def _compare_parting(step: int, told: Step, parting: Parting, into: Comparison) -> None:
    """Ranks part in the replay: alike if they parted so on the tape, otherwise a difference."""
    theirs, seq = "", told.fact_seqs.start
    for at, fact in numbered(told):
        if isinstance(fact, f.RanksParted) and (fact.part, fact.stream) == (
            parting.part,
            parting.stream,
        ):
            theirs, seq = ",".join(fact.values), at
    rank = next(at for at, value in enumerate(parting.values) if value != parting.values[0])
    ours = ",".join(parting.values)
    into.see(Difference(step, seq, parting.part, parting.stream, rank, left=theirs, right=ours))


def _compare_check(
    step: int, told: Step, found: c.BreakFound | c.PoisonFound, into: Comparison
) -> None:
    """A rank's own check fails in the replay: alike if it failed so on the tape."""
    theirs, seq = "", told.fact_seqs.start
    for at, fact in numbered(told):
        if isinstance(fact, f.SumsBroken | f.PoisonRead):
            theirs, seq = _words(fact), at
    part = found.part if isinstance(found, c.BreakFound) else "poison"
    into.see(
        Difference(step, seq, part, found.stream, found.rank, left=theirs, right=_words(found))
    )


def _words(found: f.SumsBroken | f.PoisonRead | c.BreakFound | c.PoisonFound) -> str:
    if isinstance(found, f.SumsBroken | c.BreakFound):
        return f"rank {found.rank} kept {found.kept} found {found.found}"
    return f"rank {found.rank} layer {found.layer} position {found.position}"
