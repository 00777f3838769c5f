"""What both stores promise at real sizes, on one to three ranks: pages of 512, a grid of 2,048."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from kvtape.core.device import Device
from kvtape.core.families.fake import fake_rules
from kvtape.core.state import FLAT, RADIX, State
from kvtape.core.store_flat import state_bytes
from kvtape.events import facts as f
from kvtape.events.commands import AnyCommand
from kvtape.events.facts import AnyFact, RunOpened
from kvtape.events.reader import Step
from kvtape.replay.audit import audit_run
from kvtape.replay.book import rebook

from .glm_rig import glm_device, glm_opened
from .replay_bench import Meddle, Script, arrive, fakes, record
from .rig import Rig, flat_plan, opened_with
from .rig import arrive as asked
from .test_marks import prompt_of

WORLDS, STORES = [1, 2, 3], [RADIX, FLAT]
FLAGS = {"marks": 1, "keep_resuming": 1, "keep_at_end": 1, "prefix_wait": 1, "keep_unsummed": 1}
GRID = fake_rules(512, 2048, drafts=2, min_prompt=4096, min_gap=256)
TEXT = prompt_of(9000)
MARK = 8192  # of a chat of 9,000 tokens
PAGES = 60


def opened_at(store: int, world: int, **settings: Any) -> RunOpened:
    """A run of the fake family at the grid's sizes."""
    fields: dict[str, Any] = {
        "flags": FLAGS | {"store": store}, "plan": flat_plan(10**6), "world": world,
        "devices": ("fake",) * world, "pages": PAGES, "context": 10_000, "prompt_rows": 4096,
    }  # fmt: skip
    return opened_with(GRID, **(fields | settings))


def chat(name: str, text: Sequence[int] = TEXT, new: int = 7, **fields: Any) -> AnyCommand:
    """A wish of a chat, or of ids alone with history_tokens=0."""
    return arrive(name, name, text, new, **({"history_tokens": len(text) - 5} | fields))


def one_by_one(*wishes: AnyCommand) -> Script:
    """Each when the one before it is through."""
    return {1000 * at: [wish] for at, wish in enumerate(wishes)}


def facts_of(steps: Sequence[Step]) -> list[AnyFact]:
    """Every fact of a run."""
    return [fact for step in steps for fact in step.facts]


def ends_of(steps: Sequence[Step]) -> dict[str, f.RequestFinished]:
    """How each request ended."""
    ends = (fact for fact in facts_of(steps) if isinstance(fact, f.RequestFinished))
    return {fact.request: fact for fact in ends}


def kept_marks(steps: Sequence[Step]) -> list[int]:
    """Where states were kept, in order."""
    return [fact.mark for fact in facts_of(steps) if isinstance(fact, f.SnapshotTaken)]


@cache
def sent_again(store: int, world: int) -> tuple[RunOpened, tuple[Step, ...], tuple[int, ...]]:
    """Fresh, again, then twice at once, one of them undrafted; pages in use after each turn."""
    used: list[int] = []

    def look(turn: int, state: State, devices: Sequence[Device]) -> None:
        used.append(PAGES - state.book.free)

    opened = opened_at(store, world)
    script = one_by_one(chat("fresh"), chat("again"), chat("one"))
    script[2000].append(chat("two", draft=False))
    return opened, tuple(record(opened, script, look, fakes)), tuple(used)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("store", STORES)
def test_a_resumed_reply_is_the_fresh_one_drafted_or_not(store: int, world: int) -> None:
    """At ranks 1, 2, 3: one hash for all of them, over stores and ranks too."""
    _, steps, _ = sent_again(store, world)
    ends = ends_of(steps)
    assert {name: end.cached_tokens for name, end in ends.items()} == {
        "fresh": 0, "again": MARK, "one": MARK, "two": MARK,
    }  # fmt: skip
    first = ends_of(sent_again(RADIX, 1)[1])["fresh"]
    assert {end.token_sha for end in ends.values()} == {first.token_sha}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("store", STORES)
def test_sent_twice_at_once_both_resume_and_share_pages(store: int, world: int) -> None:
    """In the radix store two streams hold fewer pages than two; copies are each their own."""
    _, steps, used = sent_again(store, world)
    begun = [fact for fact in facts_of(steps) if isinstance(fact, f.StreamBegun)]
    ends = ends_of(steps)
    assert [ends[name].cached_tokens for name in ("one", "two")] == [MARK, MARK]
    whole = -(-(9000 + 7 + 2) // 512)
    promised = [fact.promise_pages for fact in begun]
    if store == RADIX:
        assert [fact.kept_pages for fact in begun] == [0, 16, 16, 16]
        assert promised == [whole, whole - 16, whole - 16, whole - 16]
        assert max(used) < 2 * whole
    else:
        assert promised == [whole] * 4
        assert max(used) > whole


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("store", STORES)
def test_equal_cold_prompts_at_once_cost_one_prompt(store: int, world: int) -> None:
    """With nothing kept before: all but the first wait for its mark."""
    steps = record(opened_at(store, world), {0: [chat(name) for name in "abc"]}, make=fakes)
    assert [end.cached_tokens for end in ends_of(steps).values()] == [0, MARK, MARK]
    assert len({end.token_sha for end in ends_of(steps).values()}) == 1
    rows = sum(fact.rows for fact in facts_of(steps) if isinstance(fact, f.PromptStepRun))
    assert rows == 9000 + 2 * (9000 - MARK)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("store", STORES)
def test_ids_sent_twice_gain_the_last_mark_of_the_grid_by_reference_alone(
    store: int, world: int
) -> None:
    """8,500 ids have their last mark at 8,192; copies are kept of chats alone."""
    wishes = [chat(name, TEXT[:8500], history_tokens=0) for name in ("fresh", "again")]
    steps = record(opened_at(store, world), one_by_one(*wishes), make=fakes)
    ends = ends_of(steps)
    assert ends["again"].cached_tokens == (8192 if store == RADIX else 0)
    assert ends["again"].token_sha == ends["fresh"].token_sha
    assert kept_marks(steps) == ([8192] if store == RADIX else [])


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("spare", "cached"), [(-1, 0), (0, MARK)])
def test_a_copy_over_the_budget_is_not_kept_and_the_next_send_runs_whole(
    spare: int, cached: int, world: int
) -> None:
    """A byte too little, and just enough."""
    room = state_bytes(opened_at(FLAT, world), MARK) + spare
    opened = opened_at(FLAT, world, plan=flat_plan(room))
    steps = record(opened, one_by_one(chat("fresh"), chat("again")), make=fakes)
    ends = ends_of(steps)
    assert ends["again"].cached_tokens == cached
    assert ends["again"].token_sha == ends["fresh"].token_sha
    assert kept_marks(steps) == ([MARK] if cached else [])


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(("differs", "cached"), [(8191, 0), (8192, 0), (8193, 8192)])
def test_the_token_at_a_mark_belongs_to_its_state(
    store: int, world: int, differs: int, cached: int
) -> None:
    """Equal up to the mark but another token at it is no hit; one later it is."""
    other = [*TEXT[:differs], TEXT[differs] ^ 1, *TEXT[differs + 1 :]]
    wishes = [chat("first"), chat("other", other)]
    ends = ends_of(record(opened_at(store, world), one_by_one(*wishes), make=fakes))
    assert ends["other"].cached_tokens == cached


# --- F32: the store's own tests, at pages of 512 rows and marks of 2,048 -------------------------


def nothing(turn: int, state: State, devices: Sequence[Device]) -> None:
    """Leave the devices alone."""


def checked(opened: RunOpened, script: Script, meddle: Meddle = nothing) -> list[Step]:
    """A run whose marks are all on the grid, which is decided again alike and audited."""
    steps = record(opened, script, meddle, fakes)
    marks = [fact.mark for fact in facts_of(steps) if isinstance(fact, f.SnapshotTaken)]
    assert marks and all(mark % 2048 == 0 for mark in marks)
    assert rebook(opened, steps).first is None
    assert audit_run(opened, steps) == []
    return steps


@pytest.mark.parametrize("world", WORLDS)
def test_a_prompt_resumes_the_deepest_state_that_it_repeats(world: int) -> None:
    """F32, 1 of 6: three turns of a chat, then a branch of it that has the second in common."""
    turns = [chat(str(length), TEXT[:length]) for length in (4500, 6500, 9000)]
    branch = chat("branch", TEXT[:7000] + TEXT[::-1][:1500])
    steps = checked(opened_at(RADIX, world), one_by_one(*turns, branch))
    cached = {name: end.cached_tokens for name, end in ends_of(steps).items()}
    assert cached == {"4500": 0, "6500": 4096, "9000": 6144, "branch": 6144}


@pytest.mark.parametrize("world", WORLDS)
def test_prompts_that_part_share_the_pages_before_they_part(world: int) -> None:
    """F32, 2 of 6: 8,192 rows of each, 6,000 in common: 11 pages once, 5 twice."""
    other = TEXT[:6000] + TEXT[::-1][:3000]
    steps = checked(opened_at(RADIX, world), one_by_one(chat("one"), chat("other", other)))
    one, two = (fact.pages for fact in facts_of(steps) if isinstance(fact, f.SnapshotTaken))
    assert [len(one), len(two), len({*one, *two})] == [16, 16, 21]
    assert one[:11] == two[:11]


@pytest.mark.parametrize("world", WORLDS)
def test_a_stream_uses_the_trees_pages_in_place_of_its_equal_ones(world: int) -> None:
    """F32, 3 of 6: two that start cold at once, for once without waiting."""
    flags = FLAGS | {"store": RADIX, "prefix_wait": 0}
    steps = checked(opened_at(RADIX, world, flags=flags), {0: [chat("one"), chat("two")]})
    swapped = [fact for fact in facts_of(steps) if isinstance(fact, f.PagesSwapped)]
    assert sum(len(fact.pages) for fact in swapped) == 16
    assert len(kept_marks(steps)) == 1
    assert len({end.token_sha for end in ends_of(steps).values()}) == 1


@pytest.mark.parametrize("world", WORLDS)
def test_of_two_states_the_one_that_never_came_back_goes(world: int) -> None:
    """F32, 4 of 6: states are bounded by their count, whatever pages are free."""
    texts = {name: [at, *TEXT[at:5000]] for at, name in enumerate(("hit", "unhit", "new"), 1)}
    order = ("hit", "unhit", "hit", "new", "hit", "unhit")
    wishes = [chat(f"{name}{at}", texts[name]) for at, name in enumerate(order)]
    steps = checked(opened_at(RADIX, world, states=2), one_by_one(*wishes))
    cached = [end.cached_tokens for end in ends_of(steps).values()]
    assert cached == [0, 0, 4096, 0, 4096, 0]


@pytest.mark.parametrize("world", WORLDS)
def test_kept_pages_are_reclaimed_for_a_stream_that_needs_them(world: int) -> None:
    """F32, 5 of 6: three states hold 48 of 60 pages; a fourth chat starts at once."""
    wishes = [chat(str(at), [at, *TEXT[1:]]) for at in range(4)]
    again = chat("0 again", [0, *TEXT[1:]])
    steps = checked(opened_at(RADIX, world), one_by_one(*wishes, again))
    dropped = [fact for fact in facts_of(steps) if isinstance(fact, f.StateDropped)]
    assert [(fact.state, fact.why) for fact in dropped[:1]] == [(0, "reclaimed")]
    for step in steps:
        kinds = [fact.kind for fact in step.facts]
        assert kinds.count("stream_queued") == kinds.count("stream_begun"), "nobody waited"
    assert ends_of(steps)["0 again"].cached_tokens == 0, "its state went: a clean miss"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("store", STORES)
def test_a_state_that_a_rank_can_not_read_back_is_forgotten(store: int, world: int) -> None:
    """F32, 6 of 6: the prompt runs from row 0 with an equal reply, and is kept anew."""

    def refuse(turn: int, state: State, devices: Sequence[Device]) -> None:
        last: Any = devices[-1]
        last.refuse_resume = 0 in state.kept

    wishes = [chat(name) for name in ("fresh", "again", "third")]
    steps = checked(opened_at(store, world), one_by_one(*wishes), refuse)
    ends = ends_of(steps)
    assert [end.cached_tokens for end in ends.values()] == [0, 0, MARK]
    assert len({end.token_sha for end in ends.values()}) == 1
    (refused,) = [fact for fact in facts_of(steps) if isinstance(fact, f.ResumeRefused)]
    assert refused.rank == world - 1
    dropped = [fact for fact in facts_of(steps) if isinstance(fact, f.StateDropped)]
    assert [(fact.state, fact.why) for fact in dropped] == [(0, "damaged")]


def test_a_snapshot_by_reference_has_the_same_bytes_at_any_mark() -> None:
    """What lies past the pages; a copy has its rows beside it."""
    sizes: dict[int, set[int]] = {RADIX: set(), FLAT: set()}
    for store in STORES:
        for tokens in (40, 170):
            flags = FLAGS | {"store": store}
            rig = Rig(glm_opened(0, flags=flags, plan=flat_plan(10**9), pages=30), glm_device)
            try:
                text = [(at * 7) % 500 for at in range(tokens)]
                rig.step(asked("one", text, 2, history_tokens=tokens))
                rig.settle()
                (copy,) = rig.device.copies.values()
                assert (copy.pages is None) == (store == RADIX)
                arrays = [copy.states, copy.raw]
                if copy.pages is not None:
                    arrays += [copy.pages.latent, copy.pages.keys]
                sizes[store].add(sum(array.nbytes for array in arrays))
            finally:
                rig.device.close()
    assert len(sizes[RADIX]) == 1
    assert len(sizes[FLAT]) == 2 and min(sizes[FLAT]) > max(sizes[RADIX])
