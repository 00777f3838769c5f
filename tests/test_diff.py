"""Diff: the first value that differs, and for a flipped bit the very bit."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.core.link import RankLost
from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact, RunOpened
from kvtape.events.ids import Rank, StreamId
from kvtape.events.reader import Step
from kvtape.replay.diff import Found, diff_alone, diff_two
from kvtape.replay.machine import Machine, MakeDevices
from kvtape.replay.memory import read
from kvtape.replay.recording import Recording
from kvtape.replay.rerun import numbered, rerun
from kvtape.replay.verdict import Verdict

from .replay_bench import (
    Script,
    chats,
    edited,
    facts_of,
    fakes,
    opening,
    other_sum,
    record,
    streams_of,
    turned,
)

HEADS_OF = {1: [[0, 1, 2]], 2: [[0, 1], [2]], 3: [[0], [1], [2]]}


def flipped(
    kind: str, world: int, turn: int, part: str, rank: int, layer: int, head: int, position: int,
    column: int, bit: int,
) -> tuple[RunOpened, list[Step]]:  # fmt: skip
    """A run that sums its memory every step, one bit of which turns over."""
    opened = opening(kind, world=world, digests="full")
    flip = c.Inject(
        rank=Rank(rank), stream=StreamId(0), part=part, layer=layer, cache="k", position=position,
        head=head, column=column, bit=bit, when="rest",
    )  # fmt: skip
    script = chats()
    script.setdefault(turn, []).append(flip)
    return opened, record(opened, script)


def place(found: Found) -> tuple[object, ...]:
    assert found.place is not None, found.notes
    one = found.place
    return one.part, one.layer, one.head, one.position, one.column, one.bit


@settings(max_examples=30, deadline=None)
@given(
    world=st.integers(1, 3),
    layer=st.integers(0, 1),
    head=st.integers(0, 2),
    position=st.integers(0, 8),
    column=st.integers(0, 7),
    bit=st.integers(0, 15),
    turn=st.integers(2, 3),
)
def test_any_flipped_bit_of_a_row_is_found_from_the_sums_alone(
    world: int, layer: int, head: int, position: int, column: int, bit: int, turn: int
) -> None:
    rank = next(at for at, heads in enumerate(HEADS_OF[world]) if head in heads)
    wanted = ("rows", layer, head, position, column, bit)
    opened, steps = flipped("paged", world, turn, "rows", rank, layer, head, position, column, bit)
    assert facts_of(steps, "sums_broken")
    found = diff_alone(Recording.of(opened, steps), fakes)
    assert found.verdict is Verdict.UNREPEATABLE
    assert place(found) == wanted
    assert found.place is not None and found.first is not None
    assert found.place.rank == rank == found.first.rank
    assert (found.place.left ^ found.place.right) & 0xFFFF == 1 << bit
    assert found.place.distance == abs(found.place.left - found.place.right)
    _written_by(steps, found)


def _written_by(steps: Sequence[Step], found: Found) -> None:
    """The fact that is named did write that row, and the page is the one that was leased for it."""
    assert found.place is not None
    position = found.place.position
    by_seq = {
        seq: fact for step in steps for seq, fact in zip(step.fact_seqs, step.facts, strict=True)
    }
    writer = by_seq[found.place.written_by]
    assert isinstance(writer, f.PromptStepRun | f.RoundRun)
    if isinstance(writer, f.PromptStepRun):
        assert writer.first <= position < writer.first + writer.rows
    leases = [fact for fact in facts_of(steps, "pages_leased") if isinstance(fact, f.PagesLeased)]
    table = [page for lease in leases if lease.stream == 0 for page in lease.pages]
    assert found.place.page == table[position // 4] and found.place.row == position % 4


@pytest.mark.parametrize("kind", ["plain", "drafted"])
@pytest.mark.parametrize("part", ["states", "rings", "drafts"])
def test_a_flipped_bit_of_any_part_with_sums_is_found(kind: str, part: str) -> None:
    position = {"states": 0, "rings": 7, "drafts": 3}[part]
    head = {"states": 2, "rings": 2, "drafts": 0}[part]
    opened, steps = flipped(kind, 2, 2, part, 1, 0, head, position, 2, 9)
    assert facts_of(steps, "sums_broken")
    found = diff_alone(Recording.of(opened, steps), fakes)
    assert place(found) == (part, 0, head, position, 2, 9)


def test_two_flipped_words_are_not_explained_by_one() -> None:
    opened, steps = flipped("paged", 1, 2, "rows", 0, 0, 0, 1, 0, 3)

    def change(fact: AnyFact) -> AnyFact:
        assert isinstance(fact, f.SumsBroken)
        return fact.model_copy(update={"found": turned(fact.found)})

    found = diff_alone(Recording.of(opened, edited(steps, "sums_broken", change)), fakes)
    assert found.place is None and found.first is not None
    assert any("no single word" in note for note in found.notes)


@pytest.mark.parametrize("kind", ["plain", "paged"])
def test_a_kept_state_that_was_hit_is_found_when_it_is_read_back(kind: str) -> None:
    """At the level `rows` nobody looks until a resume sums what it reads."""
    opened = opening(kind)
    script = chats()
    for turn in range(12):  # the first turn at which the stream's pages are kept and it still lives
        flip = c.Inject(
            rank=Rank(0), stream=StreamId(0), part="rows", layer=0, cache="k", position=2, head=0,
            column=5, bit=1, when="rest",
        )  # fmt: skip
        tried: Script = {at: list(wishes) for at, wishes in script.items()}
        tried.setdefault(turn, []).append(flip)
        try:
            steps = record(opened, tried)
        except (RankLost, KeyError):  # the stream is not there at this turn
            continue
        if facts_of(steps, "sums_broken") or facts_of(steps, "resume_refused"):
            break
    else:
        raise AssertionError("no resume read the flipped row")
    found = diff_alone(Recording.of(opened, steps), fakes)
    assert place(found) == ("rows", 0, 0, 2, 5, 1)


def test_ranks_that_parted_are_named_without_a_model() -> None:
    opened, steps = flipped("plain", 2, 2, "rows", 1, 0, 0, 3, 2, 7)
    parted = facts_of(steps, "ranks_parted")
    assert parted and isinstance(parted[0], f.RanksParted)
    found = diff_alone(Recording.of(opened, steps), None)
    assert found.first is not None
    assert (found.first.part, found.first.rank) == (parted[0].part, 1)
    assert found.first.left != found.first.right


def test_ranks_that_parted_in_memory_are_placed_by_a_sound_replay() -> None:
    """The tape holds every rank's bytes of the row; which one is wrong, a replay says."""
    opened, steps = flipped("plain", 2, 2, "drafts", 1, 0, 0, 3, 2, 7)
    broken = facts_of(steps, "sums_broken")[0]
    assert isinstance(broken, f.SumsBroken)
    sound = diff_alone(Recording.of(opened, steps), fakes).place
    assert sound is not None
    good = sound.right.to_bytes(2, "little", signed=True)
    bad = sound.left.to_bytes(2, "little", signed=True)

    def parted(fact: AnyFact) -> AnyFact:
        assert isinstance(fact, f.SumsBroken)
        return f.RanksParted(
            step=fact.step, part="drafts", stream=fact.stream, ranks=(Rank(0), Rank(1)),
            values=(fact.kept, fact.found), layer=0, position=3,
            blobs=(_row(opened, steps, good, 2), _row(opened, steps, bad, 2)),
        )  # fmt: skip

    found = diff_alone(Recording.of(opened, edited(steps, "sums_broken", parted)), fakes)
    assert place(found) == ("drafts", 0, 0, 3, 2, 7)
    assert found.place is not None and found.place.rank == 1


def _row(opened: RunOpened, steps: Sequence[Step], element: bytes, column: int) -> str:
    """The sound row with one element as given, in hex."""
    recording = Recording.of(opened, steps)
    broken = next(
        seq for step in steps for seq, fact in numbered(step) if fact.kind == "sums_broken"
    )
    with Machine(opened, fakes) as machine:
        rerun(machine, recording.before(broken))
        row = bytearray(read(machine, StreamId(0), "drafts", 0, 3)[0])
    row[2 * column : 2 * column + 2] = element
    return bytes(row).hex()


# --- two tapes ---


def both(kind: str = "paged", **changes: object) -> tuple[Recording, Recording]:
    left, right = opening(kind), opening(kind, **changes)
    return (
        Recording.of(left, record(left, chats())),
        Recording.of(right, record(right, chats())),
    )


def deep(side: Recording) -> MakeDevices:
    return fakes


@pytest.mark.parametrize(
    "changes",
    [{"world": 3}, {"lanes": 1}, {"pages": 90, "order": "lifo"}, {"prompt_rows": 5}, {"states": 0}],
    ids=str,
)
@pytest.mark.parametrize("kind", ["paged", "drafted"])
def test_runs_of_the_same_wishes_are_equal_however_they_were_placed(
    kind: str, changes: dict[str, object]
) -> None:
    script: Script = {
        0: [wish for turn in sorted(chats()) for wish in chats()[turn] if wish.kind == "arrive"]
    }
    recordings = []
    for opened in (opening(kind), opening(kind, **changes)):
        recordings.append(Recording.of(opened, record(opened, script)))
    found = diff_two(recordings[0], recordings[1])
    assert found.first is None and found.verdict is Verdict.EQUAL
    assert found.compared["rows"] > 0 and found.compared["logits"] > 0
    assert not found.notes


def test_the_first_sum_that_differs_is_named_by_session_and_position() -> None:
    left, right = both()
    steps = list(right.steps())
    stream = streams_of(steps, "s2")[0]
    tampered = Recording.of(
        right.opened, edited(steps, "step_closed", other_sum("logits", [stream]), 2)
    )
    found = diff_two(left, tampered)
    assert found.first is not None
    assert (found.first.part, found.first.session) == ("logits", "s2")
    assert found.first.left == turned(found.first.right)
    assert found.verdict is Verdict.PLACEMENT


def test_other_words_are_named_by_their_first_token() -> None:
    left = opening("paged")
    a, b = chats(), chats()
    wish = b[1][0]
    assert isinstance(wish, c.Arrive)
    b[1][0] = wish.model_copy(update={"prompt": (*wish.prompt[:4], 30, *wish.prompt[5:])})
    found = diff_two(Recording.of(left, record(left, a)), Recording.of(left, record(left, b)), deep)
    assert found.first is not None
    assert (found.first.part, found.first.position) == ("tokens", 4)
    assert (found.first.left, found.first.right) == (str(wish.prompt[4]), "30")
    assert found.place is not None and found.place.position == 4, "the first row that is another"


def test_a_session_of_one_tape_alone_is_noted() -> None:
    left, right = both()
    less = {turn: wishes for turn, wishes in chats().items() if turn != 2}
    found = diff_two(left, Recording.of(right.opened, record(right.opened, less)))
    assert any("s2" in note and "left" in note for note in found.notes)


def test_shares_of_other_ranks_are_not_comparable_and_of_the_same_they_are() -> None:
    _, right = both(world=2)
    opened = opening("paged", world=2)
    two = Recording.of(opened, record(opened, chats()))
    assert diff_two(replace(two, rank=1), replace(right, rank=1)).not_comparable == set()
    other = diff_two(replace(two, rank=0), replace(right, rank=1))
    assert other.first is None and {"rows", "marks"} <= other.not_comparable
    assert other.compared["logits"] > 0 and other.compared["rows"] == 0


def test_two_sides_cut_before_the_difference_are_equal() -> None:
    left, right = both()
    steps = list(right.steps())
    stream = streams_of(steps, "s0")[0]
    tampered = Recording.of(
        right.opened, edited(steps, "step_closed", other_sum("rows", [stream]), 1)
    )
    found = diff_two(left, tampered)
    assert found.first is not None
    cut = found.first.seq - 1
    assert diff_two(replace(left, last=cut), replace(tampered, last=cut)).first is None


def test_a_flip_on_one_tape_is_bisected_to_its_bit() -> None:
    """With its faults done again one side's memory differs, and the first row that does is it."""
    opened = opening("paged", world=2)
    script = chats()
    flip = c.Inject(
        rank=Rank(1), stream=StreamId(0), part="rows", layer=1, cache="k", position=0, head=2,
        column=6, bit=11, when="rest",
    )  # fmt: skip
    script.setdefault(2, []).append(flip)
    bad = Recording.of(opened, record(opened, script))
    good = Recording.of(opened, record(opened, chats()))
    found = diff_two(bad, good, deep)
    assert found.first is not None and found.first.session == "s0"
    assert place(found) == ("rows", 1, 2, 0, 6, 11)
    _written_by(list(bad.steps()), found)


def test_sums_that_no_replay_makes_again_are_said_to_be_so() -> None:
    """Another model's digest on the tape; in memory, computed again, both sides are alike."""
    opened = opening("plain")
    steps = record(opened, chats())
    theirs = opened.model_copy(update={"model_digest": "ff"})
    found = diff_two(Recording.of(opened, steps), Recording.of(theirs, steps), deep)
    assert found.first is None, "the name alone makes no difference"
    tampered = edited(steps, "step_closed", other_sum("rows", streams_of(steps, "s1")), 0)
    found = diff_two(Recording.of(opened, steps), Recording.of(theirs, tampered), deep)
    assert found.verdict is Verdict.MODEL and found.place is None
    assert any("both sides hold the same" in note for note in found.notes)
