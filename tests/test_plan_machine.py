"""Planned pools in the real machine: who runs at once, who waits, who is refused; sizes scaled."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.plan import Plan, kept_states, plan
from kvtape.core.plan_wanted import Order, Sizes, Wanted
from kvtape.core.state import FLAT
from kvtape.core.store_flat import held_bytes
from kvtape.events import facts as f
from kvtape.events.ids import RequestId

from .rig import Rig, arrive, expected_reply, flat_plan, opened_with
from .test_play import of

PAGE_ROWS = 8
SIZES = Sizes(PAGE_ROWS, row_bytes=16, fixed_bytes=256, snapshot_bytes=128)
TEXT = [(at * at * 7 + 3 * at) % 61 for at in range(2048)]


def wanted(room: int, lanes: int, context: int, order: Order = "proposed") -> Wanted:
    return Wanted(room, lanes, context, SIZES, cache_bytes=4096, order=order, lends=True)


def least(lanes: int, context: int) -> Wanted:
    """The smallest room in which so many streams may start: one window, and a page for the rest."""
    asked = wanted(0, lanes, context)
    return replace(asked, room_bytes=asked.least_bytes)


def rig_of(asked: Wanted, found: Plan, drafts: int = 2, **more: object) -> Rig:
    """A machine with the pool, the lanes and the kept states of a plan."""
    opened = opened_with(
        fake_rules(drafts=drafts), lanes=asked.lanes, context=asked.context, pages=found.pool_pages,
        **({"states": kept_states(asked, found), "prompt_rows": 64} | more),
    )  # fmt: skip
    return Rig(opened)


def test_eight_streams_share_one_windows_pool_and_the_ninth_starts_when_pages_are_free() -> None:
    asked = least(9, 1024)
    found = plan(asked)
    assert (found.windows_first, found.pages) == (1, 129 + 8)
    rig = rig_of(asked, found)
    lengths = [100, 100, 100, 100, 100, 100, 100, 40, 100]
    rig.step(*(arrive(f"r{at}", TEXT[at : at + rows], 30 + at, ignore_eos=True)
               for at, rows in enumerate(lengths)))  # fmt: skip
    begun = of(f.StreamBegun, rig)
    assert len(begun) == 8, "eight run at once, of a lane each"
    assert rig.state.lanes.count(None) == 1 and list(rig.state.queue) == [8]
    assert sum(fact.promise_pages for fact in begun) <= found.pages
    last = -(-(100 + 38 + 2) // PAGE_ROWS)
    assert rig.state.book.available < last, "pages hold the ninth back, not a lane"
    while len(of(f.StreamBegun, rig)) == 8:
        rig.step()
    assert rig.finished, "it began when another had ended"
    rig.settle()
    for request, wish in rig.arrived.items():
        assert rig.replies[request] == expected_reply(rig.opened.rules, wish)


def test_a_promise_that_is_short_waits_and_what_no_pool_holds_is_refused_at_once() -> None:
    rig = Rig(opened_with(paged_rules(), pages=10, context=128))
    rig.step(arrive("first", TEXT[:60], 10, ignore_eos=True))
    facts = rig.step(
        arrive("waits", TEXT[1:30], 4, ignore_eos=True),
        arrive("never", TEXT[:90], 4),
        arrive("behind", [1], 1),
    )
    refused = [fact for fact in facts if isinstance(fact, f.RequestRefused)]
    assert [(one.request, one.reason, one.need, one.have) for one in refused] == [
        ("never", "larger_than_pool", 12, 10)
    ]
    assert len(rig.state.queue) == 2 and rig.state.book.available == 1
    rig.settle()
    order = [fact.stream for fact in of(f.StreamBegun, rig)]
    assert order == sorted(order), "one page was free, and nobody passes the head of the queue"
    assert set(rig.finished) == {"first", "waits", "behind"}


@settings(max_examples=40, deadline=None)
@given(
    lanes=st.integers(1, 12), context=st.integers(2, 70), more=st.integers(0, 60_000),
    share=st.integers(0, 3), drafts=st.integers(0, 4),
    order=st.sampled_from(["proposed", "today"]),
)  # fmt: skip
def test_a_lone_request_of_the_whole_context_always_runs(
    lanes: int, context: int, more: int, share: int, drafts: int, order: Order
) -> None:
    asked = replace(least(lanes, context), share=share, order=order)
    asked = replace(asked, room_bytes=asked.least_bytes + more)
    rig, new = rig_of(asked, plan(asked), drafts), max(1, context // 3)
    rig.step(arrive("lone", TEXT[: context - new], new, ignore_eos=True))
    (begun,) = of(f.StreamBegun, rig)
    rig.settle()
    assert rig.finished[RequestId("lone")].reason == "length"
    assert begun.promise_pages <= asked.window_pages
    expected = expected_reply(rig.opened.rules, rig.arrived[RequestId("lone")])
    assert rig.replies[RequestId("lone")] == expected


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_prompt_that_ends_eight_rows_below_the_window_runs_on_the_least_of_pages(
    lanes: int,
) -> None:
    """Also when the tree holds what other prompts left: idle pages go."""
    asked = least(lanes, 1024)
    found = plan(asked)
    rig = rig_of(asked, found, prompt_rows=256, states=4)
    for at in range(3):
        rig.step(arrive(f"before{at}", TEXT[at : 200 + at], 2, ignore_eos=True))
        rig.settle()
    held = int((rig.state.book.kept > 0).sum())
    assert held > 50 and found.pages < 129 + held
    wish = arrive("long", TEXT[400 : 400 + 1024 - 8], 8, ignore_eos=True)
    rig.step(wish)
    rig.settle()
    end = rig.finished[RequestId("long")]
    assert (end.prompt_tokens, end.new_tokens, end.cached_tokens) == (1016, 8, 0)
    assert rig.replies[RequestId("long")] == expected_reply(rig.opened.rules, wish)


def test_kept_states_are_as_many_as_the_plan_says_and_no_more() -> None:
    asked = replace(least(2, 128), share=3)
    asked = replace(asked, room_bytes=asked.least_bytes)
    found = plan(asked)
    assert (found.snapshots_bytes, found.cache_bytes, kept_states(asked, found)) == (3 * 128, 0, 3)
    rig, most = rig_of(asked, found), 0
    for at in range(6):
        rig.step(arrive(f"r{at}", [at, *TEXT[:40]], 2, ignore_eos=True))
        rig.settle()
        most = max(most, len(rig.state.kept))
        assert len(rig.state.kept) <= 3
    assert most == 3, "the bound is met"


def test_copies_keep_to_the_bytes_that_the_plan_left_for_them() -> None:
    asked = replace(least(2, 128), cache_bytes=10**6, lends=False)
    asked = replace(asked, room_bytes=asked.least_bytes + 4000)
    found = plan(asked)
    cache = found.cache_bytes
    assert 0 < cache <= 4000
    told = flat_plan(cache) | {"row_bytes": 16, "snapshot_bytes": 128}
    rig, most = rig_of(asked, found, flags={"store": FLAT}, plan=told), 0
    for at in range(8):
        rig.step(arrive(f"r{at}", [at, *TEXT[:40]], 2, history_tokens=40, ignore_eos=True))
        rig.settle()
        most = max(most, held_bytes(rig.state))
    each = 32 * 16 + 128  # of a copy at the last mark of 40 rows
    assert most == cache // each * each > each
