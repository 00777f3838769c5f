"""Short plays on the fake device: each test's name is a rule of the book."""

from typing import TypeVar

from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.events import facts as f
from kvtape.events.commands import Cancel, Flush
from kvtape.events.ids import RequestId, StreamId

from .rig import Rig, arrive, opened_with

PROMPT = [5 * at % 63 for at in range(40)]


Kind = TypeVar("Kind", bound=f.Fact)


def of(kind: type[Kind], rig: Rig) -> list[Kind]:
    return [fact for fact in rig.facts if isinstance(fact, kind)]


def test_a_stream_leases_the_lowest_free_pages() -> None:
    rig = Rig(opened_with(paged_rules()))
    rig.step(arrive("a", PROMPT[:20], 2), arrive("b", PROMPT[20:30], 2))
    rig.settle()
    leased = [page for fact in of(f.PagesLeased, rig) for page in fact.pages]
    assert leased == sorted(leased) == list(range(len(leased)))


def test_the_head_of_the_queue_is_passed_by_nobody() -> None:
    rig = Rig(opened_with(fake_rules(), pages=16, states=0))
    rig.step(arrive("first", PROMPT, 60))  # 13 of 16 pages are promised to it
    rig.step(arrive("large", PROMPT[:30], 20), arrive("small", [1], 2))
    assert [stream for stream in rig.state.lanes if stream is not None] == [0]
    assert rig.state.queue == [1, 2]
    rig.settle()
    assert [fact.stream for fact in of(f.StreamBegun, rig)] == [0, 1, 2]


def test_only_what_can_never_fit_is_refused() -> None:
    rig = Rig(opened_with(fake_rules(), pages=13))
    rig.step(arrive("fits", PROMPT, 60), arrive("waits", PROMPT, 60), arrive("never", PROMPT, 80))
    refused = of(f.RequestRefused, rig)
    assert [(fact.request, fact.reason) for fact in refused] == [("never", "larger_than_pool")]
    assert (refused[0].need, refused[0].have) == (15, 13)
    rig.settle()
    assert {end.reason for end in rig.finished.values()} == {"length"}


def test_a_prompt_does_not_stall_the_lanes() -> None:
    rig = Rig(opened_with(fake_rules(), prompt_rows=8))
    rig.step(arrive("talks", [1, 2, 3], 40))
    rig.step()
    rig.step(arrive("long", PROMPT, 4))
    for _ in range(3):
        kinds = {fact.kind for fact in rig.step()}
        assert {"prompt_step_run", "round_run"} <= kinds


def test_a_step_runs_no_more_prompt_rows_than_its_budget() -> None:
    rig = Rig(opened_with(fake_rules(), prompt_rows=8))
    rig.step(*(arrive(str(at), PROMPT[: 20 + at], 2) for at in range(4)))
    rig.settle()
    for step in rig.steps:
        assert sum(fact.rows for fact in step if isinstance(fact, f.PromptStepRun)) <= 8


def test_a_resume_adopts_the_pages_and_runs_the_rest() -> None:
    rig = Rig(opened_with(fake_rules()))
    for name in ("first", "second"):
        rig.step(arrive(name, PROMPT, 4))
        rig.settle()
    resumed, adopted = of(f.StateResumed, rig)[0], of(f.PagesAdopted, rig)[0]
    assert resumed.mark == 32
    assert adopted.pages == of(f.SnapshotTaken, rig)[0].pages
    assert rig.finished[RequestId("second")].cached_tokens == 32
    ran = [fact for fact in of(f.PromptStepRun, rig) if fact.stream == resumed.stream]
    assert (ran[0].first, sum(fact.rows for fact in ran)) == (32, 8)


def test_another_token_at_the_mark_is_another_state_where_the_lookahead_is_one() -> None:
    rig = Rig(opened_with(fake_rules()))
    rig.step(arrive("first", PROMPT[:34], 2))
    rig.settle()
    rig.step(arrive("second", [*PROMPT[:32], 62, 1], 2))
    rig.settle()
    assert not of(f.StateResumed, rig) or of(f.StateResumed, rig)[0].mark < 32


def test_the_same_token_short_of_the_mark_is_enough_where_there_is_no_lookahead() -> None:
    rig = Rig(opened_with(paged_rules()))
    rig.step(arrive("first", PROMPT[:34], 2))
    rig.settle()
    rig.step(arrive("second", [*PROMPT[:32], 62, 1], 2))
    rig.settle()
    assert of(f.StateResumed, rig)[0].mark == 32


def test_another_salt_shares_nothing() -> None:
    rig = Rig(opened_with(fake_rules()))
    rig.step(arrive("first", PROMPT, 2, salt="mine"))
    rig.settle()
    rig.step(arrive("second", PROMPT, 2, salt="yours"))
    rig.settle()
    assert not of(f.StateResumed, rig)


def test_a_finished_reply_is_reused_whole_where_states_are_pages_alone() -> None:
    rig = Rig(opened_with(paged_rules()))
    rig.step(arrive("first", PROMPT[:20], 13))
    rig.settle()
    turn = [*PROMPT[:20], *rig.replies[RequestId("first")], 9, 9]
    rig.step(arrive("second", turn, 2))
    rig.settle()
    assert rig.finished[RequestId("second")].cached_tokens == 32


def test_a_shorter_state_goes_when_a_longer_one_has_its_pages() -> None:
    rig = Rig(opened_with(paged_rules()))
    rig.step(arrive("first", PROMPT[:20], 13))
    rig.settle()
    dropped = of(f.StateDropped, rig)
    assert [fact.why for fact in dropped] == ["moved_past"]
    assert len(rig.state.kept) == 1


def test_a_state_moved_past_goes_before_one_that_was_never_hit() -> None:
    rig = Rig(opened_with(fake_rules(), states=3))
    rig.step(arrive("short", PROMPT[:20], 2))  # kept at 16
    rig.settle()
    rig.step(arrive("alone", [*PROMPT[20:], *PROMPT[:4]], 2))
    rig.settle()
    rig.step(arrive("long", PROMPT[:35], 2))  # kept at 32, past the first
    rig.settle()
    rig.step(arrive("fourth", [7] * 20, 2))
    rig.settle()
    assert [(fact.state, fact.why) for fact in of(f.StateDropped, rig)] == [(0, "evicted")]


def test_kept_pages_never_hold_a_stream_back() -> None:
    rig = Rig(opened_with(paged_rules(), pages=13))
    for at in range(3):
        rig.step(arrive(f"chat{at}", [at, *PROMPT[:30]], 2))
        rig.settle()
    assert rig.state.book.free < 12
    rig.step(arrive("large", [62] * 40, 60))
    assert rig.state.lanes[0] is not None
    assert {fact.why for fact in of(f.StateDropped, rig)} >= {"reclaimed"}
    rig.settle()
    assert rig.finished[RequestId("large")].cached_tokens == 0


def test_a_refused_resume_gives_the_pages_back_and_begins_at_row_0() -> None:
    rig = Rig(opened_with(fake_rules()))
    rig.step(arrive("first", PROMPT, 4))
    rig.settle()
    rig.device.refuse_resume = True
    rig.step(arrive("second", PROMPT, 4))
    rig.settle()
    kinds = [fact.kind for fact in rig.facts]
    at = kinds.index("resume_refused")
    assert kinds[at - 1] == "pages_returned"
    assert kinds[at + 1] == "state_dropped"
    assert kinds[at + 2] == "stream_begun"
    assert rig.finished[RequestId("second")].cached_tokens == 0
    assert rig.replies[RequestId("second")] == rig.replies[RequestId("first")]


def test_a_cancel_in_the_queue_or_in_a_lane_leaves_nothing_behind() -> None:
    rig = Rig(opened_with(fake_rules(), lanes=1))
    rig.step(arrive("seated", PROMPT, 20), arrive("queued", PROMPT, 20))
    rig.step(Cancel(request=RequestId("queued"), why="client left"))
    rig.step(Cancel(request=RequestId("seated"), why="client left"))
    assert rig.state.lanes == [None]
    assert not rig.state.queue
    assert rig.state.book.free + int((rig.state.book.kept > 0).sum()) == rig.state.book.total
    assert rig.state.book.promised == 0


def test_a_flush_spares_what_a_stream_is_resuming() -> None:
    rig = Rig(opened_with(fake_rules()))
    rig.step(arrive("first", PROMPT, 2))
    rig.settle()
    rig.step(arrive("second", PROMPT, 2))
    answers, rig.news = rig.news, []  # the ranks have not answered yet
    rig.step(Flush())
    assert len(rig.state.kept) == 1
    rig.news = answers
    rig.settle()
    assert rig.finished[RequestId("second")].cached_tokens == 32


def test_reclaim_spares_the_state_that_is_about_to_be_resumed() -> None:
    rig = Rig(opened_with(paged_rules(), pages=17))
    for name, prompt in (("mine", PROMPT), ("other", PROMPT[::-1])):
        rig.step(arrive(name, prompt, 2))
        rig.settle()
    rig.step(arrive("grows", [*PROMPT, 1, 2], 70))  # 9 pages more, 7 are free
    rig.settle()
    dropped = of(f.StateDropped, rig)[0]
    assert (dropped.state, dropped.why) == (1, "reclaimed")
    assert rig.finished[RequestId("grows")].cached_tokens == 40


def test_a_mark_that_was_passed_is_not_kept_later() -> None:
    rig = Rig(opened_with(fake_rules()))
    rig.step(arrive("first", PROMPT[:20], 9), arrive("second", PROMPT[:20], 30))
    while rig.state.streams[StreamId(1)].rows < 20:
        rig.step()
    rig.step(Flush())
    rig.settle()
    assert [(fact.stream, fact.mark) for fact in of(f.SnapshotTaken, rig)] == [(0, 16)]


def test_a_faulty_stream_fails_alone_and_keeps_no_state() -> None:
    rig = Rig(opened_with(paged_rules()))
    rig.step(arrive("sound", PROMPT, 12), arrive("faulty", PROMPT[::-1], 12))
    for _ in range(6):
        rig.step()
    stream = rig.state.requests[RequestId("faulty")]
    rig.device.flag.add(stream)
    before = len(of(f.SnapshotTaken, rig))
    rig.settle()
    assert rig.finished[RequestId("faulty")].reason == "fault"
    assert rig.finished[RequestId("sound")].reason == "length"
    taken = of(f.SnapshotTaken, rig)[before:]
    assert stream not in [fact.stream for fact in taken]


def test_the_same_salt_shares() -> None:
    rig = Rig(opened_with(fake_rules()))
    for name in ("first", "second"):
        rig.step(arrive(name, PROMPT, 2, salt="ours"))
        rig.settle()
    assert rig.finished[RequestId("second")].cached_tokens == 32


def test_a_hit_must_not_hold_a_stream_back() -> None:
    rig = Rig(opened_with(paged_rules(), pages=17))
    rig.step(arrive("kept", [*PROMPT, *PROMPT[:20]], 2))
    rig.settle()
    rig.step(arrive("large", [*PROMPT[:16], 1, 2], 100))  # it needs 15 pages, 9 are free
    assert rig.state.lanes[0] == 1
    rig.settle()
    assert rig.finished[RequestId("large")].cached_tokens == 0


def test_a_resume_stops_one_row_short_of_the_prompt() -> None:
    rig = Rig(opened_with(paged_rules()))
    for name in ("first", "second"):
        rig.step(arrive(name, PROMPT[:32], 2))
        rig.settle()
    assert rig.finished[RequestId("second")].cached_tokens == 24
    assert rig.replies[RequestId("second")] == rig.replies[RequestId("first")]


def test_a_mark_leaves_a_row_and_the_lookahead_to_run() -> None:
    rig = Rig(opened_with(fake_rules()))
    rig.step(arrive("exact", PROMPT[:32], 2), arrive("one_more", PROMPT[1:34], 2))
    rig.settle()
    assert {fact.stream: fact.mark for fact in of(f.SnapshotTaken, rig)} == {0: 16, 1: 32}


def test_a_faulty_reply_leaves_no_state_though_it_was_long() -> None:
    rig = Rig(opened_with(paged_rules()))
    rig.step(arrive("faulty", PROMPT[:20], 30))
    for _ in range(16):
        rig.step()
    before = len(of(f.SnapshotTaken, rig))
    rig.device.flag.add(rig.state.requests[RequestId("faulty")])
    rig.settle()
    assert rig.finished[RequestId("faulty")].reason == "fault"
    assert len(of(f.SnapshotTaken, rig)) == before


def test_a_state_that_was_hit_outlives_one_that_was_not() -> None:
    rig = Rig(opened_with(fake_rules(), states=2))
    for prompt in (PROMPT[:20], PROMPT[:20], PROMPT[20:]):  # the first is hit, the second newer
        rig.step(arrive(f"r{len(rig.arrived)}", prompt, 2))
        rig.settle()
    rig.step(arrive("third", [7] * 20, 2))
    rig.settle()
    assert [fact.state for fact in of(f.StateDropped, rig)] == [1]


def test_an_end_token_is_ignored_where_that_is_asked() -> None:
    rig = Rig(opened_with(fake_rules()))
    every = tuple(range(64))
    rig.step(
        arrive("ends", [1, 2], 5, eos=every), arrive("goes", [1, 2], 5, eos=every, ignore_eos=True)
    )
    rig.settle()
    assert {name: end.reason for name, end in rig.finished.items()} == {
        "ends": "stop",
        "goes": "length",
    }
    assert rig.finished[RequestId("ends")].new_tokens == 1
