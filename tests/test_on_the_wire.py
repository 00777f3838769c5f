"""Steps on the wire: what followers hear, in which order, and what they make of it."""

from collections.abc import Sequence
from typing import Any

import pytest

from kvtape.core.apply import apply
from kvtape.core.book import book_digest
from kvtape.core.link import RankLost
from kvtape.core.state import FLAT, RADIX, State, open_state
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact
from kvtape.events.ids import NO_STATE, Lane, Rank, RequestId, SessionId, StreamId, Token
from kvtape.events.records import Sampling
from kvtape.replay.ranks import Ranks

from .replay_bench import Script, arrive, chats, edited, fakes, opening
from .rig import flat_plan
from .test_resumed_pages import KINDS, makes, opened_as, paged_arrays
from .wire import Wire, copies_of, listened, one_by_one

TEXT = [(5 * at + at // 7) % 31 for at in range(40)]
STORES = [RADIX, FLAT]
ROOMY = flat_plan(10**9)


# --- followers fold what they hear ----------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("kind", ["drafted", "paged"])
def test_followers_hold_no_tree_and_are_what_their_steps_make_of_them(
    kind: str, store: int
) -> None:
    if kind == "paged" and store == FLAT:
        kind = "plain"  # what is pages alone has no copies
    opened = opening(kind, world=3, flags={"store": store}, plan=flat_plan(90))
    wire = listened(opened, chats())
    assert {fact.why for fact in wire.of("state_dropped")} >= {"flushed"}
    lead, *followers = wire.ranks
    for spy in followers:
        state = open_state(opened, leader=False)
        for told, heard in zip(lead.heard, spy.heard, strict=True):
            assert heard.facts == told.facts and not heard.tree
            for fact in heard.facts:
                apply(state, fact)
            assert (heard.tables, heard.book) == (told.tables, told.book)
            assert book_digest(state) == heard.book
    assert lead.heard[0].tree == (store == RADIX)


@pytest.mark.parametrize("kind", ["drafted", "plain", "glm"])
@pytest.mark.parametrize("store", STORES)
def test_a_copy_has_the_shape_that_its_step_says_on_every_rank(store: int, kind: str) -> None:
    """A shared one owns no row, another those before its mark; each is resumed as it was kept."""
    opened = opened_as(kind, 3, flags={"store": store}, plan=ROOMY, digests="full")
    wire = listened(opened, one_by_one([("first", TEXT), ("again", TEXT)]), makes(kind))
    taken = wire.of("snapshot_taken")
    assert taken and {fact.shared for fact in taken} == {store == RADIX}
    lead, *followers = (spy.heard[-1].copies for spy in wire.ranks)
    assert lead.keys() == {fact.state for fact in taken}
    for copies in followers:
        assert copies == lead
    rows = {fact.state: 0 if fact.shared else fact.mark for fact in taken}
    a_row = {own / rows[state] if rows[state] else own for state, own in lead.items()}
    assert len(a_row) == 1 and (a_row == {0}) == (store == RADIX)
    assert wire.ends["again"].cached_tokens == max(fact.mark for fact in taken)
    assert not wire.of("resume_refused") + wire.of("sums_broken")


@pytest.mark.parametrize("kind", ["drafted", "glm"])
def test_a_shared_snapshot_is_what_lies_past_the_pages_and_as_large_at_every_mark(
    kind: str,
) -> None:
    text = [(at * at * 3 + at) % 31 for at in range(70)]
    script = one_by_one([(f"{at}", [at, *text[: 17 + 16 * at]]) for at in range(4)])
    wire = listened(opened_as(kind), script, makes(kind))
    for spy in wire.ranks:
        copies = list(copies_of(spy.device).values())
        sizes = [
            copy.fixed.nbytes if kind == "drafted" else copy.states.nbytes + copy.raw.nbytes
            for copy in copies
        ]
        assert len(sizes) > 2 and len(set(sizes)) == 1 and sizes[0] > 0
    assert len({fact.mark for fact in wire.of("snapshot_taken")}) > 2


# --- the order of the wire ------------------------------------------------------------------------


def crowded() -> Wire:
    """Prompts that push each other's kept pages out, beside a stream that goes on."""
    opened = opening("plain", world=2, pages=24, states=4)
    script: Script = {0: [arrive("long", "long", TEXT[:9], 40)]}
    for at in range(8):
        text = [(at + 3 * each) % 31 for each in range(34)]
        script[4 + 6 * at] = [arrive(f"r{at}", f"r{at}", text, 2)]
    return listened(opened, script)


def test_drops_come_before_the_begin_that_maps_a_freed_page() -> None:
    wire = crowded()
    freed = [fact for fact in wire.of("state_dropped") if fact.why == "reclaimed"]
    assert len(freed) > 3
    for spy in wire.ranks:
        turns = [heard.facts for heard in spy.heard]
        assert mapped_before_dropped(turns) == []
        late = [drops_last(turn) for turn in turns]
        assert late != turns
        assert mapped_before_dropped(late), "pages of states that are still kept are mapped"
        with pytest.raises(AssertionError, match=r"more pages promised|gives"):
            fold(wire, late)


def drops_last(turn: Sequence[AnyFact]) -> tuple[AnyFact, ...]:
    """A turn told the other way round: first who begins, then what had to go for it."""
    drops = tuple(fact for fact in turn if isinstance(fact, f.StateDropped))
    return (*(fact for fact in turn if fact not in drops), *drops)


def mapped_before_dropped(turns: Sequence[Sequence[AnyFact]]) -> list[AnyFact]:
    """Leases of pages that, by what was heard so far, somebody still holds.

    It knows only what a wire carries: who maps a page, and which states keep one.
    """
    holders: dict[int, int] = {}
    kept: dict[int, tuple[int, ...]] = {}
    found: list[AnyFact] = []

    def add(pages: Sequence[int], count: int) -> None:
        for page in pages:
            holders[page] = holders.get(page, 0) + count

    for turn in turns:
        for fact in turn:
            match fact:
                case f.PagesLeased():
                    if any(holders.get(page) for page in fact.pages):
                        found.append(fact)
                    add(fact.pages, 1)
                case f.PagesAdopted():
                    add(fact.pages, 1)
                case f.PagesReturned():
                    add(fact.pages, -1)
                case f.SnapshotTaken():
                    kept[fact.state] = fact.pages
                    add(fact.pages, 1)
                case f.StateDropped():
                    add(kept.pop(fact.state), -1)
                case _:
                    assert not isinstance(fact, f.PagesSwapped), "this script swaps nothing"
    return found


def fold(wire: Wire, turns: Sequence[Sequence[AnyFact]]) -> State:
    """A follower's state after these turns."""
    state = open_state(wire.opened, leader=False)
    for turn in turns:
        for fact in turn:
            apply(state, fact)
    return state


# --- a begin that does not fit --------------------------------------------------------------------


def seated(kept_pages: int) -> list[AnyFact]:
    """A stream begins with so many kept pages."""
    asked = f.RequestArrived(
        request=RequestId("r"), session=SessionId("s"), prompt=(Token(1),) * 40, history_tokens=0,
        max_new=8, sampling=Sampling(), stop=(), eos=(), ignore_eos=True, draft=True, salt="",
    )  # fmt: skip
    begun = f.StreamBegun(
        stream=StreamId(0), lane=Lane(0), kept_pages=kept_pages, promise_pages=4, marks=(),
        owner=Rank(0), state=NO_STATE,
    )  # fmt: skip
    return [asked, f.StreamQueued(stream=StreamId(0), request=asked.request, choice=0), begun]


def test_a_follower_refuses_more_kept_pages_than_its_table_has() -> None:
    """As many as its table are taken; one more ends the run by the rank's name."""
    opened = opening("plain", world=2)
    width = open_state(opened).tables.shape[1]
    for kept, fits in ((width, True), (width + 1, False), (-1, False)):
        ranks = Ranks(opened, fakes(opened))
        try:
            ranks.send(1, seated(kept))
            if fits:
                ranks.send(2, [])
                assert ranks.states[0].streams[StreamId(0)].kept_pages == kept
            else:
                with pytest.raises(RankLost, match=f"rank 1 failed .* {kept} kept pages"):
                    ranks.send(2, [])
        finally:
            ranks.close("tried")


@pytest.mark.parametrize("more", [-1, 1])
def test_a_follower_refuses_to_adopt_another_count_than_its_begin_said(more: int) -> None:
    wire = listened(opening("plain"), one_by_one([("first", TEXT), ("again", TEXT)]))
    (adopted,) = wire.of("pages_adopted")

    def other(fact: AnyFact) -> AnyFact:
        again = isinstance(fact, f.StreamBegun) and fact.stream == adopted.stream
        kept = len(adopted.pages) + more
        return fact.model_copy(update={"kept_pages": kept}) if again else fact

    said = edited(wire.steps, "stream_begun", other)
    with pytest.raises(AssertionError, match=f"adopts {len(adopted.pages)} pages, it began with"):
        fold(wire, [step.facts for step in said])


# --- what the store and the tree are told ---------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_is_told_the_pages_below_its_mark_and_no_more(kind: str) -> None:
    prompt = TEXT[:38]  # its last page is not full as its mark is kept
    wire = listened(opened_as(kind), one_by_one([("one", prompt), ("two", prompt)]), makes(kind))
    taken = wire.of("snapshot_taken")
    assert taken
    for fact in taken:
        assert len(fact.pages) * wire.opened.rules.page_rows == fact.mark
        for spy in wire.ranks:
            at = next(at for at, heard in enumerate(spy.heard) if fact in heard.facts)
            table = spy.heard[at - 1].seats[fact.stream]
            assert fact.pages == table[: len(fact.pages)]


@pytest.mark.parametrize("kind", ["drafted", "glm"])
@pytest.mark.parametrize("store", STORES)
def test_another_token_at_the_mark_is_no_resume_and_the_same_is_one(store: int, kind: str) -> None:
    other = [*TEXT[:32], TEXT[32] + 1, *TEXT[33:]]
    script = one_by_one([("first", TEXT), ("other", other), ("again", TEXT)])
    wire = listened(opened_as(kind, flags={"store": store}, plan=ROOMY), script, makes(kind))
    cached = {name: end.cached_tokens for name, end in wire.ends.items()}
    assert cached == {"first": 0, "other": 0, "again": 32}


# --- poison ---------------------------------------------------------------------------------------


def pages_of(device: Any, pages: Sequence[int]) -> list[bytes]:
    """The bytes that stand on these pages."""
    return [words[:, list(pages)].tobytes() for words in paged_arrays(device)]


def check_adopted_bytes(kind: str, rank: int) -> None:
    """Leases of a stream that resumed leave the bytes of its adopted pages as they were."""
    seen: list[list[bytes]] = []
    pages: list[int] = []

    def look(device: Any, state: State, facts: Sequence[AnyFact]) -> None:
        if int(device.rank) != rank:
            return
        for fact in facts:
            if isinstance(fact, f.PagesAdopted):
                pages.extend(fact.pages)
        if pages:
            seen.append(pages_of(device, pages))

    opened = opened_as(kind, 3, poison="a")
    script = one_by_one([("first", TEXT), ("again", TEXT)], 12)
    wire = listened(opened, script, makes(kind), look)
    leased = [fact for fact in wire.of("pages_leased") if fact.stream == 1]
    assert leased and leased[0].first == len(pages)
    assert len(seen) > 1 and all(one == seen[0] for one in seen)
    assert not wire.of("poison_read")
    assert wire.ends["again"].token_sha == wire.ends["first"].token_sha


@pytest.mark.parametrize("kind", KINDS)
def test_poison_spares_adopted_pages_on_rank_0(kind: str) -> None:
    check_adopted_bytes(kind, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_poison_spares_adopted_pages_on_a_follower(kind: str) -> None:
    check_adopted_bytes(kind, 1)


@pytest.mark.parametrize("kind", ["drafted", "plain", "paged"])
def test_poison_on_every_rank_changes_no_reply_and_no_resume(kind: str) -> None:
    told = []
    for poison in ("off", "a", "b"):
        wire = listened(opening(kind, world=3, poison=poison), chats())
        assert not wire.of("poison_read")
        told.append({name: (end.cached_tokens, end.token_sha) for name, end in wire.ends.items()})
    assert told[0] == told[1] == told[2]
    assert any(cached for cached, _ in told[0].values())
