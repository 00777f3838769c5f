"""Replays of the GLM: states, rings, drafts and ranks; real arithmetic, real pages, real flips."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from kvtape.core.digests import ZERO, pair_hex
from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.facts import RunOpened
from kvtape.events.ids import RequestId
from kvtape.events.reader import Step
from kvtape.events.records import Sampling
from kvtape.replay.alone import play_alone
from kvtape.replay.alone_plan import Picks, plan_alone
from kvtape.replay.audit import audit_run
from kvtape.replay.book import rebook
from kvtape.replay.diff import diff_alone, diff_two
from kvtape.replay.forward import play_forward, read_streams, room_for
from kvtape.replay.inject import BadFault, Fault, Injector, Pick
from kvtape.replay.machine import Machine
from kvtape.replay.recording import Recording
from kvtape.replay.rerun import reopened, rerun
from kvtape.replay.verdict import Verdict

from .glm_rig import glm_devices, glm_opened
from .replay_bench import Script, arrive, facts_of, record

PAGE = 16
PARTS = ("rows", "keys", "states", "rings", "drafts")
TEXT = [(at * at * 7 + 3 * at) % 500 for at in range(120)]


def run_of(drafts: int = 2, **changes: Any) -> RunOpened:
    settings: dict[str, Any] = {
        "lanes": 3, "pages": 30, "prompt_rows": 24, "states": 3, "world": 2,
        "devices": ("cpu", "cpu"),
    }  # fmt: skip
    return glm_opened(drafts, **(settings | changes))


def script() -> Script:
    """Sessions that come back, one on another's state, one undrafted, one cancelled, one flush."""
    drawn = Sampling(temperature_bits=0x3F800000, top_k=40, seed=5)
    return {
        0: [
            arrive("a0", "a", TEXT[:40], 7, history_tokens=33),
            arrive("b0", "b", TEXT[3:45], 5, sampling=drawn),
        ],
        12: [
            arrive("a1", "a", TEXT[:70], 6, history_tokens=40),
            arrive("c0", "c", TEXT[:52], 9, draft=False),
        ],
        14: [arrive("b1", "b", TEXT[3:75], 4), arrive("gone", "g", TEXT[5:60], 9)],
        17: [c.Cancel(request=RequestId("gone"), why="client_left")],
        30: [arrive("a2", "a", TEXT[:90], 3, history_tokens=70), c.Flush()],
        40: [arrive("b2", "b", TEXT[3:60], 5)],
    }


@cache
def recorded(drafts: int = 2) -> tuple[RunOpened, tuple[Step, ...]]:
    """The story on two ranks, poisoned."""
    opened = run_of(drafts, poison="a")
    return opened, tuple(record(opened, script(), make=glm_devices))


def picks(session: str) -> Picks:
    return lambda request: request.session == session


def test_the_story_has_what_its_replays_are_to_show() -> None:
    _, steps = recorded()
    resumed = facts_of(steps, "state_resumed")
    taken = {
        fact.state: fact.stream
        for fact in facts_of(steps, "snapshot_taken")
        if isinstance(fact, f.SnapshotTaken)
    }
    whose = {stream: asked.session for stream, asked in arrivals(steps).items()}
    pairs = {
        (whose[fact.stream], whose[taken[fact.state]])
        for fact in resumed
        if isinstance(fact, f.StateResumed)
    }
    assert ("a", "a") in pairs and ("c", "a") in pairs, pairs
    assert any(getattr(fact, "why", "") == "evicted" for fact in facts_of(steps, "state_dropped"))
    assert facts_of(steps, "request_cancelled")
    kept = [fact for fact in facts_of(steps, "rows_kept") if isinstance(fact, f.RowsKept)]
    windows = [b - a for fact in kept for a, b in zip(fact.starts, fact.starts[1:], strict=False)]
    assert set(windows) >= {1}, "no window was refused"


def arrivals(steps: Sequence[Step]) -> dict[int, f.RequestArrived]:
    """The request of each stream."""
    found: dict[int, f.RequestArrived] = {}
    for step in steps:
        for before, fact in zip(step.facts, step.facts[1:], strict=False):
            if isinstance(before, f.RequestArrived) and isinstance(fact, f.StreamQueued):
                found[fact.stream] = before
    return found


def prompts(steps: Sequence[Step]) -> dict[int, int]:
    """The length of each stream's prompt."""
    return {stream: len(asked.prompt) for stream, asked in arrivals(steps).items()}


@pytest.mark.parametrize(("world", "poison"), [(1, "b"), (2, "a"), (3, "off"), (4, "b")])
def test_a_run_is_equal_on_any_ranks_under_any_poison(world: int, poison: str) -> None:
    opened, steps = recorded()
    with Machine(reopened(opened, world=world, poison=poison), glm_devices) as machine:
        played = rerun(machine, steps)
    assert played.comparison.first is None
    assert played.comparison.not_comparable == set()
    for part in (*PARTS, "logits", "tokens"):
        assert played.comparison.compared[part] > 5, part
    assert played.drafted > played.accepted >= 0


@pytest.mark.parametrize("session", ["a", "b", "c", "g"])
def test_a_session_alone_is_what_it_was_whosever_state_it_took_over(session: str) -> None:
    opened, steps = recorded()
    plan = plan_alone(reopened(opened, world=1), steps, picks(session))
    with Machine(plan.opened, glm_devices) as machine:
        alone = play_alone(machine, plan)
    assert (alone.comparison.first, alone.inherited.first) == (None, None)
    assert alone.comparison.not_comparable == set()
    for part in ("rows", "keys", "states", "rings") if session in "ac" else ():
        assert alone.inherited.compared[part] > 0, part


@pytest.mark.parametrize("rows", [0, 64])
def test_fast_forward_has_every_value_of_the_tape(rows: int) -> None:
    opened, steps = recorded()
    streams = read_streams(opened, steps, lambda request: True)
    room = room_for(reopened(opened, world=1, poison="b"), streams, rows)
    with Machine(room, glm_devices) as machine:
        played = play_forward(machine, streams, coarse=rows > 0)
    assert played.comparison.first is None
    assert played.comparison.not_comparable == set()
    for part in (*PARTS, "logits"):
        assert played.comparison.compared[part] > 3, part


def test_the_book_and_the_audit_agree_with_what_was_recorded() -> None:
    opened, steps = recorded()
    assert rebook(opened, steps).first is None
    assert audit_run(opened, steps) == []


# --- diffs ----------------------------------------------------------------------------------------


def test_runs_at_other_ranks_are_equal() -> None:
    opened, steps = recorded()
    alone = run_of(world=1, devices=("cpu",))
    other = Recording.of(alone, record(alone, script(), make=glm_devices))
    found = diff_two(Recording.of(opened, steps), other)
    assert found.first is None and found.verdict is Verdict.EQUAL
    assert found.not_comparable == set() and not found.notes
    for part in (*PARTS, "logits"):
        assert found.compared[part] > 3, part


def test_a_run_without_drafts_is_equal_but_for_what_only_drafts_have() -> None:
    opened, steps = recorded()
    plain = run_of(0)
    other = Recording.of(plain, record(plain, script(), make=glm_devices))
    for sides in ((Recording.of(opened, steps), other), (other, Recording.of(opened, steps))):
        found = diff_two(*sides)
        assert found.first is None and found.verdict is Verdict.EQUAL
        assert found.not_comparable == {"drafts"}
        for part in ("rows", "keys", "states", "rings", "logits", "tokens"):
            assert found.compared[part] > 3, part


# --- flipped bits ---------------------------------------------------------------------------------

FLIPS = [  # part, cache, layer, position, head, column, bit
    ("rows", "latent", 1, 17, 0, 31, 14),
    ("rows", "latent", 0, 0, 0, 0, 0),
    ("keys", "pool", 1, 11, 0, 15, 3),
    ("states", "state", 3, 0, 2, 2047, 15),
    ("states", "state", 0, 0, 1, 0, 0),
    ("rings", "qkv", 2, -1, 3, 191, 13),
    ("drafts", "latent", 0, 5, 0, 7, 9),
    ("drafts", "pool", 0, 35, 0, 2, 1),
]


@pytest.mark.parametrize(
    ("part", "cache_name", "layer", "position", "head", "column", "bit"), FLIPS, ids=str
)
def test_a_flipped_bit_is_found_live_and_named_by_the_sums_alone(
    part: str, cache_name: str, layer: int, position: int, head: int, column: int, bit: int
) -> None:
    """Position -1: the last row, wherever the stream has come to by then."""
    opened, rank = run_of(digests="full"), head // 2
    fault = Fault.parse(
        f"flip:session=a,step=4,rank={rank},part={part},layer={layer},cache={cache_name},"
        f"position={'*' if position < 0 else position},head={head},column={column},bit={bit}"
    )
    steps = injected(opened, fault, pick=lambda below: below - 1)
    (flip,) = facts_of(steps, "fault_injected")
    (broken,) = facts_of(steps, "sums_broken")
    assert isinstance(flip, f.FaultInjected) and isinstance(broken, f.SumsBroken)
    assert (broken.rank, broken.part, broken.stream) == (rank, part, flip.stream)
    found = diff_alone(Recording.of(opened, steps), glm_devices)
    assert found.verdict is Verdict.UNREPEATABLE and found.first is not None
    assert found.first.step == broken.step
    assert found.place is not None, found.notes
    one = found.place
    assert (one.part, one.cache, one.layer, one.head) == (part, cache_name, layer, head)
    assert (one.position, one.column, one.bit) == (flip.position, column, bit)
    assert one.rank == rank and one.written_by > 0
    if part in ("rows", "keys", "drafts"):
        assert one.page >= 0 and one.row == flip.position % PAGE


def injected(opened: RunOpened, fault: Fault, pick: Pick | None) -> list[Step]:
    """The story with a fault, that comes when its moment does."""
    return record(
        opened, script(), make=glm_devices, chance=lambda devices: Injector(fault, devices, pick)
    )


@pytest.mark.parametrize("part", PARTS)
def test_any_bit_of_any_part_that_is_picked_at_random_is_found(part: str) -> None:
    opened = run_of(digests="full")
    steps = injected(opened, Fault.parse(f"flip:part={part},step=5"), pick=None)
    (flip,) = facts_of(steps, "fault_injected")
    assert isinstance(flip, f.FaultInjected)
    place = diff_alone(Recording.of(opened, steps), glm_devices).place
    assert place is not None, flip
    assert (place.part, place.layer, place.cache, place.head, place.position) == (
        flip.part, flip.layer, flip.cache, flip.head, flip.position,
    )  # fmt: skip
    assert (place.column, place.bit) == (flip.column, flip.bit)


@pytest.mark.parametrize("part", ["rows", "keys"])
def test_at_level_rows_a_flip_is_found_by_the_resume_that_reads_it(part: str) -> None:
    opened = run_of()
    fault = Fault.parse(f"flip:session=a,step=3,part={part},position=3,rank=0,layer=0")
    steps = injected(opened, fault, pick=lambda below: 0)
    broken = facts_of(steps, "sums_broken")[0]
    assert isinstance(broken, f.SumsBroken) and broken.part == part
    place = diff_alone(Recording.of(opened, steps), glm_devices).place
    assert place is not None
    assert (place.part, place.position, place.column, place.bit) == (part, 3, 0, 0)


def test_at_level_rows_a_flipped_state_is_found_by_the_replay() -> None:
    """Nothing is summed in between: the logits after it are other ones than a sound replay's."""
    opened = run_of()
    fault = Fault.parse(
        "flip:session=a,step=4,part=states,position=0,rank=0,layer=0,column=1,bit=14"
    )
    steps = injected(opened, fault, pick=lambda below: 0)
    assert not facts_of(steps, "sums_broken")
    found = diff_alone(Recording.of(opened, steps), glm_devices)
    assert found.verdict is Verdict.UNREPEATABLE
    assert found.first is not None and found.first.session == "a"
    (flip,) = facts_of(steps, "fault_injected")
    at = next(step.step for step in steps if flip in step.facts)
    assert found.first.step == at
    with Machine(opened, glm_devices) as machine:
        again = rerun(machine, steps, with_faults=True)
    assert again.comparison.first is None, "with its fault the run is what it was"


@pytest.mark.parametrize("part", ["rows", "keys", "states"])
def test_a_flip_on_one_of_two_tapes_is_bisected_in_memory(part: str) -> None:
    """With its fault done again one side's memory differs, in the row that was hit or after it."""
    opened, steps = recorded()
    position = 0 if part == "states" else 7
    fault = Fault.parse(f"flip:session=a,step=4,part={part},position={position},rank=1,bit=14")
    bad = injected(run_of(poison="a"), fault, pick=lambda below: 0)
    found = diff_two(
        Recording.of(opened, bad), Recording.of(opened, steps), lambda side: glm_devices
    )
    assert found.first is not None and found.first.session in ("a", "c")
    (flip,) = facts_of(bad, "fault_injected")
    assert isinstance(flip, f.FaultInjected) and found.place is not None, found.notes
    assert found.place.written_by > 0
    if part != "states":  # which every row changes: what is left of it is what followed
        assert (found.place.part, found.place.position) == (part, position)
        assert (found.place.column, found.place.bit) == (flip.column, 14)
        assert found.place.rank == flip.rank == 1


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("part=rows,cache=k", "expected latent"),
        ("part=drafts,cache=state", "expected latent or pool"),
        ("part=logits", "rows, keys, states, rings, drafts"),
        ("part=states,layer=4", "there are 4 here"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_by_name(fault: str, says: str) -> None:
    opened = run_of()
    devices = glm_devices(opened)
    try:
        with pytest.raises(BadFault, match=says):
            Fault.parse(f"flip:{fault}").check(opened, devices)
    finally:
        for device in devices:
            device.close()


# --- what is summed when --------------------------------------------------------------------------


def test_states_are_summed_where_they_are_promised_and_nowhere_else() -> None:
    """At marks, where prompts end and where replies end: they are large, so not each step."""
    _, steps = recorded()
    seen = {True: 0, False: 0}
    ran: dict[int, f.PromptStepRun] = {}
    for step in steps:
        for fact in step.facts:
            if isinstance(fact, f.StepClosed):
                for stream in fact.digests.streams:
                    kept = {part: bool(fact.digests.of(stream).get(part)) for part in PARTS}
                    assert kept["rows"] and kept["keys"] and kept["drafts"]
                    assert kept["states"] == kept["rings"]
                    if stream in ran:
                        last = ran[stream].first + ran[stream].rows
                        promised = last % PAGE == 0 or last == prompts(steps)[stream]
                        assert kept["states"] == promised, (stream, last)
                    seen[kept["states"]] += 1
                ran = {}
            elif isinstance(fact, f.PromptStepRun):
                ran[fact.stream] = fact
            elif isinstance(fact, f.SnapshotTaken):
                assert fact.digest["states"] not in ("", pair_hex(ZERO))
    assert seen[False] > seen[True] > 5


def test_a_reply_ends_with_the_sum_of_its_states() -> None:
    _, steps = recorded()
    finished = {
        fact.stream
        for fact in facts_of(steps, "request_finished")
        if isinstance(fact, f.RequestFinished) and fact.reason == "length"
    }
    last: dict[int, str] = {}
    for fact in facts_of(steps, "step_closed"):
        assert isinstance(fact, f.StepClosed)
        for stream in fact.digests.streams:
            last[stream] = fact.digests.of(stream).get("states", "")
    assert finished and all(last[stream] for stream in finished)
