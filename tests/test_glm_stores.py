"""Kept states of the tiny GLM in both stores: twice-sent prompts, few states, refused resumes."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from kvtape.core.device import Device
from kvtape.core.state import FLAT, RADIX, State
from kvtape.events import facts as f
from kvtape.events.facts import RunOpened
from kvtape.events.reader import Step
from kvtape.replay.alone import play_alone
from kvtape.replay.alone_plan import Picks, plan_alone
from kvtape.replay.audit import audit_run
from kvtape.replay.book import rebook
from kvtape.replay.forward import play_forward, read_streams, room_for
from kvtape.replay.machine import Machine
from kvtape.replay.rerun import reopened, rerun

from .glm_rig import glm_devices, glm_opened
from .replay_bench import Script, arrive, facts_of, record
from .rig import flat_plan

TEXT = [(at * at * 7 + 3 * at) % 500 for at in range(120)]
LARGE = 10**9
STORES = [RADIX, FLAT]


def opened_in(store: int, world: int = 1, **changes: Any) -> RunOpened:
    """A run of the tiny GLM that drafts two tokens a round, poisoned, with one of the stores."""
    settings: dict[str, Any] = {
        "flags": {"store": store}, "plan": flat_plan(LARGE), "world": world, "states": 16,
        "devices": ("cpu",) * world, "lanes": 2, "pages": 30, "prompt_rows": 24, "poison": "a",
    }  # fmt: skip
    return glm_opened(2, **(settings | changes))


def twice() -> Script:
    """A chat sent, sent again, and sent twice more at once; the last time undrafted."""
    chat = {"history_tokens": 68}
    names = ("fresh", "again", "more", "plain")
    fresh, again, *last = (
        arrive(name, name, TEXT[:70], 6, **chat, draft=name != "plain") for name in names
    )
    return {0: [fresh], 20: [again], 40: [*last]}


def ends_of(steps: Sequence[Step]) -> dict[str, f.RequestFinished]:
    """How each request ended."""
    ends = facts_of(steps, "request_finished")
    return {fact.request: fact for fact in ends if isinstance(fact, f.RequestFinished)}


@cache
def recorded(store: int, world: int) -> tuple[RunOpened, tuple[Step, ...]]:
    opened = opened_in(store, world, digests="full")
    return opened, tuple(record(opened, twice(), make=glm_devices))


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("store", STORES)
def test_a_chat_sent_twice_resumes_its_last_mark_and_says_the_same(store: int, world: int) -> None:
    _, steps = recorded(store, world)
    ends = ends_of(steps)
    cached = {name: end.cached_tokens for name, end in ends.items()}
    assert cached == {"fresh": 0, "again": 64, "more": 64, "plain": 64}
    assert len({end.token_sha for end in ends.values()}) == 1
    (taken,) = facts_of(steps, "snapshot_taken")
    assert isinstance(taken, f.SnapshotTaken)
    assert (taken.mark, taken.shared) == (64, store == RADIX)
    assert not facts_of(steps, "poison_read") + facts_of(steps, "sums_broken")


def test_replies_are_the_same_in_both_stores_and_at_any_number_of_ranks() -> None:
    sides = [ends_of(recorded(store, world)[1]) for store in STORES for world in (1, 2, 3)]
    assert len({end.token_sha for side in sides for end in side.values()}) == 1


@pytest.mark.parametrize("poison", ["b", "off"])
def test_another_poison_changes_no_bit_of_a_run_over_copies(poison: str) -> None:
    opened, steps = recorded(FLAT, 2)
    other = reopened(opened).model_copy(update={"poison": poison})
    with Machine(other, glm_devices) as machine:
        played = rerun(machine, steps)
    assert played.comparison.first is None
    assert played.comparison.compared["states"] > 0


@pytest.mark.parametrize("store", STORES)
def test_a_run_without_sums_resumes_too(store: int) -> None:
    flags = {"store": store, "keep_unsummed": 1}
    steps = record(opened_in(store, 2, digests="off", flags=flags), twice(), make=glm_devices)
    ends = ends_of(steps)
    assert [end.cached_tokens for end in ends.values()] == [0, 64, 64, 64]
    summed = ends_of(recorded(store, 2)[1])
    assert {end.token_sha for end in (*ends.values(), *summed.values())} == {
        summed["fresh"].token_sha
    }


def picks(session: str) -> Picks:
    return lambda request: request.session == session


@pytest.mark.parametrize("world", [1, 3])
def test_a_run_over_copies_replays_whole_alone_and_fast_forwarded(world: int) -> None:
    opened, steps = recorded(FLAT, 2)
    with Machine(reopened(opened, world=world), glm_devices) as machine:
        assert rerun(machine, steps).comparison.first is None
    for session in ("again", "plain"):
        plan = plan_alone(reopened(opened, world=world), steps, picks(session))
        with Machine(plan.opened, glm_devices) as machine:
            alone = play_alone(machine, plan)
        assert (alone.comparison.first, alone.inherited.first) == (None, None)
        assert alone.inherited.compared["states"] > 0
    streams = read_streams(opened, steps, lambda request: True)
    with Machine(room_for(reopened(opened, world=world), streams, 64), glm_devices) as machine:
        assert play_forward(machine, streams, coarse=True).comparison.first is None


def test_the_book_and_the_audit_agree_with_a_run_over_copies() -> None:
    opened, steps = recorded(FLAT, 2)
    assert rebook(opened, steps).first is None
    assert audit_run(opened, steps) == []


@pytest.mark.parametrize(("states", "hits"), [(2, 0), (4, 4)])
@pytest.mark.parametrize("store", STORES)
def test_four_chats_sent_twice_all_miss_in_a_small_store_and_all_hit_in_a_large_one(
    store: int, states: int, hits: int
) -> None:
    """In either store: so many states of 32 rows."""
    chats = {f"c{at}": TEXT[at : at + 40] for at in range(4)}
    script: Script = {
        100 * turn + 20 * at: [arrive(f"{name}r{turn}", name, text, 2, history_tokens=38)]
        for turn in range(2)
        for at, (name, text) in enumerate(chats.items())
    }
    opened = opened_in(store, states=states, plan=flat_plan(states * 40))
    ends = ends_of(record(opened, script, make=glm_devices))
    assert sum(end.cached_tokens == 32 for end in ends.values()) == hits
    for name in chats:
        assert ends[f"{name}r0"].token_sha == ends[f"{name}r1"].token_sha


def without_copies(turn: int, state: State, devices: Sequence[Device]) -> None:
    """The last rank loses the first state that was kept."""
    copies: dict[int, object] = devices[-1].copies  # type: ignore[attr-defined]
    if not state.streams:
        copies.pop(0, None)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("store", STORES)
def test_a_resume_that_one_rank_refuses_begins_at_row_0_with_an_equal_reply(
    store: int, world: int
) -> None:
    opened = opened_in(store, world)
    steps = record(opened, twice(), without_copies, make=glm_devices)
    ends = ends_of(steps)
    assert {name: end.cached_tokens for name, end in ends.items()} == {
        "fresh": 0, "again": 0, "more": 64, "plain": 64,
    }  # fmt: skip
    assert len({end.token_sha for end in ends.values()}) == 1
    (refused,) = facts_of(steps, "resume_refused")
    assert isinstance(refused, f.ResumeRefused)
    assert (refused.rank, refused.why) == (world - 1, "no_copy")
    step = next(step for step in steps if refused in step.facts)
    kinds = [fact.kind for fact in step.facts]
    at = kinds.index("resume_refused")
    assert kinds[at - 1 : at + 3] == [
        "pages_returned", "resume_refused", "state_dropped", "stream_begun",
    ]  # fmt: skip
    assert audit_run(opened, steps) == []


@pytest.mark.parametrize("store", STORES)
def test_a_burst_runs_one_prompt_and_an_edited_turn_goes_on_from_before_it(store: int) -> None:
    """As served runs decide; on two ranks, replayed on one and on three."""
    flags = {"store": store, "marks": 1, "keep_resuming": 1, "keep_at_end": 1, "prefix_wait": 1}
    chat = {"history_tokens": 68, "rewind_tokens": 35}
    edited = arrive("edited", "edited", TEXT[:36] + TEXT[90:110], 5, history_tokens=54)
    script: Script = {0: [arrive(name, name, TEXT[:70], 6, **chat) for name in "abc"], 60: [edited]}
    opened = opened_in(store, 2, flags=flags, lanes=3, digests="full")
    steps = record(opened, script, make=glm_devices)
    ends = ends_of(steps)
    cached = {name: end.cached_tokens for name, end in ends.items()}
    assert cached == {"a": 0, "b": 64, "c": 64, "edited": 32}
    assert len({ends[name].token_sha for name in "abc"}) == 1
    assert len(facts_of(steps, "stream_waits")) == 2
    assert rebook(opened, steps).first is None
    for world in (1, 3):
        with Machine(reopened(opened, world=world), glm_devices) as machine:
            assert rerun(machine, steps).comparison.first is None
