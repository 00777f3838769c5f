"""Replays of runs over the flat store: whole, alone, fast-forwarded, re-decided, with flips."""

from collections.abc import Sequence
from functools import cache

import pytest

from kvtape.core.state import FLAT
from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.facts import RunOpened
from kvtape.events.ids import Rank, StreamId
from kvtape.events.reader import Step
from kvtape.replay.alone import play_alone
from kvtape.replay.alone_plan import Picks, plan_alone
from kvtape.replay.audit import audit_run
from kvtape.replay.book import rebook
from kvtape.replay.diff import diff_alone
from kvtape.replay.forward import play_forward, read_streams, room_for
from kvtape.replay.machine import Machine
from kvtape.replay.recording import Recording
from kvtape.replay.rerun import reopened, rerun

from .replay_bench import Script, arrive, chats, edited, facts_of, fakes, opening, record
from .rig import flat_plan

BUDGET = 90  # two or three states of these chats


def opened_flat(kind: str = "drafted", **changes: object) -> RunOpened:
    return opening(kind, flags={"store": FLAT}, plan=flat_plan(BUDGET), **changes)


@cache
def recorded(kind: str) -> tuple[RunOpened, Sequence[Step]]:
    opened = opened_flat(kind, world=2, poison="a", digests="full")
    return opened, record(opened, chats())


def picks(session: str) -> Picks:
    return lambda request: request.session == session


@pytest.mark.parametrize("kind", ["drafted", "plain"])
@pytest.mark.parametrize("world", [1, 3])
def test_a_run_is_equal_on_other_ranks_and_session_by_session(kind: str, world: int) -> None:
    opened, steps = recorded(kind)
    assert len(facts_of(steps, "state_resumed")) >= 2
    dropped = facts_of(steps, "state_dropped")
    assert "evicted" in {fact.why for fact in dropped if isinstance(fact, f.StateDropped)}
    with Machine(reopened(opened, world=world), fakes) as machine:
        assert rerun(machine, steps).comparison.first is None
    for session in ("s0", "s1", "s2"):
        plan = plan_alone(reopened(opened, world=world), steps, picks(session))
        with Machine(plan.opened, fakes) as machine:
            alone = play_alone(machine, plan)
        assert (alone.comparison.first, alone.inherited.first) == (None, None)
        assert alone.inherited.compared["rows"] > 0 or session != "s1"


@pytest.mark.parametrize("kind", ["drafted", "plain"])
def test_a_run_is_fast_forwarded_decided_again_and_audited(kind: str) -> None:
    opened, steps = recorded(kind)
    streams = read_streams(opened, steps, lambda request: True)
    with Machine(room_for(reopened(opened, world=1), streams, 0), fakes) as machine:
        assert play_forward(machine, streams).comparison.first is None
    assert rebook(opened, steps).first is None
    assert audit_run(opened, steps) == []


def test_a_run_decided_under_another_budget_parts_where_a_state_goes() -> None:
    opened, steps = recorded("plain")
    other = opened.model_copy(update={"plan": flat_plan(BUDGET - 30)})
    parted = rebook(other, steps).first
    assert parted is not None
    kinds = {fact.kind for fact in (parted.recorded, parted.decided) if fact is not None}
    assert kinds & {"state_dropped", "snapshot_taken", "stream_begun"}


def test_the_audit_sees_copies_over_their_budget_and_copies_that_hold_pages() -> None:
    opened, steps = recorded("plain")
    small = opened.model_copy(update={"plan": flat_plan(30)})
    assert any("the budget is 30" in found.says for found in audit_run(small, steps))
    changed = edited(steps, "snapshot_taken", lambda fact: fact.model_copy(update={"pages": (0,)}))
    assert any("holds pages" in found.says for found in audit_run(opened, changed))


@pytest.mark.parametrize(("part", "position"), [("rows", 5), ("drafts", 3)])
def test_a_bit_that_flipped_before_its_rows_were_copied_is_found(part: str, position: int) -> None:
    """The copy is taken with the flip in it, and the resume that reads it back says so."""
    text = [(3 * at) % 31 for at in range(40)]
    flip = c.Inject(
        rank=Rank(0), stream=StreamId(0), part=part, layer=0, cache="", position=position,
        head=0, column=1, bit=3, when="rest",
    )  # fmt: skip
    script: Script = {
        0: [arrive("first", "a", text[:30], history_tokens=28)],
        2: [flip],  # as its rows have come to the mark
        30: [arrive("again", "b", text[:30], history_tokens=28)],
    }
    steps = record(opened_flat("drafted"), script)
    broken = facts_of(steps, "sums_broken")
    assert broken and isinstance(broken[0], f.SumsBroken)
    assert (broken[0].part, broken[0].stream) == (part, 1)
    place = diff_alone(Recording.of(opened_flat("drafted"), steps), fakes).place
    assert place is not None
    assert (place.part, place.position, place.column, place.bit) == (part, position, 1, 3)
