"""A step's outcome: the ranks' reports made one, and what their comparison found."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..events import commands as c
from ..events.commands import AnyCommand
from ..events.ids import Rank, StreamId
from ..events.records import Digests, FamilyRules, known
from .device import Ack, Pair, Report
from .digests import SumTable, add_pairs, pair_hex, pairs_hex
from .state import NO_STREAM


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
        streams, texts = lead.sums.texts()
        return known(Digests, streams=streams, parts=texts, ranks={})
    streams = tuple(sorted(lead.sums))
    held = [[report.sums[stream] for report in reports] for stream in streams]
    named = [part for part in sorted(rules.parts) if any(part in each[0] for each in held)]
    shared = [part for part in named if part in rules.split and len(reports) > 1]
    parts = {part: tuple(_texts([each[0].get(part) for each in held])) for part in named}
    ranks: dict[str, tuple[tuple[str, ...], ...]] = {}
    for part in shared:
        shares = [[sums.get(part) for sums in each] for each in held]
        parts[part] = tuple(_texts([_whole(share) for share in shares]))
        ranks[part] = tuple(tuple(_texts(share)) for share in shares)
    return known(Digests, streams=streams, parts=parts, ranks=ranks)


def _texts(pairs: Sequence[Pair | None]) -> list[str]:
    """Each pair's digits, "" for one that is not kept."""
    if None in pairs:
        return ["" if pair is None else pair_hex(pair) for pair in pairs]
    return pairs_hex([pair for pair in pairs if pair is not None])


def _whole(shares: Sequence[Pair | None]) -> Pair | None:
    """The sum over ranks, if they have one."""
    kept = [share for share in shares if share is not None]
    assert len(kept) in (0, len(shares)), "some ranks summed a part, others did not"
    return add_pairs(*kept) if kept else None


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
