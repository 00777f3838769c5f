"""Unwritten, stale and reused rows: one test for each kind of fault, named for what keeps it out.

Bytes that leave the pool are copies of the flat store: there is no other tier. An 8-bit cache is
not served; exponents of 16-bit rows stand in the place of its scales.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.core.apply import apply
from kvtape.core.decide import decide
from kvtape.core.device import Report
from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.state import FLAT, RADIX
from kvtape.events import facts as f
from kvtape.events.commands import Arrive
from kvtape.events.facts import AnyFact
from kvtape.events.ids import PageId, RequestId, StreamId, Token
from kvtape.replay.audit import audit_run
from kvtape.replay.machine import Machine
from kvtape.replay.rerun import reopened, rerun

from .dirt import soil_pages, soil_scratch
from .replay_bench import Script, arrive, chats, edited, opening
from .rig import Rig, flat_plan, opened_with
from .rig import arrive as asks
from .test_machine import check_reply
from .test_play import of
from .test_resumed_pages import KINDS, makes, opened_as
from .wire import Wire, listened, replies

TEXT = [(7 * at + at // 5) % 31 for at in range(60)]
OTHER = [(3 * at + 11) % 31 for at in range(60)]


def a_b_a() -> Script:
    """A, then b beside a cold prompt that begins like a, then a again, longer, and b again."""
    return {
        0: [arrive("a", "a", TEXT[:41], 9, history_tokens=39)],
        20: [arrive("b", "b", OTHER[:37], 6), arrive("like a", "c", [*TEXT[:34], 1, 2, 3], 7)],
        60: [arrive("a more", "a", TEXT[:55], 6, history_tokens=53), arrive("b2", "b", OTHER, 5)],
        100: [arrive("a again", "a", TEXT[:41], 9, history_tokens=39)],
    }


def played(kind: str, world: int = 2, before: Any = None, **changes: Any) -> Wire:
    """The story on ranks of a kind."""
    settings = {"plan": flat_plan(10**9), "digests": "full"} | changes
    return listened(opened_as(kind, world, **settings), a_b_a(), makes(kind), before)


def sums(wire: Wire) -> list[Any]:
    """What every step's rows summed to."""
    return [fact.digests.parts for fact in wire.of("step_closed")]


# --- rows that nobody wrote -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_released_rows_and_rows_past_the_end_hold_poison_and_no_reply_changes(kind: str) -> None:
    """Whoever reads past what a stream wrote, or a page that was let go, meets it."""
    clean, soiled = played(kind), played(kind, before=soil_pages, poison="a")
    assert not soiled.of("poison_read") + soiled.of("sums_broken")
    assert replies(soiled) == replies(clean)
    assert sums(soiled) == sums(clean)
    assert any(end.cached_tokens for end in soiled.ends.values())


@pytest.mark.parametrize("kind", KINDS)
def test_two_poisons_over_one_run_give_equal_bits(kind: str) -> None:
    wire = played(kind, poison="a")
    other = reopened(wire.opened).model_copy(update={"poison": "b"})
    with Machine(other, makes(kind)) as machine:
        comparison = rerun(machine, wire.steps).comparison
    assert comparison.first is None
    assert comparison.compared["rows"] > 5 and comparison.compared["logits"] > 5


@pytest.mark.parametrize("kind", KINDS)
def test_scratch_holds_poison_before_each_step_and_no_sum_changes(kind: str) -> None:
    clean = played(kind)
    soiled = played(kind, before=soil_scratch("ab"))
    assert sums(soiled) == sums(clean) and replies(soiled) == replies(clean)


# --- pages that are nobody's ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drafted", "plain", "paged", "glm"])
def test_padded_reads_and_padded_writes_have_pages_of_their_own(kind: str) -> None:
    """The page that tables point at past their end is written by nobody, whatever is drafted."""
    wire = played(kind, poison="a", before=soil_pages)
    for spy in wire.ranks:
        pages = wire.opened.pages
        held = spy.device._memory.rows if hasattr(spy.device, "_memory") else spy.memory.latent
        read_page = held[:, pages].view(np.int16)
        assert (read_page == -0x8000).all()
        assert held.shape[1] == pages + 2, "and one more for writes"


@pytest.mark.parametrize("kind", ["drafted", "paged"])
def test_replies_are_the_same_down_to_the_smallest_pool(kind: str) -> None:
    opened = opening(kind)
    asked = [one for turn in a_b_a().values() for one in turn if isinstance(one, Arrive)]
    wanted = max(len(one.prompt) + one.max_new for one in asked)
    least = -(-(wanted + opened.rules.drafts) // opened.rules.page_rows)
    want = None
    for pages in (*range(least, least + 6), 60):
        wire = listened(opening(kind, pages=pages, poison="a"), a_b_a())
        assert len(wire.ends) == 6 and not wire.of("poison_read")
        want = want or replies(wire)
        assert replies(wire) == want, f"{pages} pages"
    refused = listened(opening(kind, pages=least - 1), a_b_a()).of("request_refused")
    assert refused and {fact.reason for fact in refused} == {"larger_than_pool"}


@pytest.mark.parametrize("kind", ["drafted", "paged", "glm", "llama"])
def test_a_table_past_its_lease_holds_a_page_that_faults_on_use(kind: str) -> None:
    """As a table that was cut short would have it, for a row that every later row reads."""
    opened = opened_as(kind, 1, poison="a")
    rig = Rig(opened, lambda run: makes(kind)(run)[0])
    rig.step(asks("one", TEXT[:40], 12, ignore_eos=True))
    while not of(f.RoundRun, rig):
        rig.step()
    (stream,) = rig.state.streams.values()
    assert (rig.state.tables[stream.lane, stream.pages :] == opened.pages).all()
    rig.state.tables[stream.lane, 0] = opened.pages
    (found,) = unchecked_step(rig).poisoned
    assert found.stream == stream.stream and found.position < opened.rules.page_rows
    rig.device.close()


def unchecked_step(rig: Rig) -> Report:
    """The next step of a rig whose book is wrong on purpose."""
    facts: list[AnyFact] = []
    for fact in decide(rig.state, rig.news):
        apply(rig.state, fact)
        facts.append(fact)
    report: Report = rig.device.launch(rig.state, facts).report()
    return report


# --- rows that were somebody else's ---------------------------------------------------------------

SHORT = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@given(
    a=SHORT, b=SHORT, tail=SHORT, kind=st.sampled_from(["states", "pages"]),
    store=st.sampled_from([RADIX, FLAT]), pages=st.integers(12, 20), drafts=st.integers(0, 2),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_then_b_then_a_beside_cold_prompts_is_what_each_is_alone(
    a: list[int], b: list[int], tail: list[int], kind: str, store: int, pages: int, drafts: int
) -> None:
    rules = fake_rules(8, 8, drafts=drafts) if kind == "states" or store else paged_rules()
    rig = Rig(
        opened_with(
            rules, pages=pages, flags={"store": store}, plan=flat_plan(80), poison="a", context=96
        )
    )
    for turn, prompts in enumerate(([a], [b], [a], [[*a, *tail], [*b, *tail]], [a, [*a[:9], *b]])):
        wishes = [
            asks(f"{turn}.{at}", prompt, 5, history_tokens=len(prompt))
            for at, prompt in enumerate(prompts)
        ]
        rig.step(*wishes)
        rig.settle()
    assert len(rig.finished) == 7
    for request, end in rig.finished.items():
        assert end.reason == "length"
        check_reply(rig, request, end)


class Generations:
    """How often each page was leased, and what its count was when a state began to hold it."""

    def __init__(self) -> None:
        self.leased: dict[PageId, int] = {}
        self.kept: dict[int, dict[PageId, int]] = {}

    def hear(self, fact: AnyFact, resumes: dict[StreamId, int]) -> int:
        """How many pages were adopted that are not what they were when they were kept."""
        match fact:
            case f.PagesLeased():
                for page in fact.pages:
                    self.leased[page] = self.leased.get(page, 0) + 1
            case f.SnapshotTaken():
                self.kept[fact.state] = {page: self.leased[page] for page in fact.pages}
            case f.StreamBegun():
                resumes[fact.stream] = fact.state
            case f.PagesAdopted():
                was = self.kept[resumes[fact.stream]]
                return sum(was[page] != self.leased[page] for page in fact.pages)
            case _:
                pass
        return 0


@pytest.mark.parametrize("rules", [fake_rules(8, 8), paged_rules()], ids=["states", "pages"])
@pytest.mark.parametrize("pressure", range(8))
def test_what_is_adopted_was_leased_to_nobody_since_it_was_kept(rules: Any, pressure: int) -> None:
    """A needle, prompts that push it out or not, and the needle again, pass by pass."""
    rig = Rig(opened_with(rules, pages=22, states=5, poison="b", digests="full"))
    for turn in range(3):
        for at in range(pressure):
            rig.step(asks(f"{turn}p{at}", [turn, at, *OTHER[:24]], 4))
            rig.settle()
        rig.step(asks(f"needle{turn}", TEXT[:30], 6))
        rig.settle()
    ends = [rig.finished[RequestId(f"needle{turn}")] for turn in range(3)]
    assert len({end.token_sha for end in ends}) == 1
    generations, resumes = Generations(), dict[StreamId, int]()
    assert sum(generations.hear(fact, resumes) for fact in rig.facts) == 0
    if pressure == 0:
        assert ends[1].cached_tokens == ends[2].cached_tokens > 0
    if pressure > 5:
        assert [end.cached_tokens for end in ends] == [0, 0, 0], "and it was pushed out"


# --- what a page is made of -----------------------------------------------------------------------


@pytest.mark.parametrize("array", ["keys", "key_exponents", "values", "value_exponents"])
def test_exponents_are_of_the_page_and_of_its_sum(array: str) -> None:
    """A bit of either, flipped on a kept page, is found by the resume that reads it."""
    rig = Rig(opened_as("llama", 1), lambda run: makes("llama")(run)[0])
    rig.step(asks("one", TEXT[:40], 3))
    rig.settle()
    (kept,) = rig.state.kept.values()
    getattr(rig.device.memory, array)[1, kept.pages[0]].reshape(-1)[5] ^= 1
    rig.step(asks("again", TEXT[:40], 3))
    rig.settle()
    (broken,) = of(f.SumsBroken, rig)
    assert (broken.part, broken.stream) == ("rows", 1)
    rig.device.close()


COPIED: dict[str, tuple[str, Callable[[Any], Any], int]] = {
    "a state": ("states", lambda copy: copy.fixed, 0),
    "a ring": ("rings", lambda copy: copy.fixed, -1),
    "a row": ("rows", lambda copy: copy.paged[0], 7),
    "a key": ("keys", lambda copy: copy.paged[1], 2),
    "a draft row": ("drafts", lambda copy: copy.paged[2], -1),
    "a sum of a page": ("rows", lambda copy: copy.paged[3], 0),
}


@pytest.mark.parametrize("what", COPIED)
def test_a_copy_that_changed_beside_the_pool_is_found_as_it_comes_back(what: str) -> None:
    opened = opened_with(fake_rules(), flags={"store": FLAT}, plan=flat_plan(10**6))
    rig = Rig(opened)
    rig.step(asks("one", TEXT[:40], 3, history_tokens=39))
    rig.settle()
    part, words, at = COPIED[what]
    (copy,) = rig.device.copies.values()
    words(copy).flat[at] ^= np.uint64(4)
    rig.step(asks("again", TEXT[:40], 3, history_tokens=39))
    rig.settle()
    assert [fact.part for fact in of(f.SumsBroken, rig)][:1] == [part]


# --- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [-1, 64, 2**31])
def test_a_token_out_of_range_is_refused_at_the_door_and_named_by_an_audit(token: int) -> None:
    wire = listened(opening("plain"), chats(1, 1))

    def other(fact: AnyFact) -> AnyFact:
        assert isinstance(fact, f.RowsKept)
        return fact.model_copy(update={"tokens": (Token(token),) * len(fact.tokens)})

    (found,) = audit_run(wire.opened, edited(wire.steps, "rows_kept", other, nth=2))
    assert "rows_kept" in found.where and f"token {token} " in found.says
    rig = Rig(opened_with(fake_rules()))
    rig.step(asks("odd", [1, token, 2], 2))
    assert [fact.reason for fact in of(f.RequestRefused, rig)] == ["token_out_of_range"]
