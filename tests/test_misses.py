"""Why prompts were resumed no further: every reason, on a real machine in both stores."""

import pytest

from kvtape.core.evict import POLICIES
from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.lookups import Reason, said
from kvtape.core.state import FLAT, RADIX
from kvtape.core.store_flat import state_bytes
from kvtape.events import facts as f
from kvtape.events.commands import Flush
from kvtape.events.ids import RequestId

from .misses_rig import Watched
from .rig import arrive
from .test_stores import PROMPT, ask, opened_in

BOTH = pytest.mark.parametrize("store", [RADIX, FLAT])


@BOTH
def test_a_prompt_that_comes_again_is_resumed_at_its_last_mark(store: int) -> None:
    rig = Watched(opened_in(store))
    for name in ("fresh", "again"):
        ask(rig, name, PROMPT)
    fresh, again = rig.found("fresh"), rig.found("again")
    assert (fresh.reason, fresh.cached_tokens, fresh.last_mark) == (Reason.NO_STATE, 0, 32)
    assert (again.reason, again.cached_tokens, again.missed) == (None, 32, 0)
    assert (fresh.again, again.again) == (False, True)


@BOTH
def test_of_a_longer_prompt_what_is_new_is_no_state(store: int) -> None:
    rig = Watched(opened_in(store))
    ask(rig, "first", PROMPT[:20])
    ask(rig, "second", PROMPT)
    second = rig.found("second")
    assert (second.reason, second.cached_tokens, second.last_mark) == (Reason.NO_STATE, 16, 32)
    assert said(second) == "no state: past row 16 nothing like it is kept"
    assert not second.finding


@BOTH
@pytest.mark.parametrize("at", [3, 16, 31, 32])
def test_an_edited_prompt_is_told_where_it_parts_from_the_kept_one(store: int, at: int) -> None:
    rig = Watched(opened_in(store))
    ask(rig, "first", PROMPT)
    ask(rig, "edited", [*PROMPT[:at], 63, *PROMPT[at + 1 :]])
    edited = rig.found("edited")
    assert edited.reason is Reason.EDITED and edited.near is not None
    assert (edited.near.differs_at, edited.near.mark, edited.near.request) == (at, 32, "first")
    assert edited.near.tokens == (PROMPT[at], 63)
    assert edited.gone is None and edited.finding


@BOTH
def test_a_stranger_that_begins_alike_is_no_edit(store: int) -> None:
    """Chats share the words of their template; a new one is no edit of another's."""
    rig = Watched(opened_in(store))
    ask(rig, "first", (PROMPT * 2)[:60])
    ask(rig, "stranger", [*PROMPT[:20], *[62] * 30])
    stranger = rig.found("stranger")
    assert (stranger.reason, stranger.near) == (Reason.NO_STATE, None)


@BOTH
def test_the_same_session_is_an_edit_however_early_it_parts(store: int) -> None:
    rig = Watched(opened_in(store))
    for name, prompt in (("first", PROMPT * 2), ("second", [*PROMPT[:2], *[62] * 50])):
        wish = arrive(name, prompt[:60], 4, session="s", history_tokens=len(prompt[:60]) - 2)
        rig.step(wish)
        rig.settle()
    second = rig.found("second")
    assert second.near is not None
    assert (second.reason, second.near.differs_at) == (Reason.EDITED, 2)


@BOTH
def test_a_prompt_whose_start_was_put_in_is_known_by_its_end(store: int) -> None:
    rig = Watched(opened_in(store))
    text = (PROMPT * 2)[:50]
    ask(rig, "first", text)
    ask(rig, "shifted", [*text[:5], 60, 61, 62, *text[5:]])
    shifted = rig.found("shifted")
    assert shifted.near is not None
    assert (shifted.reason, shifted.near.differs_at) == (Reason.EDITED, 5)


def test_a_reply_that_comes_back_changed_is_an_edit_of_a_kept_reply() -> None:
    rig = Watched(opened_in(RADIX, rules=paged_rules()))
    ask(rig, "first", PROMPT[:20], 30)
    reply = rig.replies[RequestId("first")]
    ask(rig, "second", [*PROMPT[:20], *reply[:6], reply[6] ^ 1, *reply[7:], 9, 9])
    second = rig.found("second")
    assert second.near is not None
    assert (second.cached_tokens, second.near.differs_at, second.near.mark) == (24, 26, 48)
    assert second.reason is Reason.EDITED


def test_an_edit_is_known_though_the_kept_state_goes_on_with_a_reply_not_yet_sent() -> None:
    rig = Watched(opened_in(RADIX, rules=paged_rules()))
    ask(rig, "first", PROMPT, 20)
    ask(rig, "edited", [*PROMPT[:5], 63, *PROMPT[6:]])
    edited = rig.found("edited")
    assert edited.near is not None
    assert (edited.reason, edited.near.differs_at, edited.near.mark) == (Reason.EDITED, 5, 56)


@BOTH
def test_other_salts_are_strangers(store: int) -> None:
    rig = Watched(opened_in(store))
    ask(rig, "mine", PROMPT, salt="mine")
    ask(rig, "yours", [*PROMPT[:31], 63, *PROMPT[32:]], salt="yours")
    yours = rig.found("yours")
    assert (yours.reason, yours.near, yours.again) == (Reason.NO_STATE, None, False)
    ask(rig, "yours too", PROMPT, salt="yours")
    assert rig.found("yours too").reason is Reason.EDITED


@pytest.mark.parametrize(("length", "least"), [(16, 0), (40, 41)])
@BOTH
def test_a_prompt_below_its_first_mark_or_the_least_is_too_short(
    store: int, length: int, least: int
) -> None:
    rig = Watched(opened_in(store, rules=fake_rules(min_prompt=least)))
    for name in ("fresh", "again"):
        ask(rig, name, PROMPT[:length])
    again = rig.found("again")
    assert (again.reason, again.cached_tokens) == (Reason.TOO_SHORT, 0)
    assert again.last_mark == length // 16 * 16 - 16 * (length == 16)
    assert not again.finding


# --- states that went -----------------------------------------------------------------------------


@BOTH
def test_evicted_by_whom(store: int) -> None:
    settings = {"states": 1} if store == RADIX else {"budget": state_bytes(opened_in(FLAT), 32)}
    rig = Watched(opened_in(store, **settings))  # type: ignore[arg-type]
    ask(rig, "first", PROMPT)
    ask(rig, "other", [63 - token for token in PROMPT])
    ask(rig, "again", PROMPT)
    again = rig.found("again")
    assert again.reason is Reason.EVICTED and again.gone is not None
    assert (again.gone.why, again.gone.request, again.lost_mark) == ("evicted", "other", 32)
    dropped = rig.fact_at(again.gone.seq)
    assert isinstance(dropped, f.StateDropped) and dropped.state == 0
    assert said(again) == f"evicted: mark 32 was evicted for other at event {again.gone.seq}"


@pytest.mark.parametrize("kind", ["states", "pages"])
def test_reclaimed_for_whom(kind: str) -> None:
    rules = fake_rules() if kind == "states" else paged_rules()
    rig = Watched(opened_in(RADIX, rules=rules, pages=10))
    ask(rig, "first", PROMPT)
    ask(rig, "large", [63 - token for token in (PROMPT * 2)[:70]], 4)
    ask(rig, "again", PROMPT)
    again = rig.found("again")
    assert again.reason is Reason.EVICTED and again.gone is not None
    assert (again.gone.why, again.gone.request, again.lost_mark) == ("reclaimed", "large", 32)


@BOTH
def test_flushed(store: int) -> None:
    rig = Watched(opened_in(store))
    ask(rig, "first", PROMPT)
    rig.step(Flush())
    ask(rig, "again", PROMPT)
    again = rig.found("again")
    assert again.reason is Reason.EVICTED and again.gone is not None
    assert said(again) == f"evicted: mark 32 was flushed at event {again.gone.seq}"


def test_moved_past() -> None:
    """What a longer state passed went first; a prompt that goes back to it misses."""
    rig = Watched(opened_in(FLAT, 2 * state_bytes(opened_in(FLAT), 32)))
    text = PROMPT * 2
    ask(rig, "short", text[:20])
    ask(rig, "long", text[:40])
    ask(rig, "other", [63 - token for token in PROMPT])
    ask(rig, "back", text[:20])
    back = rig.found("back")
    assert back.reason is Reason.EVICTED and back.gone is not None
    assert (back.gone.request, back.lost_mark) == ("other", 16)


def test_the_pages_of_a_state_that_went_are_lost_only_where_no_other_holds_them() -> None:
    rig = Watched(opened_in(RADIX, rules=paged_rules(), states=2))
    text = PROMPT * 2
    sibling = [*text[:30], *[62] * 30]
    ask(rig, "one", text[:60], 1)
    ask(rig, "sibling", sibling, 1)
    ask(rig, "third", [61] * 30, 1)
    ask(rig, "again", sibling, 1)
    again = rig.found("again")
    assert again.reason is Reason.EVICTED and again.gone is not None
    assert (again.cached_tokens, again.lost_mark, again.gone.request) == (24, 56, "third")


def test_what_went_is_forgotten_in_the_end() -> None:
    for remembered, reason in ((2, Reason.EVICTED), (1, Reason.NO_STATE)):
        rig = Watched(opened_in(RADIX, states=1), remembered)
        ask(rig, "first", PROMPT)
        for at in (1, 2):
            ask(rig, f"other {at}", [60 + at] * 40)
        ask(rig, "again", PROMPT)
        assert rig.found("again").reason is reason


# --- refused --------------------------------------------------------------------------------------


@BOTH
def test_a_rank_could_not_read_it_back(store: int) -> None:
    rig = Watched(opened_in(store))
    ask(rig, "first", PROMPT)
    rig.device.refuse_resume = True
    ask(rig, "again", PROMPT)
    first, second = [one for one in rig.lookups if one.request == "again"]
    assert (first.reason, first.cached_tokens) == (None, 32)
    assert second.reason is Reason.REFUSED and second.gone is not None
    assert (second.cached_tokens, second.lost_mark) == (0, 32)
    refused = rig.fact_at(second.gone.seq)
    assert isinstance(refused, f.ResumeRefused)
    assert "could not be read back" in said(second)
    assert f"rank {refused.rank}" in said(second)


@BOTH
def test_another_that_comes_after_a_damaged_state_is_told_so(store: int) -> None:
    rig = Watched(opened_in(store))
    ask(rig, "first", PROMPT)
    rig.device.refuse_resume = True
    ask(rig, "again", PROMPT)
    rig.step(Flush())
    ask(rig, "third", PROMPT)
    third = rig.found("third")
    assert third.gone is not None and third.gone.why == "flushed", "it was kept once more"


@pytest.mark.parametrize("order", POLICIES.values())
def test_a_hit_would_have_held_the_stream_back(order: int) -> None:
    """The state holds a page past the hit, and the stream needs every page of the pool."""
    opened = opened_in(RADIX, rules=paged_rules(), pages=11, flags={"evict": order})
    rig = Watched(opened)
    text = (PROMPT * 2)[:72]
    ask(rig, "first", text, 1)
    ask(rig, "again", text, 16)
    again = rig.found("again")
    assert again.reason is Reason.REFUSED and again.gone is not None
    assert (again.cached_tokens, again.lost_mark, again.gone.why) == (0, 64, "held_back")
    assert said(again) == "refused: mark 64 would have held the stream back"


@pytest.mark.parametrize("short", [1, 0])
def test_too_large_for_the_store(short: int) -> None:
    rig = Watched(opened_in(FLAT, state_bytes(opened_in(FLAT), 32) - short))
    for name in ("fresh", "again"):
        ask(rig, name, PROMPT)
    fresh, again = rig.found("fresh"), rig.found("again")
    assert fresh.reason is Reason.NO_STATE
    if not short:
        assert again.reason is None
        return
    assert again.reason is Reason.REFUSED and again.gone is not None
    assert (again.gone.why, again.gone.request, again.lost_mark) == ("too_large", "fresh", 32)
    assert rig.misses.not_kept == 2
    assert said(again) == "refused: mark 32 of fresh was not kept: too large for the store"


@pytest.mark.parametrize("kind", ["states", "pages"])
def test_a_store_that_may_hold_nothing(kind: str) -> None:
    rules = fake_rules() if kind == "states" else paged_rules()
    rig = Watched(opened_in(RADIX, rules=rules, states=0))
    for name in ("fresh", "again"):
        ask(rig, name, PROMPT)
    again = rig.found("again")
    assert again.reason is Reason.REFUSED and again.gone is not None
    assert again.gone.why == "no_room"
