"""Why prompts were resumed no further: every reason, on a real machine in both stores."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from kvtape.core.apply import apply
from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.keep import store_of
from kvtape.core.lookups import Lookup, Reason, said
from kvtape.core.misses import Misses
from kvtape.core.state import FLAT, RADIX, KeptState, State, Stream, open_state, store_flag
from kvtape.core.store_flat import state_bytes
from kvtape.events import facts as f
from kvtape.events.commands import Arrive, Flush
from kvtape.events.facts import AnyFact, RunOpened
from kvtape.events.ids import RequestId, StreamId
from kvtape.replay.why_miss_live import watched

from .rig import Rig, arrive
from .test_machine import Machine
from .test_play import of
from .test_stores import PROMPT, ask, opened_in

BOTH = pytest.mark.parametrize("store", [RADIX, FLAT])


class Watched(Rig):
    """A machine with the observer beside it."""

    def __init__(self, opened: RunOpened, remembered: int = 2**17) -> None:
        super().__init__(opened)
        self.misses = Misses(opened, remembered)
        self.lookups: list[Lookup] = []
        self.decide = watched(self.decide, self.misses, self.next_seq, self.lookups.append)

    def next_seq(self) -> int:
        """The number that the next row of a tape would have."""
        return 1 + sum(map(len, self.commands)) + sum(map(len, self.steps))

    def found(self, name: str) -> Lookup:
        """What a request found, the last time that it began."""
        return [one for one in self.lookups if one.request == name][-1]

    def numbered(self) -> Iterator[tuple[int, AnyFact]]:
        """Every fact with its number."""
        seq = 1
        for commands, facts in zip(self.commands, self.steps, strict=True):
            seq += len(commands)
            yield from enumerate(facts, seq)
            seq += len(facts)

    def fact_at(self, seq: int) -> AnyFact:
        """A fact by its number."""
        return dict(self.numbered())[seq]


def seen_again(rig: Watched) -> list[Lookup]:
    """What an observer says that reads the facts as a tape has them."""
    state, misses, found = open_state(rig.opened), Misses(rig.opened), []
    for seq, fact in rig.numbered():
        lookup = misses.see(seq, fact, state)
        apply(state, fact)
        found += [lookup] if lookup is not None else []
    return found


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


@pytest.mark.parametrize("order", [0, 2])
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


# --- the same from a tape, and what it means ------------------------------------------------------


class Sought(Machine):
    """The observer beside a random machine: what it says is so, by a memory of everything."""

    made = Watched

    def teardown(self) -> None:
        super().teardown()
        rig = getattr(self, "rig", None)
        if not isinstance(rig, Watched):
            return
        assert seen_again(rig) == rig.lookups, "a tape says other than the run did"
        cached = {one.request: one.cached_tokens for one in rig.lookups}
        for end in of(f.RequestFinished, rig):
            if end.reason in ("stop", "length"):
                assert end.cached_tokens == cached[end.request]
        Everything(rig).check()


class Everything:
    """All kept states of a run, those that went included, and the state at every fact."""

    def __init__(self, rig: Watched) -> None:
        self.rig = rig
        self.rules = rig.opened.rules
        self.whole = self.rules.snapshots or store_flag(rig.opened) == FLAT
        self.ever: list[tuple[int, KeptState]] = []

    def check(self) -> None:
        """Fold the run once more; every lookup is judged where it was made."""
        begun = {one.seq: one for one in self.rig.lookups}
        lost = [one for one in self.rig.lookups if one.reason is Reason.EVICTED]
        state = open_state(self.rig.opened)
        for seq, fact in self.rig.numbered():
            if seq in begun:
                self.judge(begun[seq], state)
            losers = [one for one in lost if one.gone is not None and one.gone.seq == seq]
            for one in losers:
                assert isinstance(fact, f.StateDropped) and one.gone is not None
                assert (fact.why, fact.request) == (one.gone.why, one.gone.request)
                assert self.match(state, one) >= one.lost_mark, "it would not have matched"
            apply(state, fact)
            for one in losers:
                assert self.match(state, one) < one.lost_mark, "it went at another event"
            if isinstance(fact, f.SnapshotTaken):
                self.ever.append((seq, state.kept[fact.state]))

    def match(self, state: State, one: Lookup) -> int:
        """The row at which the store would resume the prompt of a lookup."""
        wish = self.rig.arrived[one.request]
        fields = {
            name: getattr(wish, name) for name in f.RequestArrived.model_fields if name != "kind"
        }
        stream = Stream(StreamId(10**6), f.RequestArrived(**fields), 0, tokens=list(wish.prompt))
        return store_of(state).match(state, stream).mark

    def judge(self, one: Lookup, state: State) -> None:
        """Whether a lookup says what is so, with all that was ever kept in mind."""
        wish = self.rig.arrived[one.request]
        assert (one.reason is None) == (0 < one.cached_tokens == one.last_mark)
        ever = max((self.depth(wish, kept) for _, kept in self.ever), default=0)
        ever = min(ever, one.last_mark)
        match one.reason:
            case Reason.NO_STATE:
                assert ever <= one.cached_tokens, "something like it was kept"
            case Reason.EVICTED:
                assert one.lost_mark == ever > one.cached_tokens
            case Reason.TOO_SHORT:
                assert one.last_mark == 0
            case Reason.EDITED:
                assert one.near is not None
                kept, at = state.kept[one.near.state], one.near.differs_at
                assert kept.tokens[:at] == wish.prompt[:at]
                assert (kept.tokens[at], wish.prompt[at]) == one.near.tokens
                assert one.near.tokens[0] != one.near.tokens[1]
                assert one.near.mark == kept.mark > one.cached_tokens <= at
            case _:
                pass

    def depth(self, wish: Arrive, kept: KeptState) -> int:
        """How far a kept state could bring a prompt."""
        if wish.salt != kept.salt:
            return 0
        rows, ahead = self.rules.page_rows, self.rules.lookahead
        if self.whole:
            return kept.mark if wish.prompt[: kept.mark + ahead] == kept.tokens else 0
        pages = 0
        while pages < len(kept.pages) and (
            wish.prompt[: (pages + 1) * rows + ahead] == kept.tokens[: (pages + 1) * rows + ahead]
        ):
            pages += 1
        return pages * rows


TestSought = Sought.TestCase
TestSought.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


class FlatSought(Sought):
    """The same over copies beside the pages."""

    store = FLAT


TestFlatSought = FlatSought.TestCase
TestFlatSought.settings = TestSought.settings


class LongSought(Sought):
    """The same, at length."""


TestLongSought = pytest.mark.slow(LongSought.TestCase)
TestLongSought.settings = settings(TestSought.settings, max_examples=400, stateful_step_count=60)


class LongFlatSought(FlatSought):
    """Copies, at length."""


TestLongFlatSought = pytest.mark.slow(LongFlatSought.TestCase)
TestLongFlatSought.settings = TestLongSought.settings
