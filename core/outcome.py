"""A step's outcome: the ranks' reports made one, and what their comparison found."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..events import commands as c
from ..events.commands import AnyCommand
from ..events.ids import Rank, StreamId
from ..events.records import Digests, FamilyRules, known
from .device import Ack, Pair, Report
from .digests import SumTable, add_pairs, pair_hex, pairs_hex

NO_STREAM = StreamId(-1)


@dataclass(slots=True)
class Parting:
    """Ranks that hold different sums of a replicated part."""

    part: str
    stream: StreamId
    values: list[str]  # by rank


def digests_of(rules: FamilyRules, reports: Sequence[Report]) -> Digests:
    """Rank 0's sums of replicated parts, sums over ranks of split ones, each rank's share."""
    lead = reports[0]
    if len(reports) == 1 and isinstance(lead.sums, SumTable) and lead.sums:
        streams, parts = lead.sums.texts()
        return known(Digests, streams=streams, parts=parts, ranks={})
    streams = tuple(sorted(lead.sums))
    held = [[report.sums[stream] for report in reports] for stream in streams]
    named = [part for part in sorted(rules.parts) if held and part in held[0][0]]
    shared = [part for part in named if part in rules.split and len(reports) > 1]
    shares = {part: [[sums[part] for sums in each] for each in held] for part in shared}
    leads = {part: [each[0][part] for each in held] for part in named if part not in shares}
    whole = leads | {part: [add_pairs(*share) for share in shares[part]] for part in shared}
    return Digests(
        streams=streams,
        parts={part: tuple(pairs_hex(whole[part])) for part in named},
        ranks={part: tuple(tuple(pairs_hex(share)) for share in shares[part]) for part in shared},
    )


def partings(rules: FamilyRules, reports: Sequence[Report], book: str) -> list[Parting]:
    """Where ranks that must agree do not: the book first, then replicated parts by stream."""
    found: list[Parting] = []
    if len(reports) == 1:
        return found
    if any(report.book != book for report in reports[1:]):
        found.append(Parting("book", NO_STREAM, [book, *(report.book for report in reports[1:])]))
    for stream, sums in sorted(reports[0].sums.items()):
        for part, pair in sums.items():
            if part in rules.split:
                continue
            others = [report.sums.get(stream, {}).get(part) for report in reports[1:]]
            if any(other != pair for other in others):
                values = [pair_hex(pair), *("" if o is None else pair_hex(o) for o in others)]
                found.append(Parting(part, stream, values))
    return found


def commands_of(rules: FamilyRules, reports: Sequence[Report], book: str) -> list[AnyCommand]:
    """What a step's reports tell: its outcome, answers to resumes, broken sums, poison."""
    lead = reports[0]
    flagged = {stream for report in reports for stream in report.flagged}
    done = known(
        c.DeviceDone,
        kind="device_done",
        step=lead.step,
        streams=tuple(lead.streams),
        starts=tuple(lead.starts),
        tokens=tuple(lead.tokens),
        flagged=tuple(sorted(flagged)),
        digests=digests_of(rules, reports),
        book=book,
    )
    return [done, *_answers(rules, reports), *_breaks(reports), *_poisons(reports)]


def _breaks(reports: Sequence[Report]) -> Iterator[c.BreakFound]:
    for report in reports:
        for broken in report.breaks:
            yield c.BreakFound(
                step=report.step,
                rank=report.rank,
                stream=broken.stream,
                part=broken.part,
                kept=pair_hex(broken.kept),
                found=pair_hex(broken.found),
            )


def _poisons(reports: Sequence[Report]) -> Iterator[c.PoisonFound]:
    for report in reports:
        for poisoned in report.poisoned:
            yield c.PoisonFound(
                step=report.step,
                rank=report.rank,
                stream=poisoned.stream,
                layer=poisoned.layer,
                position=poisoned.position,
            )


def _answers(rules: FamilyRules, reports: Sequence[Report]) -> list[c.ResumeAcked]:
    """One answer for each resume: yes if every rank says yes, with the sums over ranks."""
    answers: list[c.ResumeAcked] = []
    for at, ack in enumerate(reports[0].acks):
        mine = [report.acks[at] for report in reports]
        refused = next((rank for rank, each in enumerate(mine) if not each.ok), None)
        parted = _replicated_differ(rules, mine)
        answers.append(
            c.ResumeAcked(
                stream=ack.stream,
                state=ack.state,
                rank=Rank(refused or 0),
                ok=refused is None and not parted,
                why=mine[refused].why if refused is not None else parted,
                digest={part: _joined(rules, part, mine) for part in ack.digest},
            )
        )
    return answers


def _replicated_differ(rules: FamilyRules, acks: Sequence[Ack]) -> str:
    for part, pair in acks[0].digest.items():
        if part not in rules.split and any(ack.digest.get(part) != pair for ack in acks[1:]):
            return f"ranks_read_back_other_{part}"
    return ""


def _joined(rules: FamilyRules, part: str, acks: Sequence[Ack]) -> str:
    pairs: list[Pair] = [ack.digest.get(part, (0, 0)) for ack in acks]
    return pair_hex(add_pairs(*pairs) if part in rules.split else pairs[0])
