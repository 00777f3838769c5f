"""The two stores of kept states on the fake device: what hits, what misses, and who goes first."""

from collections.abc import Sequence

import pytest

from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.state import FLAT, RADIX
from kvtape.core.store_flat import held_bytes, state_bytes
from kvtape.events import facts as f
from kvtape.events.facts import RunOpened
from kvtape.events.ids import RequestId
from kvtape.events.records import FamilyRules

from .rig import Rig, arrive, flat_plan, opened_with
from .test_play import of

PROMPT = [5 * at % 63 for at in range(40)]
LARGE = 10**6


def opened_in(
    store: int, budget: int = LARGE, *, rules: FamilyRules | None = None, **settings: object
) -> RunOpened:
    """A small run with one of the stores, the flat one within so many bytes."""
    kept: dict[str, object] = {"flags": {"store": store}, "plan": flat_plan(budget)}
    return opened_with(rules or fake_rules(), **(kept | settings))


def ask(
    rig: Rig,
    name: str,
    prompt: Sequence[int],
    max_new: int = 4,
    *,
    history: int = -1,
    salt: str = "",
) -> f.RequestFinished:  # fmt: skip
    """Ask and wait; a chat, whose history is the prompt but its last two tokens."""
    kept = len(prompt) - 2 if history < 0 else history
    rig.step(arrive(name, prompt, max_new, history_tokens=kept, salt=salt))
    rig.settle()
    return rig.finished[RequestId(name)]


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("poison", ["off", "a", "b"])
@pytest.mark.parametrize("store", [RADIX, FLAT])
def test_a_chat_sent_twice_resumes_its_last_mark_with_an_equal_reply(
    store: int, poison: str, drafts: int
) -> None:
    rules = fake_rules(drafts=drafts)
    rig = Rig(opened_in(store, rules=rules, poison=poison, digests="full"))
    fresh, again = ask(rig, "fresh", PROMPT, 9), ask(rig, "again", PROMPT, 9)
    assert (fresh.cached_tokens, again.cached_tokens) == (0, 32)
    assert fresh.token_sha == again.token_sha
    assert [fact.shared for fact in of(f.SnapshotTaken, rig)] == [store == RADIX]


@pytest.mark.parametrize("digests", ["off", "book"])
@pytest.mark.parametrize("store", [RADIX, FLAT])
def test_prompts_are_kept_where_no_rows_are_summed_too(store: int, digests: str) -> None:
    """A tape from before the flag is decided as it was."""
    for unsummed, cached in ((0, 0), (1, 32)):
        flags = {"store": store, "keep_unsummed": unsummed}
        rig = Rig(opened_in(store, digests=digests, flags=flags))
        fresh, again = ask(rig, "fresh", PROMPT), ask(rig, "again", PROMPT)
        assert (again.cached_tokens, again.token_sha) == (cached, fresh.token_sha)


@pytest.mark.parametrize("digests", ["off", "book"])
def test_a_finished_reply_is_kept_where_no_rows_are_summed_too(digests: str) -> None:
    rig = Rig(opened_in(RADIX, rules=paged_rules(), digests=digests, flags={"keep_unsummed": 1}))
    ask(rig, "first", PROMPT[:20], 13)
    turn = [*PROMPT[:20], *rig.replies[RequestId("first")], 9, 9]
    assert ask(rig, "second", turn).cached_tokens == 32


@pytest.mark.parametrize("store", [RADIX, FLAT])
def test_a_prompt_of_ids_gains_a_mark_in_the_radix_store_only(store: int) -> None:
    rig = Rig(opened_in(store))
    for name in ("fresh", "again"):
        end = ask(rig, name, PROMPT, history=0)
    assert end.cached_tokens == (32 if store == RADIX else 0)
    assert len(rig.state.kept) == (1 if store == RADIX else 0)


@pytest.mark.parametrize("store", [RADIX, FLAT])
def test_another_token_at_the_mark_misses(store: int) -> None:
    for last, cached in ((PROMPT[32], 32), (62, 0)):
        rig = Rig(opened_in(store))
        ask(rig, "first", PROMPT)
        end = ask(rig, "second", [*PROMPT[:32], last, 1])
        assert end.cached_tokens == cached


@pytest.mark.parametrize("store", [RADIX, FLAT])
def test_equal_prompts_under_other_salts_share_nothing(store: int) -> None:
    rig = Rig(opened_in(store))
    assert ask(rig, "mine", PROMPT, salt="mine").cached_tokens == 0
    assert ask(rig, "yours", PROMPT, salt="yours").cached_tokens == 0
    assert ask(rig, "mine again", PROMPT, salt="mine").cached_tokens == 32


@pytest.mark.parametrize("store", [RADIX, FLAT])
def test_the_longest_kept_prefix_is_resumed(store: int) -> None:
    rig = Rig(opened_in(store))
    text = PROMPT * 2
    for length in (20, 36, 52):
        ask(rig, f"of {length}", text[:length])
    assert sorted(kept.mark for kept in rig.state.kept.values()) == [16, 32, 48]
    assert ask(rig, "longer", text[:60]).cached_tokens == 48
    assert ask(rig, "edited", [*text[:33], 62, *text[34:60]]).cached_tokens == 32


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("store", [RADIX, FLAT])
def test_a_resume_leaves_a_row_to_run(store: int, lookahead: int) -> None:
    rig = Rig(opened_in(store, rules=fake_rules(lookahead=lookahead)))
    ask(rig, "longer", PROMPT[:36])
    fresh = ask(rig, "at the mark", PROMPT[:32], history=0)
    assert fresh.cached_tokens == 0, "row 31 draws, and the state at 32 has passed it"


@pytest.mark.parametrize("store", [RADIX, FLAT])
def test_a_refused_resume_begins_at_row_0_with_an_equal_reply_and_the_state_is_gone(
    store: int,
) -> None:
    rig = Rig(opened_in(store))
    fresh = ask(rig, "fresh", PROMPT)
    free = rig.state.book.free
    rig.device.refuse_resume = True
    again = ask(rig, "again", PROMPT)
    assert (again.cached_tokens, again.token_sha) == (0, fresh.token_sha)
    kinds = [fact.kind for fact in rig.facts]
    at = kinds.index("resume_refused")
    assert kinds[at - 1 : at + 3 : 2] == ["pages_returned", "state_dropped"]
    returned = of(f.PagesReturned, rig)[1]
    assert len(returned.pages) == 4 and returned.stream == 1
    assert rig.state.book.free == free, "the pages of the refused resume are back"
    assert list(rig.state.kept) == [1], "it kept its own"


def test_two_that_resume_one_copy_at_once_have_pages_of_their_own() -> None:
    rig = Rig(opened_in(FLAT, digests="full"))
    fresh = ask(rig, "fresh", PROMPT)
    rig.step(*(arrive(name, PROMPT, 4, history_tokens=38) for name in ("one", "two")))
    tables = [rig.state.table(stream) for stream in rig.state.streams.values()]
    assert [len(table) for table in tables] == [4, 4]
    assert not set(tables[0]) & set(tables[1])
    rig.settle()
    for name in ("one", "two"):
        end = rig.finished[RequestId(name)]
        assert (end.cached_tokens, end.token_sha) == (32, fresh.token_sha)


def test_pages_are_leased_before_a_copy_comes_in_and_hold_nothing_else() -> None:
    rig = Rig(opened_in(FLAT, poison="a"))
    ask(rig, "fresh", PROMPT)
    rig.step(arrive("again", PROMPT, 4, history_tokens=38))
    begun, leased = rig.steps[-1][-2:]
    assert isinstance(begun, f.StreamBegun) and isinstance(leased, f.PagesLeased)
    assert (begun.kept_pages, begun.state, begun.promise_pages) == (0, 0, 6)
    assert (leased.first, len(leased.pages)) == (0, 4)
    assert not rig.state.book.kept.any(), "a copy holds no page"


def test_two_prompts_that_part_at_the_token_after_a_page_do_not_share_it() -> None:
    """What a page's last row holds of the drafter depends on the token after it."""
    rig = Rig(opened_in(RADIX, rules=fake_rules(mark_rows=8)))
    ask(rig, "one", PROMPT[:20], history=0)
    ask(rig, "other", [*PROMPT[:16], 62, *PROMPT[17:20]], history=0)
    one, other = (kept.pages for kept in rig.state.kept.values())
    assert (len(one), len(other)) == (2, 2)
    assert one[0] == other[0], "the first page and the token after it are equal"
    assert one[1] != other[1], "the token after the second page is another"


# --- who goes first -------------------------------------------------------------------------------


def test_a_state_over_the_budget_is_not_kept_and_the_next_send_runs_whole() -> None:
    bytes_at_32 = state_bytes(opened_in(FLAT), 32)
    for budget, cached in ((bytes_at_32 - 1, 0), (bytes_at_32, 32)):
        rig = Rig(opened_in(FLAT, budget))
        ask(rig, "fresh", PROMPT)
        assert ask(rig, "again", PROMPT).cached_tokens == cached
        assert not of(f.StateDropped, rig)


def test_what_a_prompt_moved_past_goes_first_then_the_longest_unused() -> None:
    text, budget = PROMPT * 2, 16 + 16 + 32 + 3 * 8
    rig = Rig(opened_in(FLAT, budget))
    ask(rig, "other", PROMPT[20:])
    ask(rig, "short", text[:20])
    ask(rig, "other again", PROMPT[20:])  # the short one is now the longest unused
    ask(rig, "third", [7] * 20)
    ask(rig, "longer", text[:36])  # 40 more bytes, of 88: the short one goes, and it is enough
    dropped = of(f.StateDropped, rig)
    assert [(fact.state, fact.why) for fact in dropped] == [(1, "evicted")]
    ask(rig, "fourth", [9] * 20)
    assert [fact.state for fact in of(f.StateDropped, rig)] == [1, 0]
    assert held_bytes(rig.state) == 32 + 16 + 16 + 3 * 8 == budget


def test_nothing_goes_for_a_state_that_would_not_fit_anyway() -> None:
    rig = Rig(opened_in(FLAT, 50))
    ask(rig, "short", PROMPT[20:])
    ask(rig, "long", (PROMPT * 2)[:60])
    assert [kept.mark for kept in rig.state.kept.values()] == [16]
    assert not of(f.StateDropped, rig)


@pytest.mark.parametrize(("states_of_room", "kept"), [(1, [0]), (1.97, [0]), (2, [0, 1])])
def test_a_copy_that_is_being_resumed_stays_though_room_is_short(
    states_of_room: float, kept: list[int]
) -> None:
    """With 47 bytes a second state of 24 is short of one."""
    rig = Rig(opened_in(FLAT, int(states_of_room * state_bytes(opened_in(FLAT), 16))))
    ask(rig, "kept", PROMPT[:20])
    wishes = {"again": PROMPT[:20], "other": [7] * 20}
    rig.step(*(arrive(name, prompt, 4, history_tokens=18) for name, prompt in wishes.items()))
    answers, rig.news = rig.news, []
    rig.news += [one for one in answers if one.kind != "resume_acked"]
    rig.step()  # the other has come to its mark before the ranks have answered
    assert rig.state.streams[rig.state.requests[RequestId("other")]].rows >= 16
    assert list(rig.state.kept) == kept
    rig.news += [one for one in answers if one.kind == "resume_acked"]
    rig.settle()
    assert rig.finished[RequestId("again")].cached_tokens == 16


@pytest.mark.parametrize(("states", "hits"), [(4, 0), (16, 6)])
def test_six_chats_sent_twice_push_each_other_out_of_few_states_and_all_hit_in_many(
    states: int, hits: int
) -> None:
    rig = Rig(opened_in(RADIX, states=states, pages=120))
    for turn in ("first", "second"):
        ends = [ask(rig, f"{turn}{at}", [at, *PROMPT[:30]]) for at in range(6)]
        assert len(rig.state.kept) <= states
    assert [end.cached_tokens for end in ends].count(16) == hits
    assert len(of(f.StateResumed, rig)) == hits
