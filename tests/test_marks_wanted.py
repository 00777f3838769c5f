"""Marks where other prompts part from one: which are wanted, which are left out, who comes back."""

import pytest

from kvtape.core.evict import LRU, SEEDS
from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.marks import COMMON_LEAST, alike, common_cuts, spaced
from kvtape.core.state import FLAT, RADIX
from kvtape.core.store_flat import state_bytes
from kvtape.events import facts as f
from kvtape.events.facts import RunOpened
from kvtape.events.ids import RequestId
from kvtape.events.records import FamilyRules

from .rig import Rig, arrive, flat_plan, opened_with
from .test_play import of

STORES = [RADIX, FLAT]
FLAGS = {"marks": 1, "keep_resuming": 1, "keep_at_end": 1}
SMALL = fake_rules(page_rows=4, mark_rows=4, min_gap=8)
TEXT = [(at * at * 5 + 11 * at + at // 60) % 63 for at in range(4000)]
OTHER = [(at * 7 + at // 63) % 63 for at in range(4000)]


def opened_in(store: int, rules: FamilyRules = SMALL, **settings: object) -> RunOpened:
    """A run that plans marks in full, with one of the stores."""
    fields: dict[str, object] = {
        "flags": FLAGS | {"store": store}, "plan": flat_plan(10**6), "pages": 1200,
        "context": 4000, "prompt_rows": 512, "states": 40,
    }  # fmt: skip
    return opened_with(rules, **(fields | settings))


def send(rig: Rig, name: str, prompt: list[int], max_new: int = 2, **fields: object) -> int:
    """Ask and wait; a chat with its history up to the last two tokens. The rows it took over."""
    told: dict[str, object] = {"history_tokens": len(prompt) - 2} | fields
    rig.step(arrive(name, prompt, max_new, session=name, **told))
    rig.settle()
    return rig.finished[RequestId(name)].cached_tokens


def last_marks(rig: Rig) -> tuple[int, ...]:
    """What was planned for the last stream that began."""
    return of(f.StreamBegun, rig)[-1].marks


# --- where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "history", "others", "marks"),
    [
        (0, 41, (28, 12), [12, 28, 40]),  # the stable prefix, and what others share
        (28, 41, (28, 12), [40]),
        (0, 0, (47,), [44]),  # no history: the prompt's end
        (0, 41, (36,), [40]),  # history's end is near
        (0, 41, (40, 28, 28), [28, 40]),  # none twice
        (40, 41, (28, 12), []),
        (0, 3, (7,), []),  # too near the beginning
        (28, 41, (32,), [40]),  # too near what is resumed
    ],
)
def test_marks_of_a_prompt_of_48_tokens_in_pages_of_4(
    start: int, history: int, others: tuple[int, ...], marks: list[int]
) -> None:
    assert sorted(spaced(SMALL, 48, start, history, others)) == marks


def test_a_prompt_below_the_least_has_no_marks() -> None:
    for least, marks in ((48, [40]), (49, [])):
        assert spaced(fake_rules(4, 4, min_prompt=least), 48, 0, 41, ()) == marks


@pytest.mark.parametrize(
    ("system", "cuts"),
    [(0, []), (511, []), (512, [512]), (1023, [1023]), (1024, [1024, 512]),
     (2559, [2559, 2047]), (2560, [2560, 2048, 512])],
)  # fmt: skip
def test_a_system_part_is_kept_at_its_end_and_twice_before(system: int, cuts: list[int]) -> None:
    assert common_cuts(system) == cuts
    assert all(cut >= COMMON_LEAST for cut in cuts)


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 1600])
def test_prompts_are_alike_up_to_the_first_token_that_differs(count: int) -> None:
    one, other = tuple(TEXT[:1600]), tuple(TEXT[:count])
    assert alike(one, other) == alike(other, one) == count
    if count < 1600:
        assert alike(one, (*other, 63, *TEXT[count + 1 :])) == count


@pytest.mark.parametrize("store", STORES)
def test_history_the_latest_message_and_the_system_part_have_marks(store: int) -> None:
    rig = Rig(opened_in(store, fake_rules()))
    fields = {"history_tokens": 3400, "system_tokens": 2600, "rewind_tokens": 3100}
    send(rig, "one", TEXT[:3500], **fields)
    floored = [row // 16 * 16 for row in (552, 2088, 2600, 3100, 3400)]
    assert list(last_marks(rig)) == floored
    assert [fact.mark for fact in of(f.SnapshotTaken, rig)] == floored
    kept = {state.mark: state.common for state in rig.state.kept.values()}
    assert kept == dict(zip(floored, (True, True, True, False, False), strict=True))


@pytest.mark.parametrize("store", STORES)
def test_a_run_from_before_plans_as_it_did(store: int) -> None:
    rig = Rig(opened_in(store, fake_rules(), flags={"store": store}))
    fields = {"history_tokens": 3400, "system_tokens": 2600, "rewind_tokens": 3100}
    send(rig, "one", TEXT[:3500], **fields)
    assert last_marks(rig) == ((3392, 3488) if store == RADIX else (3392,))
    rig = Rig(opened_in(RADIX, paged_rules(), flags={}))
    send(rig, "one", TEXT[:3500], **fields)
    assert last_marks(rig) == (3496,)


@pytest.mark.parametrize("store", STORES)
def test_ids_without_a_history_have_one_mark_at_their_end_where_pages_are_shared(
    store: int,
) -> None:
    rig = Rig(opened_in(store))
    for history, marks in ((0, (44,)), (30, (28,))):
        send(rig, f"of {history}", TEXT[history : history + 48], history_tokens=history)
        assert last_marks(rig) == (marks if history or store == RADIX else ())


@pytest.mark.parametrize("store", STORES)
def test_a_mark_leaves_a_row_and_the_lookahead_to_run_whatever_is_told(store: int) -> None:
    for field in ("rewind_tokens", "history_tokens"):
        rig = Rig(opened_in(store))
        fields = {"history_tokens": 20} | {field: 48}
        send(rig, "one", TEXT[:48], **fields)
        assert last_marks(rig) == ((44,) if field == "history_tokens" else (20,))


def test_the_grid_takes_marks_of_2048_rows_of_long_prompts_alone() -> None:
    """Of the system part's three, those that fall into one cell are one."""
    rules = fake_rules(page_rows=512, mark_rows=2048, min_prompt=4096, min_gap=256)
    rig = Rig(opened_in(RADIX, rules, context=9000, prompt_rows=4096, pages=200))
    fields = {"history_tokens": 8300, "system_tokens": 4700, "rewind_tokens": 6200}
    send(rig, "long", (TEXT * 3)[:8400], **fields)
    assert last_marks(rig) == (2048, 4096, 6144, 8192)
    send(rig, "short", OTHER[:4000], history_tokens=3990)
    assert last_marks(rig) == ()


@pytest.mark.parametrize("store", STORES)
def test_no_more_marks_are_planned_than_may_be_kept_dearest_first(store: int) -> None:
    opened = opened_in(store, fake_rules())
    fields = {"history_tokens": 3400, "system_tokens": 2600, "rewind_tokens": 3100}
    for count, marks in ((0, ()), (1, (3392,)), (2, (3088, 3392)), (3, (2592, 3088, 3392))):
        room = sum(state_bytes(opened, mark) for mark in marks)
        rig = Rig(opened_in(store, fake_rules(), states=count, plan=flat_plan(room)))
        send(rig, "one", TEXT[:3500], **fields)
        assert last_marks(rig) == marks
        assert [state.mark for state in rig.state.kept.values()] == list(marks)


# --- who comes back -------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_an_edited_last_turn_resumes_before_it(store: int) -> None:
    rig = Rig(opened_in(store, fake_rules(), context=400))
    send(rig, "first", TEXT[:200], rewind_tokens=150)
    edited = [*TEXT[:150], *OTHER[:60]]
    assert send(rig, "edited", edited, rewind_tokens=150) == 144
    assert send(rig, "sent again", edited, rewind_tokens=150) == 208
    assert send(rig, "without", TEXT[:120] + OTHER[:60], rewind_tokens=120) == 0


@pytest.mark.parametrize("store", STORES)
def test_what_two_prompts_of_one_state_share_is_kept_for_the_next(store: int) -> None:
    """The third finds the state that the second used, and that both go on alike for a while."""
    rig = Rig(opened_in(store, context=400))
    send(rig, "first", TEXT[:100])  # kept at 96
    second = [*TEXT[:99], *OTHER[:100]]
    assert send(rig, "second", second) == 96
    third = [*second[:150], *TEXT[300:350]]
    assert send(rig, "third", third) == 96
    assert last_marks(rig) == (148, 196), "they share 150 tokens, and the history is 198"
    assert send(rig, "fourth", [*second[:150], *TEXT[600:640]]) == 148


@pytest.mark.parametrize(("shared", "marks"), [(98, (196,)), (99, (96, 196)), (197, (196,))])
def test_a_stable_prefix_is_half_of_the_history_at_least_and_not_all_of_it(
    shared: int, marks: tuple[int, ...]
) -> None:
    rig = Rig(opened_in(RADIX, context=400))
    send(rig, "first", TEXT[:24])
    send(rig, "second", TEXT[:shared] + [62] * 10)  # used the first one's state
    assert send(rig, "third", [*TEXT[:shared], 61, *OTHER[: 199 - shared]]) == 20
    assert last_marks(rig) == marks


@pytest.mark.parametrize("store", STORES)
def test_chats_of_one_system_part_find_it(store: int) -> None:
    rig = Rig(opened_in(store, fake_rules()))
    for at, found in enumerate((0, 800, 800)):
        prompt = [*TEXT[:813], at, *OTHER[:200]]
        assert send(rig, str(at), prompt, system_tokens=813, rewind_tokens=813) == found


def test_pages_alone_are_kept_at_the_end_and_once_at_the_system_part() -> None:
    """Every page of theirs can be resumed at; the state of the system part alone goes again."""
    rig = Rig(opened_in(RADIX, paged_rules()))
    fields = {"history_tokens": 3400, "system_tokens": 2600, "rewind_tokens": 3100}
    send(rig, "one", TEXT[:3500], 1, **fields)
    assert last_marks(rig) == (2600, 3496)
    assert [state.mark for state in rig.state.kept.values()] == [3496]
    assert send(rig, "edited", TEXT[:3105] + OTHER[:9]) == 3104
    assert send(rig, "again", TEXT[:3500]) == 3496


def test_the_marks_of_pages_alone_cost_no_other_state() -> None:
    rig = Rig(opened_in(RADIX, paged_rules(), states=2))
    send(rig, "other", OTHER[:100], 1)
    send(rig, "one", TEXT[:900], 4, system_tokens=700)
    assert len(of(f.SnapshotTaken, rig)) == 3, "both of its marks"
    assert send(rig, "other again", OTHER[:100], 1) == 96
    assert send(rig, "one again", TEXT[:900], 1) == 896


@pytest.mark.parametrize("evict", [SEEDS, LRU])
def test_a_mark_that_the_rows_have_passed_by_pages_is_resumed_all_the_same(evict: int) -> None:
    """No sums are kept of it, so none are compared that are another row's."""
    flags = FLAGS | {"evict": evict}
    rig = Rig(opened_in(RADIX, paged_rules(), flags=flags, digests="full", poison="a"))
    ends = [
        rig.finished[RequestId(name)]
        for name in ("one", "two")
        if send(rig, name, [*TEXT[:700], ord(name[0]) % 63, *OTHER[:300]], system_tokens=700) >= 0
    ]
    assert [end.cached_tokens for end in ends] == [0, 696]
    assert not of(f.ResumeRefused, rig)


# --- who goes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_what_many_prompts_share_is_moved_past_by_none_of_them(store: int) -> None:
    """Three states: the system part's, and of two chats; a third chat's takes the oldest chat's."""
    rules = fake_rules()
    sizes = [state_bytes(opened_in(store, rules), mark) for mark in (800, 1008, 1008)]
    rig = Rig(opened_in(store, rules, states=3, plan=flat_plan(sum(sizes))))
    for at in range(3):
        send(rig, str(at), [*TEXT[:813], at, *OTHER[:200]], system_tokens=813)
    assert [(state.mark, state.by) for state in rig.state.kept.values()] == [
        (800, 0), (1008, 1), (1008, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("store", STORES)
def test_an_older_turn_of_another_chat_goes_before_what_is_longest_unused(store: int) -> None:
    """It was moved past by a later state that is longer, not by the prompt that needs the room."""
    opened = opened_in(store, fake_rules())
    room = sum(state_bytes(opened, mark) for mark in (48, 96, 192))
    rig = Rig(opened_in(store, fake_rules(), states=3, plan=flat_plan(room)))
    send(rig, "unused", OTHER[:50])
    send(rig, "turn", TEXT[:100])
    send(rig, "next turn", TEXT[:200])
    send(rig, "new", OTHER[1000:1050])
    assert [state.mark for state in rig.state.kept.values()] == [48, 192, 48]


@pytest.mark.parametrize("case", ["other text", "other salt", "kept before"])
def test_a_copy_is_moved_past_by_a_later_longer_one_of_its_own_text_alone(case: str) -> None:
    """So the longest unused goes, not the one that only seems to be an older turn."""
    longer = [62] * 48 + OTHER[48:100] if case == "other text" else OTHER[:100]
    turns = [("short", OTHER[:50], ""), ("long", longer, "salt" if case == "other salt" else "")]
    opened = opened_in(FLAT, fake_rules())
    room = sum(state_bytes(opened, mark) for mark in (48, 48, 96))
    rig = Rig(opened_in(FLAT, fake_rules(), plan=flat_plan(room)))
    send(rig, "unused", TEXT[:50])
    for name, text, salt in reversed(turns) if case == "kept before" else turns:
        send(rig, name, text, salt=salt)
    send(rig, "new", TEXT[1000:1050])
    assert [fact.state for fact in of(f.StateDropped, rig)] == [0]
    assert send(rig, "short again", OTHER[:50]) == 48


@pytest.mark.parametrize("store", STORES)
def test_marks_of_one_prompt_do_not_push_each_other_out_while_others_can_go(store: int) -> None:
    opened = opened_in(store, fake_rules())
    room = sum(state_bytes(opened, mark) for mark in (144, 192))
    rig = Rig(opened_in(store, fake_rules(), states=2, plan=flat_plan(room)))
    send(rig, "old", OTHER[:60], rewind_tokens=33)
    send(rig, "new", TEXT[:200], rewind_tokens=150)
    assert [(state.mark, state.by) for state in rig.state.kept.values()] == [(144, 1), (192, 1)]
    assert send(rig, "edited", TEXT[:150] + OTHER[:20]) == 144


def resumed_under_pressure(store: int, flags: dict[str, int], **settings: object) -> Rig:
    """A prompt is sent again while others need what it resumes, before the ranks have answered."""
    rig = Rig(opened_in(store, fake_rules(), flags=flags | {"store": store}, **settings))
    send(rig, "kept", TEXT[:40])
    send(rig, "idle", OTHER[500:540])
    rig.step(arrive("again", TEXT[:40], 2, history_tokens=38))
    answers = [one for one in rig.news if one.kind == "resume_acked"]
    rig.news = [one for one in rig.news if one.kind != "resume_acked"]
    rig.step(arrive("new", OTHER[:40], 2, history_tokens=38))
    rig.step()
    rig.news += answers
    rig.settle()
    return rig


@pytest.mark.parametrize("flags", [FLAGS, {}])
def test_a_state_that_is_being_resumed_is_not_evicted(flags: dict[str, int]) -> None:
    """Before the behaviour it went, though another was idle, and its resume was refused."""
    rig = resumed_under_pressure(RADIX, flags, states=2)
    refused = [fact.why for fact in of(f.ResumeRefused, rig)]
    cached = rig.finished[RequestId("again")].cached_tokens
    assert (refused, cached) == (([], 32) if flags else (["dropped"], 0))


@pytest.mark.parametrize("rules", [fake_rules(), paged_rules()])
def test_nothing_is_kept_where_all_that_could_go_is_being_resumed(rules: FamilyRules) -> None:
    rig = Rig(opened_in(RADIX, rules, states=1))
    send(rig, "kept", TEXT[:40])
    rig.step(
        arrive("again", TEXT[:40], 2, history_tokens=38),
        arrive("new", OTHER[:40], 2, history_tokens=38),
    )
    answers = [one for one in rig.news if one.kind == "resume_acked"]
    rig.news = [one for one in rig.news if one.kind != "resume_acked"]
    for _ in range(4):
        rig.step()
    assert [state.by for state in rig.state.kept.values()] == [0]
    rig.news += answers
    rig.settle()
    assert rig.finished[RequestId("again")].cached_tokens == 32


@pytest.mark.parametrize("flags", [FLAGS, {}])
def test_a_state_that_is_being_resumed_is_not_reclaimed(flags: dict[str, int]) -> None:
    """Nobody leases its pages past the mark, so it is the first to go for who comes in its turn."""
    rig = Rig(opened_in(RADIX, paged_rules(), flags=flags, pages=18, context=100))
    send(rig, "kept", TEXT[:80], 1)
    send(rig, "idle", OTHER[:40], 1)
    rig.step(arrive("again", TEXT[:40], 2), arrive("new", OTHER[900:925], 2))
    rig.settle()
    refused = [fact.why for fact in of(f.ResumeRefused, rig)]
    cached = rig.finished[RequestId("again")].cached_tokens
    assert (refused, cached) == (([], 32) if flags else (["dropped"], 0))
    (dropped, *_) = [fact for fact in of(f.StateDropped, rig) if fact.why == "reclaimed"]
    assert dropped.state == (1 if flags else 0)


# --- at a reply's end -----------------------------------------------------------------------------


def unfinished() -> FamilyRules:
    """Pages alone that a finished stream leaves nothing of."""
    return paged_rules().model_copy(update={"finish_marks": False})


@pytest.mark.parametrize("flags", [FLAGS, {}])
@pytest.mark.parametrize("rules", [fake_rules(), paged_rules(), unfinished()])
def test_a_prompt_is_kept_though_its_reply_is_one_token(
    rules: FamilyRules, flags: dict[str, int]
) -> None:
    """Before the behaviour it was not, where nothing but the prompt's end is kept."""
    rig = Rig(opened_in(RADIX, rules, flags=flags))
    send(rig, "first", TEXT[:47], 1)
    lost = not flags and rules == unfinished()
    expected = 32 if rules.snapshots else 40
    assert send(rig, "again", TEXT[:47], 1) == (0 if lost else expected)


def test_a_faulty_reply_keeps_nothing_at_its_end() -> None:
    rig = Rig(opened_in(RADIX, unfinished()))
    rig.step(arrive("first", TEXT[:47], 1))
    for _ in range(2):
        rig.news = [
            one.model_copy(update={"flagged": (0,)}) if one.kind == "device_done" else one
            for one in rig.news
        ]
        rig.step()
    rig.settle()
    assert rig.finished[RequestId("first")].reason == "fault"
    assert not rig.state.kept
