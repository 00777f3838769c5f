"""The orders in which kept prefixes are given up: the queues, and the machine under each."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from kvtape.core.evict import LRU, ODDS, POLICIES, SEEDS, policy_of
from kvtape.core.families.fake import fake_rules
from kvtape.core.paging import layout
from kvtape.core.paging.odds import LEVELS
from kvtape.core.tree import PromptTree
from kvtape.events import facts as f
from kvtape.events.facts import RunOpened
from kvtape.events.ids import NO_STATE, RequestId, StateId
from kvtape.events.records import FamilyRules

from .plain_odds import Odds
from .plain_tree import Order
from .rig import Rig, arrive, opened_with


def pages_alone() -> FamilyRules:
    """Rules of a family whose kept states are pages and nothing else."""
    return fake_rules(page_rows=4, mark_rows=4, lookahead=0).model_copy(
        update={"snapshots": False, "parts": ("rows", "marks", "logits", "tokens")}
    )


def opened_under(
    policy: int, pages: int = 30, *, snapshots: bool = False, **settings: object
) -> RunOpened:
    flags = {"evict": policy, "keep_unsummed": 1}
    rules = fake_rules(page_rows=4, mark_rows=4, lookahead=1) if snapshots else pages_alone()
    return opened_with(rules, flags=flags, pages=pages, states=pages, context=100, **settings)


def test_every_order_has_its_number_and_no_other_is_one() -> None:
    assert POLICIES == {"seeds": 0, "lru": 1, "odds": 3}
    assert policy_of(opened_under(SEEDS)) == SEEDS
    with pytest.raises(AssertionError, match="evict 2"):
        policy_of(opened_under(2))


def least(
    places: dict[StateId, tuple[int, int]],
    worth: Callable[[int, int], int],
    may_go: Callable[[StateId], bool],
) -> StateId | None:
    """Who should go, by the definition: the oldest of each level, of them the least worth."""
    oldest: dict[int, tuple[int, StateId]] = {}
    for state, (level, used) in places.items():
        if may_go(state):
            oldest[level] = min(oldest.get(level, (used, state)), (used, state))
    ranked = {(worth(level, used), used, state): state for level, (used, state) in oldest.items()}
    return ranked[min(ranked)] if ranked else None


@pytest.mark.parametrize("policy", [LRU, ODDS])
def test_the_weakest_is_the_least_worth_of_the_oldest_of_each_level(policy: int) -> None:
    rng = random.Random(policy)
    order = Order(Odds(30) if policy == ODDS else None)

    def worth(level: int, used: int) -> int:
        return order.odds.worth(level, order.clock - used) if order.odds else 0

    held: dict[StateId, tuple[int, int]] = {}
    for _ in range(3000):
        order.tick()
        state = StateId(rng.randrange(40))
        if rng.random() < 0.7:
            held[state] = rng.randrange(LEVELS) if policy == ODDS else 0, rng.randrange(order.clock)
            order.place(state, *held[state])
        else:
            order.forget(state)
            held.pop(state, None)
        barred = {StateId(rng.randrange(40)) for _ in range(5)}
        found = order.weakest(spares(barred))
        assert found == least(held, worth, spares(barred))


def spares(barred: set[StateId]) -> Callable[[StateId], bool]:
    """Whether a state may go, where some may not."""
    return lambda one: one not in barred


def first_to_go(tree: PromptTree, leases: NDArray[np.int32], hit: StateId) -> StateId | None:
    """By the definition: of states that no other extends and that may go, as `least` has them."""
    m, held = tree.words, dict[StateId, tuple[int, int]]()
    for state, pages in tree.paths():
        record = tree._states[state]
        node = m[record + layout.END]
        if not (tree.moved_past(state) or leases[pages[-1]] or m[record + layout.STAYS]):
            held[state] = int(m[node + layout.LEVEL]), int(m[node + layout.USED])
    return least(held, tree.worth, lambda one: one != hit)


@pytest.mark.parametrize("policy", [LRU, ODDS])
@pytest.mark.parametrize("snapshots", [False, True])
def test_the_machine_gives_up_what_the_definition_says(
    monkeypatch: pytest.MonkeyPatch, policy: int, snapshots: bool
) -> None:
    weakest, chosen = PromptTree.weakest, []

    def watched(
        tree: PromptTree, leases: NDArray[np.int32], hit: StateId = NO_STATE
    ) -> StateId | None:
        goes = weakest(tree, leases, hit)
        assert goes == first_to_go(tree, leases, hit) is not None
        chosen.append(goes)
        return goes

    monkeypatch.setattr(PromptTree, "weakest", watched)
    at_random(Rig(opened_under(policy, snapshots=snapshots)), policy)
    assert len(chosen) > 20


def at_random(rig: Rig, seed: int) -> None:
    """Sixty prompts that go on, repeat and part; every fact is checked."""
    rng = random.Random(seed)
    talks: list[list[int]] = []
    for at in range(60):
        old = rng.choice(talks[-5:]) if talks and rng.random() < 0.6 else [1, 2, 3, 4, 5, 6, 7, 8]
        talk = old[: rng.choice((len(old), rng.randint(4, len(old))))]
        talk += [rng.randrange(64) for _ in range(rng.randint(1, 14))]
        talks.append(talk[:60])
        rig.step(arrive(str(at), talk[:60], rng.randint(1, 6)))
        if rng.random() < 0.5:
            rig.settle()
    rig.settle()
    assert len(rig.finished) == 60


@pytest.mark.parametrize("policy", [SEEDS, LRU, ODDS])
@pytest.mark.parametrize("snapshots", [False, True])
def test_the_machine_at_random_keeps_its_invariants_and_its_followers(
    policy: int, snapshots: bool
) -> None:
    rig = Rig(opened_under(policy, snapshots=snapshots))
    at_random(rig, policy)
    assert any(isinstance(fact, f.StateDropped) and fact.why == "reclaimed" for fact in rig.facts)
    assert any(isinstance(fact, f.StateResumed) for fact in rig.facts)


def one(rig: Rig, name: str, prompt: list[int]) -> int:
    """Ask and wait: how many rows were taken over."""
    rig.step(arrive(name, prompt, 2))
    rig.settle()
    return rig.finished[RequestId(name)].cached_tokens


def prompt_of(talk: int, pages: int) -> list[int]:
    """A conversation's own tokens, and one row that is left to run."""
    return [talk * 7 + at % 5 for at in range(4 * pages)] + [63]


def after_a_large_addition(policy: int) -> list[int]:
    """A talk is taken up with a heap after others came; one more comes; both kinds go on."""
    rig = Rig(opened_under(policy, pages=24, lanes=1))
    one(rig, "first", prompt_of(1, 4))
    found = [one(rig, f"other {talk}", prompt_of(talk, 5)) for talk in (3, 4)]
    found.append(one(rig, "heap", prompt_of(1, 4)[:16] + [40 + at % 9 for at in range(32)] + [63]))
    found += [one(rig, f"again {at}", prompt_of(4, 5)) for at in range(2)]  # time goes on
    found.append(one(rig, "new", prompt_of(5, 5)))
    assert found == [0, 0, 16, 20, 20, 0]
    return [one(rig, "on", prompt_of(1, 4)), one(rig, "other again", prompt_of(3, 5))]


def test_what_was_added_by_the_heap_goes_before_what_came_back_or_may() -> None:
    assert after_a_large_addition(ODDS) == [16, 20]


def test_by_age_alone_the_heap_stays_and_an_older_talk_goes() -> None:
    assert after_a_large_addition(LRU) == [16, 0]
