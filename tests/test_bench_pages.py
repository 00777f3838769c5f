"""The benchmark of page operations: what it counts, that both figures count the same, its trace."""

from pathlib import Path
from statistics import median

import numpy as np
import pytest

from kvtape.core.evict import POLICIES
from kvtape.core.paging.layout import CAME, CLOCK, GONE_COUNT, PART_FIRST, PART_NEXT
from kvtape.core.paging.odds import HEAD, WEIGHTS
from kvtape.events import facts as f
from kvtape.events.ids import Token
from kvtape.events.reader import Tape
from kvtape.replay.bench_pages import (
    KINDS,
    Counted,
    Noted,
    PageOptions,
    asked_of,
    opened_of,
    play,
    pool,
)
from kvtape.replay.bench_pool import Pool
from kvtape.replay.bench_pool_tape import TapedPool
from kvtape.replay.bench_turns import STEP
from kvtape.replay.book import rebook
from kvtape.replay.simulate import arrive
from kvtape.replay.simulate_audit import audit_simulated
from kvtape.replay.simulate_made import made_trace
from kvtape.replay.simulate_trace import Asked

from .small_trace import small_trace

OF_PAGES = (
    f.PagesAdopted,
    f.PagesLeased,
    f.PagesSwapped,
    f.PagesReturned,
    f.SnapshotTaken,
    f.StateDropped,
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_trace(tmp_path_factory.mktemp("trace") / "small.jsonl"))


@pytest.mark.parametrize("policy", POLICIES)
def test_what_comes_goes_and_every_page_is_counted_once(trace: str, policy: str) -> None:
    options = PageOptions(trace, pages=60, live=4, policy=policy)
    asked, counted = asked_of(options), Counted()
    play(opened_of(options, asked), [arrive(*one) for one in enumerate(asked)], None, counted)
    pages = counted.pages
    assert set(pages) == set(KINDS) and all(pages[kind] > 0 for kind in KINDS)
    assert pages["returned"] == pages["found"] + pages["leased"]
    written = sum(len(one.prompt) + one.reply - 1 for one in asked)
    assert pages["returned"] >= written, "each row is a page, the last token has none"
    if policy != "seeds":  # which gives up states that are being resumed: such streams begin again
        assert pages["returned"] == written
    assert 0 <= pages["kept"] - pages["let go"] <= options.pages
    assert counted.operations == sum(pages[kind] for kind in KINDS)


def test_with_a_tape_the_same_is_done_and_the_tape_is_sound(trace: str, tmp_path: Path) -> None:
    options = PageOptions(trace, pages=60, live=4)
    asked, bare, taped = asked_of(options), Counted(), Counted()
    opened, wishes = opened_of(options, asked), [arrive(*one) for one in enumerate(asked)]
    assert play(opened, wishes, None, bare) > 0
    assert play(opened, wishes, tmp_path / "run.tape", taped) > 0
    assert (bare.pages, bare.facts) == (taped.pages, taped.facts)
    assert audit_simulated(tmp_path / "run.tape") == []
    with Tape.open(tmp_path / "run.tape") as tape:
        assert rebook(tape.opened, tape.steps()).first is None
        steps = list(tape.steps())
    ended = [one for step in steps for one in step.facts if isinstance(one, f.RequestFinished)]
    assert len(ended) == len(asked)
    assert len(steps) < len(asked), "streams of one step share its commit"


def test_a_page_is_kept_once_however_many_states_hold_it() -> None:
    def prompt(*tokens: int) -> Asked:
        return Asked(0, tuple(map(Token, tokens)), 2, len(tokens))

    asked = [prompt(1, 2, 3, 90), prompt(1, 2, 3, 4, 91), prompt(1, 2, 92)]
    options, counted = PageOptions(pages=40, live=1), Counted()
    play(opened_of(options, asked), [arrive(*one) for one in enumerate(asked)], None, counted)
    assert counted.pages["kept"] == 4 and counted.pages["let go"] == 0
    assert counted.pages["found"] == 3 + 2
    assert counted.pages["leased"] == (4 + 1) + (2 + 1) + (1 + 1)


def test_the_made_trace_is_like_the_public_one_and_always_the_same() -> None:
    asked = made_trace(1, requests=4000)
    assert asked == made_trace(1, requests=4000) != made_trace(1, requests=4000, seed=2)
    lengths = [one.ids for one in asked]
    assert 22 < sum(lengths) / len(asked) < 28 and 10 <= median(lengths) <= 18
    seen: set[int] = set()
    found = 0
    for one in asked:
        for token in one.prompt:
            if token not in seen:
                break
            found += 1
        seen.update(one.prompt)
    assert 0.28 < found / sum(lengths) < 0.42, "the public one repeats 36.6 % of its pages"


@pytest.mark.parametrize("policy", ["lru", "odds"])
def test_the_book_layer_ends_with_the_words_of_the_machines_book_and_tree(
    trace: str, policy: str
) -> None:
    """The same pages found, leased, swapped, kept, returned and let go, and as much learned."""
    options = PageOptions(trace, pages=60, live=4, policy=policy)
    asked, noted = asked_of(options), Noted()
    opened, wishes = opened_of(options, asked), [arrive(*one) for one in enumerate(asked)]
    play(opened, wishes, None, noted)
    pool = Pool(opened, wishes)
    pool.play(noted.turns.turns)
    assert pool.counted == noted.counted.pages
    state = noted.state
    assert state is not None and state.tree is not None
    assert pool.book == state.book and not pool.book.promised
    assert dict(pool.tree.paths()) == dict(state.tree.paths())
    mine, theirs = pool.tree.words, state.tree.words
    assert np.array_equal(mine[WEIGHTS:HEAD], theirs[WEIGHTS:HEAD]), "weights, returns, worths"
    for word in (CLOCK, CAME, PART_FIRST, PART_NEXT, GONE_COUNT):
        assert mine[word] == theirs[word]


@pytest.mark.parametrize("together", [1, 3])
def test_what_the_book_layer_tells_a_tape_is_what_the_machine_says_of_pages(
    trace: str, tmp_path: Path, together: int
) -> None:
    options = PageOptions(trace, pages=60, live=4)
    asked, noted = asked_of(options), Noted()
    opened, wishes = opened_of(options, asked), [arrive(*one) for one in enumerate(asked)]
    play(opened, wishes, tmp_path / "machine.tape", noted)
    _, taped = pool(opened, wishes, noted.turns.turns, tmp_path / "book.tape", together)
    assert taped.counted == noted.counted.pages and isinstance(taped, TapedPool)
    told = {}
    for name in ("machine", "book"):
        with Tape.open(tmp_path / f"{name}.tape") as tape:
            facts = [fact for step in tape.steps() for fact in step.facts]
            told[name] = [fact for fact in facts if isinstance(fact, OF_PAGES)]
    assert sorted(map(repr, told["book"])) == sorted(map(repr, told["machine"]))
    assert taped.facts == len(told["book"])
    steps = sum(turn.what == STEP for turn in noted.turns.turns)
    assert -(-steps // together) - 1 <= taped.commits <= -(-steps // together)
