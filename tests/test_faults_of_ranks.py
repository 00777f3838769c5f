"""Ranks that drift: one test for each kind of fault, named for what keeps it out.

Ranks agree on nothing among themselves: rank 0 decides, and the others check. Plans that refuse a
start which pages would hold are golden tables in `test_plan.py`.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from kvtape.core.device import Running
from kvtape.core.families.fake import fake_rules
from kvtape.core.link import RankLost
from kvtape.core.pages import PageBook
from kvtape.core.state import FLAT, State
from kvtape.devices.fake import FakeDevice
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact
from kvtape.replay.ranks import Ranks

from .replay_bench import chats, fakes, opening
from .rig import Rig, arrive, flat_plan, opened_with
from .test_play import of
from .wire import Wire, listened, one_by_one, replies

TEXT = [(7 * at + at // 5) % 31 for at in range(60)]
TAMPERED = 5  # the turn before which a follower's book is changed


def crowd(before: Any = None, **changes: Any) -> Wire:
    """Chats on three ranks."""
    return listened(opening("drafted", **({"world": 3} | changes)), chats(), before=before)


# --- clocks and chance ----------------------------------------------------------------------------


def test_nothing_that_decides_or_folds_reads_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine and a follower's fold run whole where every clock refuses to be read."""

    def refuse(*_: object) -> float:
        raise RuntimeError("a clock was read")

    with monkeypatch.context() as patch:
        for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter"):
            patch.setattr(time, name, refuse)
        rig = Rig(opened_with(fake_rules(drafts=1), pages=30, states=2))
        for at in range(6):
            rig.step(arrive(f"r{at}", [at % 4 // 2, *TEXT[at // 4 :][:30]], 5, history_tokens=29))
            rig.step()
        rig.settle()
    assert of(f.StateResumed, rig)
    assert of(f.StateDropped, rig)


def test_slow_ranks_change_no_fact() -> None:
    """One rank at a time takes long over some of its steps."""

    def slow(device: Any, state: State, facts: Sequence[AnyFact]) -> None:
        if (int(device.rank) + state.step) % 4 == 0:
            time.sleep(0.01)

    wires = [crowd(), crowd(slow)]
    assert list(wires[0].facts) == list(wires[1].facts)


PROGRAM = """
from hashlib import sha256
from kvtape.devices.kernel_cache import use_cache
use_cache()
from kvtape.events.canon import encode
from kvtape.tests.replay_bench import chats, opening, record
for kind in ("drafted", "paged"):
    steps = record(opening(kind, world=2, states=3), chats())
    told = b"".join(encode(fact) for step in steps for fact in step.facts)
    print(kind, len(told), sha256(told).hexdigest())
"""


def test_no_fact_depends_on_what_a_process_salts_its_hashes_with() -> None:
    told = set()
    for salt in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONHASHSEED": salt},
        )  # fmt: skip
        told.add(run.stdout)
    assert len(told) == 1 and next(iter(told)).startswith("drafted ")


# --- what ranks agree on --------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_without_room_for_a_copy_makes_all_ranks_begin_again_alike(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Reserved, answered, then done or undone: by one decision, which every rank hears."""
    real = FakeDevice.launch

    def no_room(
        device: FakeDevice, state: State, facts: Sequence[AnyFact], **more: bool
    ) -> Running:
        has_none = int(device.rank) == rank
        mine = [one for one in facts if not (has_none and isinstance(one, f.SnapshotTaken))]
        return real(device, state, mine, **more)

    monkeypatch.setattr(FakeDevice, "launch", no_room)
    opened = opening("drafted", world=3, flags={"store": FLAT}, plan=flat_plan(10**6))
    wire = listened(opened, one_by_one([("first", TEXT), ("again", TEXT)]))
    (refused,) = wire.of("resume_refused")
    assert (refused.rank, refused.why) == (rank, "no_copy")
    assert len(set(replies(wire).values())) == 1
    books = [[heard.book for heard in spy.heard] for spy in wire.ranks]
    assert books[0] == books[1] == books[2]


def tamper(rank: int, change: Any) -> Any:
    """Changes a follower's own state before one of its turns computes."""
    turns = [0]

    def before(device: Any, state: State, facts: Sequence[AnyFact]) -> None:
        if int(device.rank) == rank:
            turns[0] += 1
            if turns[0] == TAMPERED:
                change(state)

    return before


def promise_one_more(state: State) -> None:
    """A rank that believes in another count of promised pages."""
    state.book.promised += 1


def another_clock(state: State) -> None:
    """A rank that believes in another clock of uses."""
    state.clock += 1


@pytest.mark.parametrize("change", [promise_one_more, another_clock])
@pytest.mark.parametrize("rank", [1, 2])
def test_the_first_step_whose_books_differ_ends_the_run_and_is_named(
    rank: int, change: Any
) -> None:
    """Not a later hang: the parting names step, part and ranks."""
    wire = crowd(tamper(rank, change))
    (parted,) = wire.of("ranks_parted")
    heard = wire.ranks[rank].heard
    assert (parted.part, parted.step) == ("book", step_of(wire, heard[TAMPERED - 1].facts))
    assert parted.ranks == (0, 1, 2)
    odd = [at for at, value in enumerate(parted.values) if value != parted.values[0]]
    assert odd == [rank]


def step_of(wire: Wire, facts: Sequence[AnyFact]) -> int:
    """The number of the turn with these facts."""
    return next(step.step for step in wire.steps if step.facts == tuple(facts))


@pytest.mark.parametrize("rank", [1, 2])
def test_a_follower_checks_the_pages_that_it_is_told_and_chooses_none(rank: int) -> None:
    """One whose free pages are others says so at the first lease, by its name and step."""
    opened = opening("plain", world=3)
    first = listened(opened, one_by_one([("first", TEXT)])).ranks[rank].heard[0].facts
    ranks = Ranks(opened, fakes(opened))
    try:
        ranks.states[rank - 1].book = PageBook(opened.pages, "lifo")
        with pytest.raises(RankLost) as lost:
            send_twice(ranks, 7, first)
        said = str(ranks.why(lost.value))
        assert said.startswith(f"rank {rank} failed in step 7: ") and "free list gives" in said
    finally:
        ranks.close("tried")


def send_twice(ranks: Ranks, step: int, facts: Sequence[AnyFact]) -> None:
    """A step, and another: what a rank makes of a step is heard with the next at the latest."""
    ranks.send(step, facts)
    ranks.send(step + 1, facts)


def test_every_rank_reports_the_same_hits_and_the_tape_has_them() -> None:
    """Resumes are named by state and pages on the wire, so no rank can miss what another hits."""
    wire = crowd()
    hits = wire.of("state_resumed")
    told = set()
    assert len(hits) > 2
    for hit in hits:
        tables = {
            next(heard for heard in spy.heard if hit in heard.facts).seats.get(hit.stream)
            for spy in wire.ranks
        }
        assert len(tables) == 1
        told.update(tables)
    assert len(told - {None}) > 1
