"""The compiled prompt tree beside the plain one: the same answers, and the same words at last."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvtape.core.evict import LRU, ODDS, SEEDS
from kvtape.core.pages import PageBook
from kvtape.core.paging import layout as at
from kvtape.core.paging import odds
from kvtape.core.tree import PromptTree
from kvtape.events.ids import NO_STATE, PageId, StateId, StreamId

from .plain_odds import Odds
from .plain_tree import Order, PlainTree


@dataclass
class Talk:
    """A stream: its prompt, its salt, its table, whole pages of its prompt."""

    tokens: list[int]
    salt: str
    table: list[PageId]
    pages: int


@dataclass
class Pair:
    """Both trees over one page book, and whoever uses them."""

    rng: random.Random
    policy: int
    ahead: int
    pages: int
    rows: int
    kept: dict[StateId, tuple[Talk, int]] = field(default_factory=dict)
    talks: dict[StreamId, Talk] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    states: int = 0
    streams: int = 0

    def __post_init__(self) -> None:
        order = Order(Odds(self.pages) if self.policy == ODDS else None)
        self.tree = PromptTree(self.rows, self.ahead, self.pages, self.policy)
        self.plain = PlainTree(self.rows, self.ahead, None if self.policy == SEEDS else order)
        self.book = PageBook(self.pages, "lowest")

    def walk(self, tokens: list[int], salt: str, count: int) -> tuple[PageId, ...]:
        """What both find."""
        mine, theirs = self.tree.walk(tokens, salt, count), self.plain.walk(tokens, salt, count)
        assert mine.pages == tuple(node.page for node in theirs)
        assert mine.ends == bool(theirs and theirs[-1].ends)
        known = self.tree.remembered(tokens, count)
        assert known == self.plain.remembered(tokens, salt, count)
        ends = [depth for depth, node in enumerate(theirs, 1) if node.ends]
        assert self.tree.with_state(mine).pages == mine.pages[: max(ends, default=0)]
        if theirs:
            found = self.tree.state_below(mine.node)
            assert found == self.plain.state_below(theirs[-1])
        return mine.pages

    def begin(self) -> None:
        """A prompt that goes on with another, or not; others go for it."""
        rng, base = self.rng, list[int]()
        if self.kept and rng.random() < 0.6:
            base = rng.choice([talk.tokens for talk, _ in self.kept.values()])
            base = base[: rng.randint(0, len(base))]
        tokens = base + [
            rng.randrange(3) for _ in range(rng.randint(1, 6) * self.rows + self.ahead)
        ]
        count = min((len(tokens) - self.ahead) // self.rows, self.pages // 3)
        tokens, salt = tokens[: count * self.rows + self.ahead], rng.choice(("", "", "a", "b"))
        found = self.walk(tokens, salt, count)
        hit = self.tree.state_below(self.tree.words.item(at.WALKED)) if found else NO_STATE
        if not self.make_room(count - len(found), hit):
            return
        stream = StreamId(self.streams)
        self.streams += 1
        self.book.adopt(found)
        if found and rng.random() < 0.9:
            for tree in (self.tree, self.plain):
                tree.resumed(hit, len(found), stream, count - self.streams % 2 * count)
            self.done.add("resumed")
        table = [*found, *self.book.take(count - len(found))]
        self.talks[stream] = Talk(tokens, salt, table, count)

    def make_room(self, want: int, hit: StateId) -> bool:
        """Whether so many pages are free once others went."""
        while self.book.free < want:
            leases = self.book.leases
            if self.policy == SEEDS:
                idle = [one for one, (talk, count) in self.kept.items()
                        if one != hit and not leases[talk.table[count - 1]]]  # fmt: skip
                goes = min(idle, default=None)
            else:
                goes = self.tree.weakest(leases, hit)
                assert goes == self.plain.weakest(self.may_go(leases, hit))
            if goes is None:
                return False
            self.drop(goes)
        return True

    def may_go(self, leases: NDArray[np.int32], hit: StateId) -> Callable[[StateId, PageId], bool]:
        """As the plain tree asks it."""
        return lambda state, page: not leases[page] and state != hit

    def drop(self, state: StateId) -> None:
        """A state goes."""
        talk, count = self.kept.pop(state)
        self.tree.drop(state)
        self.plain.drop(state)
        self.book.drop(talk.table[:count])
        self.done.add("dropped")

    def keep(self) -> None:
        """A stream leaves a state of some of its prompt, on the tree's pages where it has them."""
        stream = self.rng.choice(list(self.talks))
        talk = self.talks[stream]
        count = self.rng.randint(1, talk.pages)
        tokens = talk.tokens[: count * self.rows + self.ahead]
        found = self.walk(tokens, talk.salt, count)
        table, new = np.array(talk.table, np.int32), np.array(found, np.int32)
        swapped = sum(a != b for a, b in zip(found, talk.table, strict=False))
        assert self.book.swap(table, new) == swapped
        talk.table = table.tolist()
        ends = found and self.tree.words[self.tree.words[at.WALKED] + at.STATE]
        if ends and len(found) == count and self.rng.random() < 0.9:
            return
        state, mine = StateId(self.states), talk.table[:count]
        self.states += 1
        self.book.keep(mine)
        self.kept[state] = Talk(tokens, talk.salt, mine, count), count
        for tree in (self.tree, self.plain):
            tree.add(state, tokens, talk.salt, mine, stream, talk.pages)
        self.done.add("added")

    def end(self) -> None:
        """A stream ends."""
        stream = self.rng.choice(list(self.talks))
        self.book.give_back(self.talks.pop(stream).table)
        self.tree.ended(stream)
        self.plain.ended(stream)

    def act(self) -> None:
        """Something at random."""
        chance = self.rng.random()
        if chance < 0.45:
            self.begin()
        elif chance < 0.7 and self.talks:
            self.keep()
        elif chance < 0.92 and self.talks:
            self.end()
        elif chance > 0.97 and self.kept:
            self.drop(self.rng.choice(list(self.kept)))

    def same(self) -> None:
        """Paths, who extends whom, queues, and all that was learned are the same."""
        tree, plain, m = self.tree, self.plain, self.tree.words
        assert dict(tree.paths()) == dict(plain.paths())
        for state in self.kept:
            assert tree.moved_past(state) == plain.moved_past(state)
            assert tree.passed_by(state) == plain.passed_by(state)
        if plain.order is not None:
            queues = [self.queue(level) for level in range(odds.LEVELS)]
            assert queues == plain.order._queues and m[at.CLOCK] == plain.order.clock
            among = [one for one in self.kept if self.rng.random() < 0.5]
            assert tree.weakest_of(among) == plain.order.weakest(set(among).__contains__)
        if plain.odds is not None:
            assert m[odds.WEIGHTS : odds.GAPS].tolist() == plain.odds._weights
            assert m[odds.GAPS : odds.WORTHS].tolist() == plain.odds._gaps
            worths = [worth for level in plain.odds._worth for worth in level]
            assert m[odds.WORTHS : odds.HEAD].tolist() == worths
            assert m[at.GONE_COUNT] == len(plain.odds._gone)
            parts = [(one.born, one.at, one.level, one.returned) for one in plain.odds._parts]
            assert self.parts() == parts

    def queue(self, level: int) -> list[tuple[int, int]]:
        """Who waits, the oldest first."""
        m, found = self.tree.words, []
        state = m[at.QUEUES + 2 * level]
        while state:
            found.append((m[state + at.SINCE], m[state + at.STATE_ID]))
            state = m[state + at.AFTER]
        return found

    def parts(self) -> list[tuple[int, int, int, bool]]:
        """Those that have their time."""
        m, found = self.tree.words, []
        for number in range(m[at.PART_FIRST], m[at.PART_NEXT]):
            part = m[at.PARTS] + (number & m[at.PARTS_MASK]) * at.RECORD
            told = (m[part + field] for field in (at.BORN, at.AT, at.ODDS))
            found.append((*told, bool(m[part + at.RETURNED])))
        return found


@pytest.mark.parametrize("policy", [SEEDS, LRU, ODDS])
@settings(max_examples=12)
@given(seed=st.integers(0, 2**32), pages=st.sampled_from([12, 30, 60]), rows=st.integers(1, 3))
def test_whatever_happens_both_trees_say_the_same(
    policy: int, seed: int, pages: int, rows: int
) -> None:
    pair = Pair(random.Random(seed), policy, seed % 2, pages, rows)
    for at_once in range(300):
        pair.act()
        if at_once % 20 == 0:
            pair.same()


def test_after_a_long_time_too_and_all_of_it_happens() -> None:
    """Long enough for what came back to be looked at anew, and for parts to have had their time."""
    pair = Pair(random.Random(5), ODDS, 1, 30, 2)
    for at_once in range(6000):
        pair.act()
        if at_once % 500 == 0:
            pair.same()
    assert pair.done == {"added", "dropped", "resumed"}
    assert pair.tree.words[at.CLOCK] > 1024 and pair.tree.words[at.PART_FIRST] > 100
    assert pair.tree.words[odds.WORTHS : odds.HEAD].any()


def test_a_hash_alone_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pages of one name: only the tokens tell them apart."""
    tree = PromptTree(2, 0, 8)
    tree.add(StateId(0), [1, 2], "", [PageId(3)], StreamId(0), 1)
    tree.keys[3, 1] = 7  # as if it had been kept for other tokens of this name
    assert tree.walk([1, 2], "", 1).pages == ()


def test_what_does_not_fit_the_tree_is_refused() -> None:
    tree = PromptTree(1, 0, 4, LRU)
    tree.add(StateId(0), [1, 2], "", [PageId(0), PageId(1)], StreamId(0), 2)
    for tokens, pages in (([1, 3], [2, 3]), ([5], [1]), ([5], [4]), ([5], [-1])):
        with pytest.raises(AssertionError, match="keeps pages where the tree has others"):
            tree.add(StateId(1), tokens, "", [PageId(page) for page in pages], StreamId(1), 2)
    with pytest.raises(AssertionError, match="kept already"):
        tree.add(StateId(0), [9], "", [PageId(2)], StreamId(1), 1)
    with pytest.raises(KeyError):
        tree.drop(StateId(1))


def test_salts_and_states_have_room_whatever_their_number() -> None:
    tree = PromptTree(1, 0, 300, ODDS)
    for at_once in range(300):
        page = [PageId(at_once)]
        tree.add(StateId(at_once), [at_once % 2], str(at_once), page, StreamId(at_once), 1)
    assert [tree.walk([at_once % 2], str(at_once), 1).pages for at_once in range(300)] == [
        (PageId(at_once),) for at_once in range(300)
    ]
