"""Two recordings, or one against itself: the first value that differs, and its place in memory."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .deep import first_place
from .difference import Difference
from .forward import Told, read_streams
from .machine import Machine, MakeDevices
from .memory import Place
from .place import place_of, with_writer
from .recording import Recording
from .rerun import Played, Tick, reopened, rerun
from .sessions import Key, in_common
from .suspect import suspects
from .verdict import Verdict, judge_run


@dataclass(slots=True)
class Found:
    """What a diff found.

    notes: sentences for people.  not_comparable: parts that one side lacks.  tokens: computed
    again, or compared.
    """

    verdict: Verdict = Verdict.EQUAL
    first: Difference | None = None
    place: Place | None = None
    compared: Counter[str] = field(default_factory=Counter)
    not_comparable: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    steps: int = 0
    tokens: int = 0


# --- one recording against itself -----------------------------------------------------------------


def diff_alone(
    recording: Recording,
    make: MakeDevices | None,
    tick: Tick = lambda step: None,
    unplayed: str = "without a model it is not computed again",
) -> Found:
    """Its own contradictions first, then its replay; make: None to read the tape only.

    unplayed: what to say where the tape is only read.
    """
    found = Found()
    suspect = next(suspects(recording), None)
    if suspect is not None:
        found.first = suspect.at
        found.verdict = (
            Verdict.PLACEMENT if suspect.kind == "state_unlike" else Verdict.UNREPEATABLE
        )
        found.notes.append(f"the tape contradicts itself: {suspect.kind} at event {suspect.at.seq}")
        if make is not None:
            found.place = place_of(recording, suspect, make)
            if found.place is None and suspect.kind != "ranks_parted":
                found.notes.append("no single word explains the difference of the two sums")
        return found
    if make is None:
        found.notes.append(f"the tape does not contradict itself; {unplayed}")
        return found
    opened = reopened(recording.opened)

    def play() -> Played:
        with Machine(opened, make) as machine:
            return rerun(machine, recording.steps(), tick=tick)

    judged = judge_run(play)
    found.verdict, found.first = judged.verdict, judged.first
    found.compared, found.notes = judged.played.comparison.compared, [judged.why]
    found.not_comparable = judged.played.comparison.not_comparable
    found.steps, found.tokens = judged.played.steps, judged.played.tokens
    return found


# --- two recordings -------------------------------------------------------------------------------


def diff_two(
    left: Recording, right: Recording, make: Callable[[Recording], MakeDevices] | None = None
) -> Found:
    """By session, stream and kept position; then, given devices, in memory.

    Sides that do not hold the same sessions, or nothing at all, are apart: not equal.
    """
    found = Found()
    if left.rank >= 0 and right.rank >= 0 and left.name == right.name:
        _ranks_of_one(left, right, found)
        if found.first is not None:
            return found
    sides = [_by_session(side) for side in (left, right)]
    apart = _parts_apart(left, right)
    firsts: list[tuple[Difference, Told, Told]] = []
    for key, mine in sides[0].items():
        if key in sides[1]:
            first = _first_of(mine, sides[1][key], apart, found)
            found.tokens += min(len(mine.tokens), len(sides[1][key].tokens))
            if first is not None:
                firsts.append((first, mine, sides[1][key]))
    found.notes += in_common(sides[0], sides[1], differ=bool(firsts))
    if apart & found.not_comparable:
        parts = ", ".join(sorted(apart & found.not_comparable))
        found.notes.append(f"{parts}: split over ranks: each holds its own heads")
    if not firsts:
        if sides[0].keys() != sides[1].keys() or not sides[0]:
            found.verdict = Verdict.APART
        elif not found.compared:
            found.notes.append("tokens alone were compared: the tapes share no sums")
        return found
    found.first, mine, theirs = min(firsts, key=lambda one: (one[0].step, one[0].stream))
    at_once = found.first.position <= min(mine.sums, default=0)
    model = left.opened.model_digest != right.opened.model_digest or at_once
    found.verdict = Verdict.MODEL if model else Verdict.PLACEMENT
    if make is not None and found.first.position > 0:
        found.place = _deep(left, right, mine, theirs, found, make)
    return found


def _by_session(side: Recording) -> dict[Key, Told]:
    """The streams of a recording by their session and their place in it."""
    found: dict[Key, Told] = {}
    counts: Counter[str] = Counter()
    for told in read_streams(side.opened, side.steps(), lambda request: True, side.rank):
        session = str(told.request.session)
        found[session, counts[session]] = told
        counts[session] += 1
    return found


def _parts_apart(left: Recording, right: Recording) -> set[str]:
    """Split parts, where the two sides are not the same share of them."""
    shares = [(one.opened.world, one.rank) if one.rank >= 0 else None for one in (left, right)]
    return set() if shares[0] == shares[1] else set(left.opened.rules.split)


def _first_of(mine: Told, theirs: Told, apart: set[str], found: Found) -> Difference | None:
    """The first kept position, or the first token, in which two streams differ."""
    tokens = _first_token(mine, theirs)
    for position in sorted(mine.sums.keys() & theirs.sums.keys()):
        if tokens is not None and tokens.position < position:
            return tokens
        (at, ours), (_, others) = mine.sums[position], theirs.sums[position]
        for part in dict.fromkeys((*ours, *others)):
            value, other = ours.get(part, ""), others.get(part, "")
            if not value and not other:
                continue  # not summed there, on either side
            if part in apart or not value or not other:
                found.not_comparable.add(part)
            elif value != other:
                return replace(at, part=part, left=value, right=other)
            else:
                found.compared[part] += 1
    return tokens


def _first_token(mine: Told, theirs: Told) -> Difference | None:
    pairs = zip(mine.tokens, theirs.tokens, strict=False)
    position = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        return None
    later = [at for kept, (at, _) in sorted(mine.sums.items()) if kept > position]
    at = later[0] if later else Difference(-1, -1, "", mine.stream)
    return replace(
        at, part="tokens", position=position, session=str(mine.request.session),
        left=str(mine.tokens[position]), right=str(theirs.tokens[position]),
    )  # fmt: skip


def _ranks_of_one(left: Recording, right: Recording, found: Found) -> None:
    """Two ranks of one run: what they held alike is on the tape only where they parted."""
    for suspect in suspects(left):
        if suspect.kind == "ranks_parted" and len(suspect.rows) > max(left.rank, right.rank):
            a, b = suspect.rows[left.rank], suspect.rows[right.rank]
            if a != b:
                found.first = replace(suspect.at, rank=right.rank, left=a.hex(), right=b.hex())
                found.verdict = Verdict.UNREPEATABLE
                return


def _deep(
    left: Recording, right: Recording, mine: Told, theirs: Told, found: Found,
    make: Callable[[Recording], MakeDevices],
) -> Place | None:  # fmt: skip
    """Both sides again up to the position that differs, and their memory bisected."""
    assert found.first is not None
    position = found.first.position
    ends = [_end_before(told, position) for told in (mine, theirs)]
    opened = [reopened(side.opened) for side in (left, right)]
    steps = [side.before(end) for side, end in zip((left, right), ends, strict=True)]
    with (
        Machine(opened[0], make(left)) as a,
        Machine(opened[1], make(right)) as b,
    ):
        for machine, some in ((a, steps[0]), (b, steps[1])):
            rerun(machine, some, with_faults=True)
        if mine.stream not in a.state.streams or theirs.stream not in b.state.streams:
            return None
        rows = min(a.state.streams[mine.stream].rows, b.state.streams[theirs.stream].rows)
        place = first_place(a, b, (mine.stream, theirs.stream), rows)
    if place is None:
        found.notes.append("computed again, both sides hold the same: the difference was not kept")
        return None
    return with_writer(left.opened, steps[0], mine.stream, place)


def _end_before(told: Told, position: int) -> int:
    """The fact that closed the first step with at least so many kept rows."""
    return next(
        (at.seq for kept, (at, _) in sorted(told.sums.items()) if kept >= position),
        max((at.seq for at, _ in told.sums.values()), default=0),
    )
