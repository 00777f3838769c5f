"""The orders in which kept prefixes are given up: the queues, and the machine under each."""

import random

import pytest

from kvtape.core.evict import (
    COSTS,
    FIRST,
    LARGE,
    LRU,
    OFTEN,
    ONCE,
    RETURNS,
    SEEDS,
    SMALL,
    TWICE,
    Order,
    kind_of,
)
from kvtape.core.families.fake import fake_rules
from kvtape.events import facts as f
from kvtape.events.facts import RunOpened
from kvtape.events.ids import RequestId, StateId
from kvtape.events.records import FamilyRules

from .rig import Rig, arrive, opened_with


def pages_alone() -> FamilyRules:
    """Rules of a family whose kept states are pages and nothing else."""
    return fake_rules(page_rows=4, mark_rows=4, lookahead=0).model_copy(
        update={"snapshots": False, "parts": ("rows", "marks", "logits", "tokens")}
    )


def opened_under(policy: int, pages: int = 30, **settings: object) -> RunOpened:
    flags = {"evict": policy, "keep_unsummed": 1}
    return opened_with(
        pages_alone(), flags=flags, pages=pages, states=pages, context=100, **settings
    )


def test_the_kind_of_a_page_is_how_often_it_came_back_else_what_its_prompt_added() -> None:
    assert [kind_of(uses, 9, 1) for uses in (1, 2, 3, 8)] == [ONCE, TWICE, OFTEN, OFTEN]
    assert kind_of(0, 1, 1) == FIRST
    assert (kind_of(0, 4, 2), kind_of(0, 4, 3)) == (SMALL, LARGE)


@pytest.mark.parametrize("policy", [LRU, RETURNS])
def test_the_weakest_is_the_one_of_the_largest_age_times_cost(policy: int) -> None:
    rng, costs = random.Random(policy), COSTS[policy]
    order, held = Order(costs, 10), {}
    for clock in range(1, 3000):
        order.tick()
        state = StateId(rng.randrange(40))
        if rng.random() < 0.7:
            kind = rng.randrange(len(costs))
            order.place(state, kind)
            held[state] = (kind, clock)
        else:
            order.forget(state)
            held.pop(state, None)
        barred = {StateId(rng.randrange(40)) for _ in range(5)}
        ages = {
            one: (clock - used + 1) * costs[kind]
            for one, (kind, used) in held.items()
            if one not in barred
        }
        found = order.weakest(lambda one, barred=barred: one not in barred)  # type: ignore[misc]
        assert (found is None) == (not ages), clock
        assert found is None or ages[found] == max(ages.values())


def test_no_more_is_remembered_than_was_said_and_the_oldest_memory_goes() -> None:
    order = Order(COSTS[RETURNS], 3)
    for at in range(5):
        order.remember(bytes([at]), at)
    assert [order.recall(bytes([at])) for at in range(5)] == [None, None, 2, 3, 4]
    assert order.recall(bytes([4])) is None  # it is kept again


@pytest.mark.parametrize("policy", [SEEDS, LRU, RETURNS])
def test_the_machine_at_random_keeps_its_invariants_and_its_followers(policy: int) -> None:
    rng = random.Random(policy)
    rig = Rig(opened_under(policy))
    talks: list[list[int]] = []
    for at in range(60):
        old = rng.choice(talks[-5:]) if talks and rng.random() < 0.6 else [1, 2, 3, 4, 5, 6, 7, 8]
        talk = old[: rng.choice((len(old), rng.randint(4, len(old))))]
        talk += [rng.randrange(64) for _ in range(rng.randint(1, 14))]
        talks.append(talk[:60])
        rig.step(arrive(str(at), talk[:60], rng.randint(1, 6)))  # every fact is checked
        if rng.random() < 0.5:
            rig.settle()
    rig.settle()
    assert len(rig.finished) == 60
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
    assert after_a_large_addition(RETURNS) == [16, 20]


def test_by_age_alone_the_heap_stays_and_an_older_talk_goes() -> None:
    assert after_a_large_addition(LRU) == [16, 0]
