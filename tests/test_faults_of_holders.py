"""Given twice, never given, given late: one test for each kind of fault, named for what forbids it.

A lease has no deadline, because whoever answers a resume answers in its step's report or ends the
run; what is left is that every ending gives every page back. There are no two engines that hand
rows to each other.
"""

from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise, permutations, product
from typing import Any

import pytest

from kvtape.core.apply import apply
from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.pages import PageBook
from kvtape.core.state import State, open_state
from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.commands import AnyCommand
from kvtape.events.facts import AnyFact
from kvtape.events.ids import PageId, RequestId
from kvtape.events.reader import Step
from kvtape.replay.audit import audit_run

from .replay_bench import arrive as wished
from .replay_bench import chats, opening
from .rig import Rig, arrive, opened_with
from .test_machine import check_reply
from .test_play import of
from .wire import Wire, listened

TEXT = [(7 * at + at // 5) % 31 for at in range(60)]
KINDS = {"states": fake_rules(8, 8, drafts=1), "pages": paged_rules()}
BOTH = pytest.mark.parametrize("kind", KINDS)


def rig_of(kind: str, **settings: object) -> Rig:
    """A small machine of a kind."""
    return Rig(opened_with(KINDS[kind], **({"pages": 40, "poison": "a"} | settings)))


def assert_nothing_is_held(state: State) -> None:
    """Every page is free or a kept state's, and nobody is promised any."""
    assert not state.book.leases.any() and state.book.promised == 0
    assert state.book.free + int((state.book.kept > 0).sum()) == state.book.total


# --- given twice ----------------------------------------------------------------------------------

GIVES = (f.PagesReturned, f.StateDropped, f.StreamReleased, f.RequestFinished, f.ResumeRefused)


@pytest.mark.parametrize("kind", ["drafted", "paged"])
def test_what_was_given_back_is_not_given_back_again(kind: str) -> None:
    """Told again at once or at the end, it is refused, and the audit names its event."""
    wire = listened(opening(kind, pages=30), chats())
    facts = list(wire.facts)
    given = [at for at, fact in enumerate(facts) if isinstance(fact, GIVES)]
    kinds = {facts[at].kind for at in given}
    assert len(given) > 20 and {"pages_returned", "state_dropped", "stream_released"} <= kinds
    state = open_state(wire.opened)
    for at, fact in enumerate(facts):
        apply(state, fact)
        if at in given and not state.closed:
            with pytest.raises((AssertionError, KeyError)):
                apply(deepcopy(state), fact)
    twice = [*wire.steps]
    first = next(step for step in twice if any(isinstance(one, GIVES) for one in step.facts))
    again = next(fact for fact in first.facts if isinstance(fact, GIVES))
    late = twice[-2]
    twice[-2] = Step(late.step, late.first, late.commands, (*late.facts, again))
    (found,) = audit_run(wire.opened, twice)
    seq = late.first + len(late.commands) + len(late.facts)
    assert found.where == f"event {seq}, {again.kind}"


@BOTH
def test_a_fact_about_a_stream_or_state_that_is_gone_is_refused(kind: str) -> None:
    """Ids are never used again, so an old one finds nobody."""
    rig = rig_of(kind, states=1)
    for at in range(3):
        rig.step(arrive(f"r{at}", [at, *TEXT[:30]], 3))
        rig.settle()
    streams = [fact.stream for fact in of(f.StreamQueued, rig)]
    states = [fact.state for fact in of(f.SnapshotTaken, rig)]
    assert streams == sorted(set(streams)) and states == sorted(set(states))
    gone = [fact for fact in rig.facts if getattr(fact, "stream", None) == streams[0]]
    gone += [fact for fact in rig.facts if getattr(fact, "state", None) == states[0]]
    for fact in gone:
        with pytest.raises((AssertionError, KeyError, IndexError)):
            apply(deepcopy(rig.state), fact)


# --- ended at any moment --------------------------------------------------------------------------


def endings(kind: str) -> list[int]:
    """How many turns the story of two chats that share a prompt takes."""
    rig = story(rig_of(kind))
    rig.settle()
    return list(range(len(rig.steps) + 1))


def story(rig: Rig, *more: AnyCommand) -> Rig:
    """One chat is kept, another resumes it beside a third."""
    rig.step(arrive("first", TEXT[:34], 3, history_tokens=33))
    rig.settle()
    rig.step(arrive("goes", TEXT[:40], 9, history_tokens=39), arrive("stays", TEXT[:50], 7), *more)
    return rig


@BOTH
def test_a_cancel_at_any_moment_is_legal_on_the_tape_and_leaves_nothing(kind: str) -> None:
    """In the turn of its arrival, in the queue, before it has a page, resuming, at its end."""
    reasons = set[str]()
    for lanes, turns in product((1, 4), range(16)):
        cancel = c.Cancel(request=RequestId("goes"), why="client left")
        rig = story(rig_of(kind, lanes=lanes), *([] if turns else [cancel]))
        for _ in range(turns - 1):
            rig.step()
        facts = rig.step(cancel) if turns else rig.steps[-1]
        told = [fact for fact in facts if isinstance(fact, f.RequestCancelled)]
        ended = rig.finished[cancel.request].reason
        assert len(told) == (ended == "cancelled"), ended
        reasons.add(ended)
        assert cancel in rig.commands[-1]
        assert cancel.request not in rig.state.requests
        rig.settle()
        assert_nothing_is_held(rig.state)
        check_reply(rig, "stays", rig.finished[RequestId("stays")])
    assert reasons == {"cancelled", "length"}


@BOTH
def test_a_run_that_ends_at_any_moment_gives_every_page_back(kind: str) -> None:
    """In order, or by a fault that ends it, also while the ranks have yet to answer a resume."""
    for lost, turns in product((False, True), endings(kind)):
        rig = story(rig_of(kind, lanes=2))
        for _ in range(turns):
            if not rig.idle:
                rig.step()
        if lost:
            rig.news = []  # whoever should have answered died
        rig.step(c.Close(reason="rank_lost" if lost else "closed"))
        assert rig.state.closed and not rig.state.streams
        assert_nothing_is_held(rig.state)


def test_a_cancel_reaches_every_rank_in_its_step() -> None:
    script = chats()
    wire = listened(opening("drafted", world=3), script)
    cancelled = wire.of("request_cancelled")
    assert len(cancelled) == 2
    for fact in cancelled:
        turns = [turn_of(wire, rank, fact) for rank in range(3)]
        assert len(set(turns)) == 1
        heard = [spy.heard[turns[0]] for spy in wire.ranks]
        assert len({(one.book, one.tables, one.leases) for one in heard}) == 1
        assert any(isinstance(one, f.StreamReleased) for one in heard[2].facts)


def turn_of(wire: Wire, rank: int, fact: AnyFact) -> int:
    """The turn in which a rank heard a fact."""
    return next(at for at, heard in enumerate(wire.ranks[rank].heard) if fact in heard.facts)


@BOTH
def test_cancels_of_what_is_over_are_on_the_tape_and_do_nothing(kind: str) -> None:
    rig = rig_of(kind)
    rig.step(arrive("done", TEXT[:20], 3))
    rig.settle()
    book = deepcopy(rig.state.book)
    useless = [c.Cancel(request=RequestId("done"), why="late") for _ in range(50)]
    assert rig.step(*useless) == ()
    assert list(rig.commands[-1]) == useless, "and can be counted"
    assert rig.state.book == book


# --- in any order ---------------------------------------------------------------------------------


@BOTH
def test_news_in_any_order_frees_once_and_answers_all(kind: str) -> None:
    """Two resumes of one state, a step's outcome, a cancel and a flush, in all 120 orders."""
    seen = set()
    for order in permutations(range(5)):
        rig = rig_of(kind)
        rig.step(arrive("kept", TEXT[:34], 3, history_tokens=33))
        rig.settle()
        rig.step(arrive("runs", TEXT[9:20], 6))
        rig.step()
        rig.step(*(arrive(name, TEXT[:40], 6, history_tokens=39) for name in ("one", "two")))
        done, one, two = rig.news
        assert [news.kind for news in rig.news] == ["device_done", "resume_acked", "resume_acked"]
        cancel = c.Cancel(request=RequestId("one"), why="client left")
        told: list[AnyCommand] = [done, one, two, cancel, c.Flush()]
        rig.news = [told[at] for at in order]
        facts = rig.step()  # invariants are asserted after every fact
        rig.settle()
        assert_nothing_is_held(rig.state)
        for request, end in rig.finished.items():
            check_reply(rig, request, end)
        assert rig.finished[RequestId("two")].reason == "length"
        seen.add(tuple(fact.kind for fact in facts))
    assert len(seen) > 4, "orders differ in what they do"


# --- only what is committed is shared -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drafted", "plain", "paged"])
def test_a_page_is_shared_only_after_the_step_that_filled_it_is_closed(kind: str) -> None:
    """Also where prompts are cut short by cancels, and where equal ones run beside each other."""
    script = chats(4, 3)
    for turn in range(0, 30, 3):
        cancel = c.Cancel(request=RequestId(f"x{turn}"), why="left")
        script.setdefault(turn, []).append(wished(f"x{turn}", "x", TEXT[: 20 + turn], 4))
        script.setdefault(turn + 1 + turn % 4, []).append(cancel)
    wire = listened(opening(kind, pages=80, prompt_rows=7, lanes=5), script)
    closed: dict[int, int] = {}
    open_rows: dict[int, int] = {}
    shared = 0
    for fact in wire.facts:
        match fact:
            case f.StateResumed():
                closed[fact.stream] = fact.mark
            case f.PromptStepRun():
                open_rows[fact.stream] = fact.first + fact.rows
            case f.RowsKept():
                for stream, count in zip(fact.streams, spans(fact.starts), strict=True):
                    if stream not in open_rows:
                        closed[stream] = closed.get(stream, 0) + count
            case f.StepClosed():
                closed.update(open_rows)
                open_rows.clear()
            case f.SnapshotTaken():
                assert fact.mark <= closed.get(fact.stream, 0)
                shared += 1
            case _:
                pass
    assert shared > 5 and len(wire.of("request_cancelled")) > 5


def spans(starts: Sequence[int]) -> list[int]:
    """Counts, of an indptr."""
    return [last - first for first, last in pairwise(starts)]


def test_a_state_past_its_streams_rows_is_refused() -> None:
    rig = rig_of("states")
    rig.step(arrive("one", TEXT[:34], 3))
    before = deepcopy(rig.state)
    while not of(f.SnapshotTaken, rig):
        before = deepcopy(rig.state)
        rig.step()
    taken = of(f.SnapshotTaken, rig)[0]
    with pytest.raises(AssertionError, match="is past row"):
        apply(before, taken.model_copy(update={"mark": before.streams[taken.stream].rows + 8}))


# --- the book, in all its small states ------------------------------------------------------------

Holders = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]


def moves(tables: list[list[int]], kept: list[list[int]], free: int) -> list[tuple[str, int, int]]:
    """What may happen to a book of two sequences and two kept states."""
    found: list[tuple[str, int, int]] = []
    for one in range(2):
        if free:
            found.append(("lease", one, 0))
        if tables[one]:
            found.append(("return", one, 0))
            found += [("keep", one, state) for state in range(2) if not kept[state]]
        if kept[one]:
            found.append(("drop", one, 0))
            found += [("adopt", seq, one) for seq in range(2) if not tables[seq]]
    return found


def moved(
    book: PageBook, tables: list[list[int]], kept: list[list[int]], move: tuple[str, int, int]
) -> None:
    """Make one move in the book and in lists of who holds what."""
    verb, one, state = move
    ids: Any = [PageId(page) for page in (kept[one] if verb == "drop" else tables[one])]
    match verb:
        case "lease":
            tables[one] += book.take(1)
        case "return":
            book.give_back(ids)
            tables[one] = []
        case "keep":
            book.keep(ids)
            kept[state] = list(ids)
        case "drop":
            book.drop(ids)
            kept[one] = []
        case _:
            book.adopt([PageId(page) for page in kept[state]])
            tables[one] = list(kept[state])


def test_to_evict_takes_one_holder_away_in_every_book_of_two_sequences_and_three_pages() -> None:
    """All that can be reached in seven moves: a page is free exactly when nobody holds it."""
    seen: set[Holders] = set()
    edge: list[tuple[PageBook, list[list[int]], list[list[int]]]] = [
        (PageBook(3, "lowest"), [[], []], [[], []])
    ]
    for _ in range(7):
        after = []
        for book, tables, kept in edge:
            for move in moves(tables, kept, book.free):
                one, mine, theirs = deepcopy(book), deepcopy(tables), deepcopy(kept)
                moved(one, mine, theirs, move)
                for page in range(3):
                    assert one.leases[page] == sum(page in table for table in mine)
                    assert one.kept[page] == sum(page in state for state in theirs)
                held = {page for each in (*mine, *theirs) for page in each}
                assert one.free_pages() == sorted({0, 1, 2} - held)
                name = tuple(tuple(map(tuple, each)) for each in (mine, theirs))
                if name not in seen:
                    seen.add(name)  # type: ignore[arg-type]
                    after.append((one, mine, theirs))
        edge = after
    assert len(seen) > 100


@BOTH
def test_an_evicted_state_leaves_its_pages_to_whoever_reads_them(kind: str) -> None:
    """Two streams read its pages as it goes; they end with the replies that they have alone."""
    lent = 0
    for turns in range(1, 8):
        rig = rig_of(kind, pages=60, states=1)
        rig.step(arrive("kept", TEXT[:34], 3, history_tokens=33))
        rig.settle()
        rig.step(*(arrive(name, TEXT[:40], 12, history_tokens=39) for name in ("one", "two")))
        for _ in range(turns):
            rig.step()
        rig.step(arrive("other", TEXT[20:41], 2))
        rig.settle()
        assert_nothing_is_held(rig.state)
        for request, end in rig.finished.items():
            check_reply(rig, request, end)
        lent += drops_of_lent_pages(rig)
    assert lent > 3


def drops_of_lent_pages(rig: Rig) -> int:
    """How many states went while others read their pages; none of these drops ended a lease."""
    state, found = open_state(rig.opened), 0
    for fact in rig.facts:
        before = state.book.leases.copy()
        pages = list(state.kept[fact.state].pages) if isinstance(fact, f.StateDropped) else []
        apply(state, fact)
        if pages:
            assert (state.book.leases == before).all(), "a drop ends no lease"
            found += bool((before[pages] > 0).any())
            assert not set(state.book.free_pages()) & set(before.nonzero()[0].tolist())
    return found
